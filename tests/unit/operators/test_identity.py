"""Which write is which: attempts to have one taken for another, none of which succeeds."""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext as nothing
from itertools import cycle

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from fsm_provider.api import FsmError
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import THREADS
from tests.unit.conftest import TOKEN
from tests.unit.state_store import DatabaseStore, MemoryStateStore, context_for
from tests.unit.writes.operators import lose, write_job, write_jobs, write_request

IN_A_DATABASE = pytest.mark.parametrize("store", ["in a database"], indirect=True)
EDITED = {
    "property": {"property_id": 8},
    "payload": {"job": {"customerReference": "PO-2"}},
}


OPERATORS = pytest.mark.parametrize("operator", [write_job, write_jobs, write_request])


def edit_connection(monkeypatch, **fields):
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**connection, **fields}))


@OPERATORS
@pytest.mark.parametrize("edit", EDITED.values(), ids=EDITED)
@pytest.mark.parametrize("key", [None, "order-1"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["done", "uncertain"])
def test_what_was_sent_is_not_taken_for_what_the_input_has_become(
    service, connect, store, operator, edit, key, is_lost
):
    connect(service)
    if is_lost:
        lose(service)
        with pytest.raises(AirflowFailException):
            operator(key=key).execute(context_for(store))
    else:
        operator(key=key).execute(context_for(store))
    context, rows = context_for(store, cleared=1), store.rows

    with pytest.raises(AirflowFailException) as refused:
        operator(key=key, if_uncertain="create", **edit).execute(context)

    assert "POST /properties/7/jobs" in str(refused.value)
    assert operator is write_request or "PO-1" in str(refused.value)
    assert len(service.requests) == len(service.jobs) == 1
    assert store.rows.items() >= rows.items()
    if key is not None:
        assert is_lost or f"(id {service.jobs[0]['id']})" in str(refused.value)
        assert re.search(r"sent (by|at)", str(refused.value))
    for outcome in context["ti"].pushed.get("return_value", []):  # is what was sent, not the input
        assert outcome["jobID"] is None
        assert key is None or outcome["outcome"] == ("uncertain" if is_lost else "not_created")
        assert key is None or (outcome["propertyID"], outcome["customerReference"]) == (7, "PO-1")


@OPERATORS
@pytest.mark.parametrize("field", ["host", "login"])
@pytest.mark.parametrize("header", ["", "Idempotency-Key"])
def test_a_task_writes_to_one_service_and_account(
    service, connect, store, monkeypatch, operator, field, header
):
    """An idempotency key of one account means nothing to another."""
    connect(service, max_retries=0, idempotency_header=header)
    lose(service)
    with pytest.raises((AirflowException, FsmError)):
        operator().execute(context_for(store))
    with FakeFieldService(token=TOKEN) as other:
        edit_connection(monkeypatch, **{field: other.base_url if field == "host" else "another"})

        with pytest.raises(
            AirflowFailException, match="earlier attempts of this task have used http"
        ):
            operator(if_uncertain="create").execute(context_for(store, cleared=1))
        assert (len(service.requests), other.requests) == (1, [])


@OPERATORS
@pytest.mark.parametrize("field", ["host", "login"])
def test_a_refused_token_is_sent_nowhere_again_once_the_connection_leads_elsewhere(
    service, connect, store, monkeypatch, operator, field
):
    class EditThenRefuse:
        async def play(self, exchange):
            edit_connection(
                monkeypatch, **{field: other.base_url if field == "host" else "another"}
            )
            await faults.Status(401).play(exchange)

    connect(service)
    service.fail("POST", "*", EditThenRefuse(), every=True)
    with FakeFieldService(token=TOKEN) as other:
        with pytest.raises((AirflowFailException, FsmError), match="connection leads to"):
            operator().execute(context_for(store))

        assert (len(service.requests), other.requests) == (1, [])


@pytest.mark.parametrize("operator", [write_job, write_jobs])
def test_a_property_has_one_spelling(service, connect, store, operator):
    connect(service)

    for property_id in (7, "7", " 7", "7\n", "0007"):
        operator(key="order-1", property_id=property_id).execute(context_for(store))

    assert [job["propertyID"] for job in service.jobs] == [7]
    assert [request.path for request in service.requests] == ["/properties/7/jobs"]


@OPERATORS
def test_the_order_of_fields_says_nothing(service, connect, store, operator):
    """Airflow's database may return XCom in another one."""
    connect(service)
    fields = {"notes": "Ring twice", "customerReference": "PO-1"}

    for cleared, job in enumerate((fields, dict(reversed(fields.items())))):
        operator(job=job).execute(context_for(store, cleared=cleared))

    assert len(service.requests) == 1


def test_the_key_of_a_mapped_task_says_that_a_job_is_new_if_the_ledger_has_those_of_all_indexes(
    service, connect, store
):
    """In Airflow, each map index has a ledger of its own: the job may have come from another."""
    connect(service)
    write_job(key="PM-1").execute(context_for(store, map_index=0))

    is_refused = isinstance(store, MemoryStateStore)
    refusal = pytest.raises(AirflowFailException, match="move it to a task of its own")
    with refusal if is_refused else nothing():
        write_job(key="PM-2").execute(context_for(store, map_index=0, cleared=1))
    assert len(service.jobs) == (1 if is_refused else 2)


@IN_A_DATABASE
@OPERATORS
@pytest.mark.parametrize("is_lost", [False, True], ids=["done", "uncertain"])
def test_a_ledger_that_is_gone_is_missed(service, connect, store, operator, is_lost):
    connect(service)
    if is_lost:
        lose(service)
    with pytest.raises(AirflowFailException) if is_lost else nothing():
        operator().execute(context_for(store))
    store.engine.dispose()
    for file in store.file.parent.glob(f"{store.file.name}*"):
        file.unlink()

    for _ in range(2):
        with pytest.raises(AirflowFailException, match="have recorded in another database"):
            operator(if_uncertain="create").execute(context_for(store, cleared=1))
    assert len(service.requests) == 1


@pytest.mark.parametrize("max_concurrency", [1, 8])
def test_one_response_is_not_that_of_two_jobs(service, connect, store, max_concurrency):
    connect(service)
    service.fail("POST", "*", faults.Rewrite(lambda job: {**job, "id": 4711}), every=True)
    jobs = [{"property_id": 7, "job": {}, "key": key} for key in ("order-1", "order-2")]
    operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, max_concurrency=max_concurrency)
    context = context_for(store)

    with pytest.raises(AirflowFailException):
        operator.execute(context)

    created, uncertain = sorted(
        context["ti"].pushed["return_value"], key=lambda outcome: outcome["outcome"]
    )
    assert (created["outcome"], created["jobID"]) == ("created", 4711)
    assert (uncertain["outcome"], uncertain["jobID"]) == ("uncertain", None)
    says = f"job 4711 is that of key '{created['key']}'"
    assert says in uncertain["error"]
    for cleared in (1, 2) if isinstance(store, DatabaseStore) else ():  # which another task shares
        with pytest.raises(AirflowFailException, match=f"{says} as well"):
            write_job(key="order-3").execute(context_for(store, run_id="second", cleared=cleared))


WRITTEN = [TOKEN, TOKEN.replace("/", "\\/"), TOKEN.replace("+", "\\u002b").replace("=", "\\u003D")]
ECHOES = {
    "in a link": (
        201,
        lambda token: {"links": {"self": f"https://api.example.com/jobs/5?key={token}"}},
    ),
    "in a time": (
        201,
        lambda token: {"createdOnDateTime": token, "lastUpdatedOnDateTime": f"2026 {token}"},
    ),
    "as a name": (201, lambda token: {"links": {token: "x"}, "customerReference": token}),
    "in a refusal": (400, lambda token: {"error": f"no such key: {token}"}),
    "in what leaves it uncertain": (502, lambda token: {"error": f"no such key: {token}"}),
    "in what is no job": (201, lambda token: {"id": None, "error": f"no such key: {token}"}),
}


@OPERATORS
@pytest.mark.parametrize(
    ("written", "status", "echo"),
    [(written, *echo) for written, echo in zip(cycle(WRITTEN), ECHOES.values())],
    ids=ECHOES,
)
def test_a_token_that_the_service_repeats_is_kept_nowhere(
    service, connect, store, operator, written, status, echo
):
    connect(service, max_retries=0)
    body = json.dumps({"id": 5, "propertyID": 7, **echo("TOKEN")}).replace("TOKEN", written)
    service.fail("POST", "*", faults.Status(status, body, content_type="application/json"))
    said = [str(store.rows)]

    for cleared in (0, 1):
        context = context_for(store, cleared=cleared)
        try:
            said.append(json.dumps(operator().execute(context)))
        except AirflowException as error:
            said.append(str(error))
        said += [str(store.rows), str(context["ti"].pushed)]

    assert all("canary" not in text for text in said)


@THREADS.needed
@IN_A_DATABASE
@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("if_uncertain", ["fail", "create"])
def test_two_tasks_that_look_at_once_do_not_both_take_one_job(
    service, connect, store, if_uncertain
):
    connect(service)
    lose(service)
    service.fail("POST", "/properties/*/jobs", faults.Reset(), call=2)
    for run in "ab":
        with pytest.raises(AirflowFailException):
            write_job().execute(context_for(store, run_id=run))
    (job,) = service.jobs
    both = threading.Barrier(2)

    def find(hook, request):
        both.wait(20)
        return job["id"]

    def attempt(run):
        task = write_job(find_existing=find, if_uncertain=if_uncertain)
        try:
            return task.execute(context_for(store, run_id=run, cleared=1))["id"]
        except AirflowException:
            return None

    with ThreadPoolExecutor(2) as pool:
        taken = [job_id for job_id in pool.map(attempt, "ab") if job_id is not None]

    assert taken.count(job["id"]) <= 1
    assert len(set(taken)) == len(taken)


def test_text_is_sent_as_it_stands_in_a_dag_of_native_objects(service, connect):
    connect(service)
    job = {"customerReference": "12_34", "notes": "+441234", "quotedAmount": "120.00"}
    request = {"property_id": "0_7", "job": job, "key": "{{ params.key }}-1"}
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        operators = [
            FsmCreateJobOperator(task_id="one", property_id="12_34", job=job, key="12_34"),
            FsmCreateJobsOperator(task_id="many", jobs=[request]),
            FsmRequestOperator(task_id="request", method="POST", path="/x", json=job),
        ]

    for number in (1, 2, 3):
        service.fail("POST", "*", faults.Status(201, {"id": number}), call=number)

    for operator in operators:
        context = {**context_for(MemoryStateStore()), "params": {"key": "12_34"}}
        operator.render_template_fields(context, jinja_env=dag.get_template_env())
        operator.execute(context)

    assert [request.json for request in service.requests] == [job] * 3
    assert [request.path.split("/")[2] for request in service.requests[:2]] == ["12_34", "0_7"]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("field", ["customerReference", "customerContactID", "quotedAmount"])
def test_a_field_whose_template_finds_nothing_is_refused(service, connect, native, field):
    connect(service)
    with DAG("native", schedule=None, render_template_as_native_obj=native) as dag:
        operator = FsmCreateJobOperator(
            task_id="one", property_id=7, job={field: "{{ params.nothing }}"}
        )
    context = {**context_for(MemoryStateStore()), "params": {"nothing": None}}
    operator.render_template_fields(context, jinja_env=dag.get_template_env())

    with pytest.raises(
        AirflowFailException, match=f"{field}: is the text 'None': the template .* found nothing"
    ):
        operator.execute(context)
    assert service.requests == []


@THREADS.needed
@OPERATORS
def test_outside_of_a_task_nothing_is_recorded_and_a_warning_says_so(
    service, connect, caplog, operator
):
    connect(service)

    def execute(reference):
        return operator(job={"customerReference": reference}).execute({})

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(execute, ["PO-1", "PO-2"]))

    assert len({str(job) for job in made}) == len(service.jobs) == 2
    assert caplog.text.count("This is not run as a task") == 2
    with pytest.raises(AirflowFailException, match="once_per: 'key' works in a task only"):
        operator(key="order-1", once_per="key").execute({})
    assert len(service.requests) == 2
    lose(service)
    with pytest.raises(AirflowFailException, match="may or may not") as caught:
        execute("PO-3")
    assert "ledger settle" not in str(caught.value)
