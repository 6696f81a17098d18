"""What a heating firm's Airflow holds: ``python -m tests.ui.office`` puts it into the databases.

It is run with the environment of that Airflow, and makes: uncertain jobs of three connections, jobs
that were made, settled ones, sensors that wait, three assets of which the watcher of one fails, and
deliveries. Chance has a seed, so the pictures of the documentation differ by the date alone.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

CONNECTIONS = ("fsm_leeds", "fsm_york", "fsm_hull")
UNCERTAIN = 30
WAITS = 300
WORK = ("Annual boiler service", "No hot water", "Gas safety check", "Thermocouple", "Power flush")
OWNERS = {"annual_boiler_service": "Planning desk", "repairs": "Repairs desk"}
"""Of the DAGs that create jobs and wait for forms."""
FORM_NAMES = (
    "Gas Safety Record",
    "Job Sign-off",
    "Landlord Certificate",
    "Boiler Service Sheet",
    "Warning Notice",
)
ERRORS = (
    "no complete response arrived: ConnectionResetError (timeout 30 s)",
    "HTTP 502 Bad Gateway, request 7f3a91c2",
    "no response was recorded",
)
NOTES = (
    ("made", "amy", "found in the planner under its order number"),
    ("not created", "amy", "not on the property's page; asked the Leeds office"),
    ("made", "tomasz", "the engineer has it on his list for Monday"),
)
DAY = 86_400

chance = random.Random(4711)


def main() -> None:
    now = time.time()
    for number, conn_id in enumerate(CONNECTIONS):
        fill_ledger(conn_id, number, now)
    add_triggerer()
    add_waits(now)
    add_assets(now)


def add_triggerer() -> None:
    """Say that the parts of Airflow are running, for as long as pictures take."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    later = datetime.now(UTC) + timedelta(hours=1)
    with create_session() as session:
        for job_type in ("TriggererJob", "SchedulerJob", "DagProcessorJob"):
            session.add(Job(job_type=job_type, state="running", latest_heartbeat=later))


def fill_ledger(conn_id: str, number: int, now: float) -> None:
    from fsm_provider.api.digests import digest_for
    from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
    from fsm_provider.state.schema import LEDGER, METADATA, SCHEMA, SERVICES, VERSION
    from fsm_provider.writes.sql_ledger import SqlLedger

    settings = settings_from(read_connection_outside_of_tasks(conn_id))
    file = json.loads(os.environ[f"AIRFLOW_CONN_LEDGER_{conn_id.upper()}"])["host"]
    engine = sa.create_engine(f"sqlite:///{file}")
    METADATA.create_all(engine)
    ledger = SqlLedger(engine, "office", conn_id)
    name = settings.service
    entries = list(entries_of(settings.service, number, now))
    with engine.begin() as connection:
        connection.execute(SCHEMA.insert().values(version=VERSION))
        service = {"id": conn_id, "name": name, "name_digest": digest_for(name)}
        connection.execute(SERVICES.insert().values(service))
        connection.execute(LEDGER.insert(), [ledger._row_of(entry) for entry in entries])
    engine.dispose()


def entries_of(service: str, number: int, now: float) -> Iterator[Any]:
    """Yield the entries of a ledger: those of each of the last days, uncertain and settled ones."""
    from fsm_provider.api.request import ApiRequest
    from fsm_provider.state.task import Task
    from fsm_provider.writes.ledger import new_entry

    def entry(index: int, age: float, **fields: Any) -> Any:
        at = datetime.fromtimestamp(now - age, UTC)
        property_id = str(chance.randrange(1_000, 4_000))
        order = f"PO-{48_000 + 1_000 * number + index}"
        run_id = f"scheduled__{at:%Y-%m-%d}T06:00:00+00:00"
        dag_id = list(OWNERS)[index % 2]
        made = new_entry(
            Task(dag_id, run_id, "create_jobs", index % 40),
            service,
            ApiRequest("POST", f"/properties/{property_id}/jobs"),
            f"order-{48_000 + 1_000 * number + index}",
            "job",
            property_id=property_id,
            reference=f"{order} {chance.choice(WORK)}",
        )
        return replace(made, owner=uuid4().hex, sent_at=int(1000 * (now - age)), **fields)

    index = 0
    for day in range(30):
        for _ in range(chance.randrange(8, 30) if day % 7 < 5 else 3):
            index += 1
            result = {"id": 90_000 + 1_000 * number + index}
            yield entry(index, day * DAY + chance.random() * 40_000, state="done", result=result)
    for place in range(UNCERTAIN // len(CONNECTIONS)):
        index += 1
        age = 3_000 + place * 9_000 + number * 2_500
        yield entry(index, age, state="uncertain", error=chance.choice(ERRORS))
    for age, (statement, by, why) in enumerate(NOTES, number + 1):
        index += 1
        at = datetime.fromtimestamp(now - age * 30_000, UTC)
        made = statement == "made"
        yield entry(
            index,
            age * 40_000,
            state="done" if made else "free",
            result={"id": 95_000 + 1_000 * number + index} if made else None,
            note=f"{statement}, says {by} at {at:%F %T} UTC: {why}",
        )


def add_waits(now: float) -> None:
    from airflow.models import DagRun, TaskInstance
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    from fsm_provider.polling.waiting import Waiting

    takes_uuid = getattr(TaskInstance.__table__.c.id.type, "as_uuid", False)  # since Airflow 3.2
    with create_session() as session:
        for number in range(WAITS):
            until = now + 1_500 + number * 5_400
            missing = chance.sample(FORM_NAMES, chance.choice((1, 1, 1, 2)))
            found = [name for name in FORM_NAMES[:2] if name not in missing][: number % 3]
            waiting = Waiting(
                fsm_conn_id=CONNECTIONS[number % 3],
                job_id=str(90_000 + number),
                property_id=str(1_000 + number * 7 % 3_000),
                missing=missing,
                found=found,
                text=f"{len(found)} of {len(missing) + len(found)} forms",
                since=until - 7 * DAY,
                forms_since=until - 7 * DAY - 3_600,
                until=until,
                polled_at=now - chance.randrange(30, 3_000),
                problem="the last poll failed: HTTP 503 Service Unavailable" * (number == 4),
            )
            is_on_worker = number % 50 == 49
            run_id = f"scheduled__{datetime.fromtimestamp(until - 7 * DAY, UTC):%FT%T}+00:00"
            dag_id = "annual_boiler_service"
            task = {"dag_id": dag_id, "run_id": run_id, "task_id": "wait_for_form"}
            run = DagRun(
                dag_id=dag_id,
                run_id=run_id,
                run_type="scheduled",
                run_after=datetime.now(UTC),
                state="success",  # nothing is to be scheduled here
            )
            session.add(run)
            session.flush()
            values = {
                **task,
                "id": uuid4() if takes_uuid else str(uuid4()),
                "map_index": -1,
                "max_tries": 0,
                "pool": "default_pool",
                "pool_slots": 1,
                "operator": "FsmFormSensor",
                "state": "up_for_reschedule" if is_on_worker else "deferred",
                "start_date": datetime.fromtimestamp(waiting.since, UTC),
                "next_kwargs": None if is_on_worker else waiting.as_kwargs(),
                "trigger_timeout": None
                if is_on_worker
                else datetime.fromtimestamp(until + 60, UTC),
            }
            session.execute(sa.insert(TaskInstance.__table__).values(values))
            if is_on_worker:
                arguments: dict[str, Any] = {"form_names": missing}
                for name in ("fsm_conn_id", "job_id", "property_id"):
                    arguments[name] = getattr(waiting, name)
                rendered = {**task, "map_index": -1, "rendered_fields": arguments}
                table = RenderedTaskInstanceFields.__table__
                session.execute(sa.insert(table).values(rendered))


def add_assets(now: float) -> None:
    from airflow.models.asset import AssetActive, AssetEvent, AssetModel
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    from fsm_provider.polling import admin
    from fsm_provider.polling.tracker import WATERMARK
    from fsm_provider.polling.watcher import CONFIGURATION, OWNER
    from fsm_provider.storage import uri_for_records

    names = ("gas_safety_records", "warning_notices", "boiler_service_sheets")
    dags = ("gas_certificates_to_landlords", "warning_notices_to_office", "service_sheets_archive")
    with create_session() as session:
        session.add(DagBundleModel(name="office"))
        session.flush()
        for dag_id, owner in OWNERS.items():
            file = f"{dag_id}.py"
            dag = DagModel(dag_id=dag_id, bundle_name="office", fileloc=file, owners=owner)
            session.add(dag)
        for name, dag_id, conn_id in zip(names, dags, CONNECTIONS, strict=True):
            asset = AssetModel(name=name, uri=f"fsm://{conn_id}/forms/{name}", group="asset")
            session.add(asset)
            dag = DagModel(dag_id=dag_id, bundle_name="office", fileloc=f"{dag_id}.py")
            dag.relative_fileloc = dag.fileloc
            dag.is_stale = False
            dag.is_paused = False
            session.add(dag)
            session.flush()
            session.add(AssetActive.for_asset(asset))
            session.add(Scheduled(asset_id=asset.id, dag_id=dag_id))
        for conn_id, number in zip(CONNECTIONS, (61, 12, 0), strict=True):
            asset = AssetModel(
                name=f"{conn_id}_jobs", uri=uri_for_records(conn_id, "jobs"), group="asset"
            )
            session.add(asset)
            session.flush()
            session.add(AssetActive.for_asset(asset))
            for delivery in range(number):
                event = AssetEvent(asset_id=asset.id, extra={"delivery": f"{delivery}"})
                event.timestamp = datetime.now(UTC) - timedelta(minutes=17 * delivery)
                session.add(event)
    for watched in admin.watched_assets():
        is_failing = watched.name == names[-1]
        store(watched, CONFIGURATION, {"poll_interval": 600.0})  # it is late after half an hour
        status: dict[str, Any] = {"polled_at": now - 25, "backlog": 0}
        if is_failing:
            status = {
                "polled_at": now - 9_400,
                "backlog": 14,
                "failing_since": now - 9_300,
                "error": "GET /forms: HTTP 401 Unauthorized: the service refuses the API token",
            }
        store(watched, OWNER, ["triggerer", now, status])
        days = {}
        for day in range(30):
            date = datetime.fromtimestamp(now - day * DAY, UTC)
            days[f"{date:%F}"] = chance.randrange(4, 12) if date.weekday() > 4 else 40
            days[f"{date:%F}"] += chance.randrange(30)
        watermark = now - (9_400 if is_failing else 25)
        progress = {"floor": 0.0, "watermark": watermark, "days": days}
        store(watched, watched.read_prefix() + WATERMARK, progress)


def store(asset: Any, key: str, value: Any) -> None:
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

    from fsm_provider.polling.admin import sql_store

    if AIRFLOW_V_3_3_PLUS:
        from airflow.state import AssetScope, get_state_backend

        get_state_backend().set(AssetScope(asset_id=asset.asset_id), key, json.dumps(value))
    else:
        asyncio.run(sql_store(asset, create=True).aset(key, value))


if __name__ == "__main__":
    main()
