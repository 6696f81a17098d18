"""The record sensor: any listing, or one record, with a predicate of the DAG file."""

from decimal import Decimal

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.sensors.records import FsmRecordSensor
from fsm_provider.testing import faults
from tests.capabilities import RESCHEDULES
from tests.unit.sensors.conftest import Run
from tests.unit.state_store import TaskInstance

RECORD = {"id": 4711, "status": "Done", "customerContact": {"fullName": "canary"}}


ONE_PROCESS = pytest.mark.parametrize("run", ["poke"], indirect=True)
"""In reschedule mode a failed poll is Airflow's retry."""


def is_done(record):
    return record.get("status") == "Done"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


@pytest.fixture(params=["poke", "reschedule"])
def run(request):
    if request.param == "reschedule":
        RESCHEDULES.require()
    run = Run(request.param, FsmRecordSensor)

    def wait(**kwargs):
        return run(**{"path": "/forms", "predicate": is_done, **kwargs})

    return wait


def sensor(**kwargs):
    return FsmRecordSensor(
        **{
            "task_id": "wait",
            "path": "/forms",
            "predicate": is_done,
            **kwargs,
        }
    )


def poke(**kwargs):
    """Run a sensor to the end of its first poll, without tolerance."""
    return sensor(failure_tolerance=0, **kwargs).execute({"ti": TaskInstance()})


def responds(service, body, path="/jobs/4711", **when):
    fault = faults.Status(200, body=body)
    service.fail("GET", path, fault, **(when or {"every": True}))


def listing(*records):
    return {"pagination": {"hasMore": False}, "data": list(records)}


def test_a_record_that_is_there_ends_the_wait_at_the_first_poll(service, run):
    service.add_form(status="Open")
    done = service.add_form(status="Done")

    assert run() == [{"id": done["id"]}]
    assert len(service.requests) == 1


def test_a_record_that_comes_and_changes_later_ends_the_wait(service, run, soon):
    soon(service.add_form, status="Open", id=900, polls=2)
    soon(service.update_form, 900, status="Done", polls=4)

    assert run() == [{"id": 900}]
    assert len(service.requests) >= 5


def test_minimum_records_and_pages(service, run, soon):
    service.seed_forms(25)
    identifiers = [form["id"] for form in service.forms]
    first = identifiers[0]
    last = identifiers[-1]
    service.update_form(first, status="Done")
    soon(service.update_form, last, status="Done", polls=3)

    assert run(minimum_records="2") == [{"id": first}, {"id": last}]


def test_xcom_has_the_fields_that_are_asked_for_and_no_others(service, run):
    tagged = {"id": 7, "status": "Done", "tags": ["x"]}
    responds(service, listing(RECORD, tagged), "/jobs")

    assert run(path="/jobs") == [{"id": 4711}, {"id": 7}]
    assert run(path="/jobs", fields="status") == [{"status": "Done"}]
    assert run(path="/jobs", fields='["id", "tags"]') == [
        {"id": 4711, "tags": None},
        {"id": 7, "tags": ["x"]},
    ]


def test_one_record(service, run, soon):
    responds(service, {**RECORD, "status": "Open"})
    soon(responds, service, RECORD, polls=2)

    records = run(path="/jobs/4711", single=True, fields=["id", "status"])

    assert records == [{"id": 4711, "status": "Done"}]
    assert {request.path for request in service.requests} == {"/jobs/4711"}


def test_query_parameters_are_sent_with_each_page(service, run):
    service.seed_forms(15)
    service.update_form(service.forms[-1]["id"], status="Done")

    run(query_params={"x": ["a", "b"]})

    both = (("x", "a"), ("x", "b"))
    assert [request.query[:2] for request in service.requests] == [both, both]


def test_templates(service):
    form = service.add_form(job_id=7, status="Done")
    service.add_form(job_id=8, status="Done")
    waiting = sensor(
        path="/{{ of }}",
        query_params={"jobID": "{{ job }}"},
        minimum_records="{{ number }}",
        fields="{{ names | tojson }}",
    )
    waiting.render_template_fields(
        {
            "of": "forms",
            "job": 7,
            "number": 1,
            "names": ["id", "formName"],
        }
    )

    assert waiting.execute({}) == [{"id": form["id"], "formName": form["formName"]}]
    assert waiting.template_fields == (
        "fsm_conn_id",
        "path",
        "query_params",
        "minimum_records",
        "fields",
    )


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ({"path": "{{ found }}"}, None),
        ({"path": "/forms{{ found }}"}, "?jobID=7"),
        ({"query_params": {"jobID": "{{ found }}"}}, None),
        ({"query_params": "{{ found }}"}, {"jobID": 7}),
        ({"minimum_records": "{{ found }}"}, 0),
        ({"minimum_records": "{{ found }}", "single": True}, 2),
        ({"fields": "{{ found }}"}, ["id"]),
        ({"fields": "{{ found | tojson }}"}, []),
    ],
)
def test_a_rendered_value_is_checked_at_the_first_poll(service, argument, found):
    for silent_fail in (False, True):
        waiting = sensor(silent_fail=silent_fail, **argument)
        waiting.render_template_fields({"found": found})

        with pytest.raises(AirflowFailException, match=f"^{next(iter(argument))}: "):
            waiting.execute({})
    assert service.requests == []


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("query_params", {"jobID": None}),
        ("path", None),
        ("fields", None),
        ("minimum_records", None),
    ],
)
def test_an_output_that_is_none_does_not_make_more_records_count(service, argument, value):
    service.add_form(status="Done")
    template = "/{{ found }}" if argument == "path" else "{{ found }}"
    waiting = sensor(**{argument: template})
    setattr(waiting, argument, value)  # as an upstream task's output comes

    with pytest.raises(AirflowFailException, match=f"^{argument}: "):
        waiting.execute({})
    assert service.requests == []


def test_mapped_tasks_have_the_predicate(service):
    done = service.add_form(job_id=7, status="Done")
    service.add_form(job_id=8, status="Done")
    with DAG("mapped", schedule=None):
        partial = FsmRecordSensor.partial(task_id="wait", path="/forms", predicate=is_done)
        mapped = partial.expand(query_params=[{"jobID": 7}, {"jobID": 8}])

    waiting = mapped.unmap({"query_params": {"jobID": 7}})

    assert waiting.execute({}) == [{"id": done["id"]}]


def test_deferrable_as_a_default_of_the_dag_is_for_others(service):
    service.add_form(status="Done")
    defaults = {"deferrable": True, "failure_tolerance": 5}
    with DAG("defaults", schedule=None, default_args=defaults):
        waiting = sensor()

    assert waiting.failure_tolerance == 5
    assert len(waiting.execute({})) == 1


def raising(error):
    def predicate(record):
        raise error

    return predicate


@pytest.mark.parametrize("error", [AirflowSkipException("aborted"), KeyError("state")])
def test_what_a_predicate_raises_is_raised(service, error):
    service.add_form()

    with pytest.raises(type(error)) as raised:
        poke(predicate=raising(error))
    assert raised.value is error


async def is_done_later(record):
    return is_done(record)


def closed(coroutine):
    """An async function's coroutine, which Python would warn of as it was never awaited."""
    coroutine.close()
    return coroutine


@pytest.mark.parametrize(
    ("predicate", "returned"),
    [
        (lambda record: closed(is_done_later(record)), "coroutine"),
        (lambda record: record["status"], "str 'Open'"),
        (lambda record: record.get("closed"), "NoneType None"),
        (lambda record: len(record), "int "),
        (lambda record: record, "dict"),
        (lambda record: Decimal(1), "decimal.Decimal"),
        (lambda record: (_ for _ in record), "generator"),
        (lambda record: record["signingSecret"], "str 'whsec_canar, not"),
    ],
)
def test_a_predicate_that_returns_no_bool_fails_the_task_without_a_retry(
    service, run, predicate, returned
):
    """Whatever is true would count, such as a status, or the coroutine of an async function."""
    service.add_form(status="Open", signingSecret="whsec_canary-0123456789")

    with pytest.raises(AirflowFailException, match=f"^predicate: returned {returned}") as failed:
        run(predicate=predicate, silent_fail=True)
    assert "not True or False" in str(failed.value)
    assert "canary" not in str(failed.value)


@ONE_PROCESS
def test_a_predicate_that_asks_the_service_is_tolerated_like_a_poll(service, run):
    service.add_form(id=900)
    service.fail("GET", "/jobs/1", faults.Status(503))
    responds(service, {"status": "Done"}, "/jobs/1", call=2)

    def is_done_job(form):
        job = FsmHook().request("GET", "/jobs/1")
        return is_done(job)

    assert run(predicate=is_done_job) == [{"id": 900}]


@pytest.mark.parametrize("again", [1, "1"])
def test_a_record_on_two_pages_counts_once_and_as_it_was_last(service, again):
    first = listing({"id": 1, "status": "Done"}, {"id": 2, "status": "Done"})
    first["pagination"] = {"hasMore": True, "nextCursor": "2"}
    second = listing({"id": again}, {"id": 3})
    for call, page in enumerate([first, second, first, second], 1):
        responds(service, page, "/jobs", call=call)

    assert poke(path="/jobs") == [{"id": 2}]
    with pytest.raises(AirflowSensorTimeout):
        poke(path="/jobs", minimum_records=2, timeout=0)


@pytest.mark.parametrize(
    "record",
    [
        {"dynamicFieldID": 1},
        {"id": None},
        {"id": ""},
        {"id": True},
        {"id": [1]},
        {"id": {"x": 1}},
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_a_record_that_nothing_identifies_fails_the_task_also_if_it_does_not_count(
    service, record, single
):
    body = record if single else listing({"id": 1}, record)
    responds(service, body, "/jobs")
    index = 0 if single else 1

    with pytest.raises(
        AirflowFailException,
        match=rf"^fields: index {index} of GET /jobs .*'id'",
    ) as failed:
        poke(path="/jobs", single=single)
    end = f"it has {next(iter(record))}"
    if single:
        end += ". If this is a listing, leave out single=True"
    assert str(failed.value).endswith(end)


@pytest.mark.parametrize(
    ("single", "body"),
    [
        (True, [RECORD]),
        (True, "x"),
        (False, listing(5)),
    ],
)
@ONE_PROCESS
def test_what_is_no_record_is_an_unreadable_response(service, run, soon, single, body):
    readable = RECORD if single else listing(RECORD)
    responds(service, body, call=1)
    responds(service, readable, call=2)

    assert run(path="/jobs/4711", single=single) == [{"id": 4711}]


def test_one_record_in_place_of_a_listing_fails_the_task_and_says_what_to_use(service):
    responds(service, RECORD, call=1)

    with pytest.raises(AirflowFailException, match=r"^path: .* one record.*single=True"):
        poke(path="/jobs/4711")
    assert len(service.requests) == 1


def test_a_field_that_a_predicate_misses_is_named_with_those_that_are_there(service, logged):
    responds(service, listing(RECORD), path="/jobs", call=1)

    with pytest.raises(KeyError, match="state"):
        poke(path="/jobs", predicate=lambda record: record["state"] == "Done")

    (line,) = logged("predicate: ")
    assert line.startswith("predicate: raised KeyError 'state'. The record has id")
    assert "use record.get('state')" in line


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405])
def test_a_permanent_error_fails_the_task_without_a_retry(service, run, status):
    service.fail("GET", "/forms", faults.Status(status))

    with pytest.raises(AirflowFailException, match=f"GET /forms returned HTTP {status}"):
        run(silent_fail=True)


@pytest.mark.parametrize(
    ("soft_fail", "end"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)]
)
def test_a_timeout_says_for_what(service, run, logged, soft_fail, end):
    service.add_form(status="Open")

    target = "a record of /forms that is_done"
    with pytest.raises(end, match=f"^Sensor has timed out after .*: waited for {target}"):
        run(timeout=1, soft_fail=soft_fail)
    begun = logged(f"Waiting for {target} accepts; polling every ")
    assert len(begun) == 1
    assert set(logged("0 of 1")) == {"0 of 1 record, of 1 at /forms"}


def test_nothing_of_a_record_but_its_identifier_is_logged(service, run, caplog):
    caplog.set_level("DEBUG")
    responds(service, RECORD)

    run(path="/jobs/4711", single=True)
    with pytest.raises(AirflowSensorTimeout):
        run(path="/jobs/4711", single=True, predicate=lambda _: False, timeout=0)
    assert "canary" not in caplog.text
