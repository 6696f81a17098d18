"""Which write is which: attempts to have one taken for another, none of which succeeds."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext as nothing

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import THREADS
from tests.unit.conftest import TOKEN
from tests.unit.state_store import MemoryStateStore, context_for

IN_A_DATABASE = pytest.mark.parametrize("store", ["in a database"], indirect=True)
SENT = {"property_id": 7, "job": {"customerReference": "PO-1"}}
EDITED = {
    "property": {"property_id": 8},
    "payload": {"job": {"customerReference": "PO-2"}},
}


def one(**options):
    return FsmCreateJobOperator(task_id="task", **{**SENT, **options})


def many(key=None, once_per="run", if_uncertain="fail", **request):
    jobs = [{**SENT, **request, "key": key}]
    return FsmCreateJobsOperator(task_id="task", jobs=jobs, once_per=once_per, if_uncertain=if_uncertain)


def any_request(property_id=7, job=SENT["job"], **options):
    path = f"/properties/{property_id}/jobs"
    return FsmRequestOperator(task_id="task", method="POST", path=path, json=job, **options)


OPERATORS = pytest.mark.parametrize("operator", [one, many, any_request])


def edit_connection(monkeypatch, **fields):
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**connection, **fields}))


def lose(service, *, handled=True):
    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=handled))


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
    assert operator is any_request or "PO-1" in str(refused.value)
    assert len(service.requests) == len(service.jobs) == 1
    assert store.rows.items() >= rows.items()
    for outcome in context["ti"].pushed.get("return_value", []):
        assert outcome["jobID"] is None
        assert key is None or (outcome["propertyID"], outcome["customerReference"]) == (7, "PO-1")


@IN_A_DATABASE
@OPERATORS
def test_a_key_of_another_run_is_that_of_what_it_has_sent(service, connect, store, operator):
    connect(service)
    operator(key="order-1", once_per="key").execute(context_for(store, run_id="first"))

    with pytest.raises(AirflowFailException, match=r"POST /properties/7/jobs .*of run first of DAG dag"):
        operator(key="order-1", once_per="key", property_id=8).execute(context_for(store, run_id="second"))
    assert len(service.requests) == 1


@OPERATORS
@pytest.mark.parametrize("field", ["host", "login"])
def test_a_task_writes_to_one_service_and_account(service, connect, store, monkeypatch, operator, field):
    connect(service)
    lose(service)
    with pytest.raises(AirflowFailException):
        operator().execute(context_for(store))
    with FakeFieldService(token=TOKEN) as other:
        edit_connection(monkeypatch, **{field: other.base_url if field == "host" else "another"})

        with pytest.raises(AirflowFailException, match="earlier attempts of this task have written to http"):
            operator(if_uncertain="create").execute(context_for(store, cleared=1))
        assert (len(service.requests), other.requests) == (1, [])


@IN_A_DATABASE
def test_two_accounts_of_one_service_have_a_job_each(service, connect, store, monkeypatch):
    connect(service)
    made = []
    for run, login in enumerate(["north", "south", "north", " south "]):
        edit_connection(monkeypatch, login=login)
        context = context_for(store, run_id=f"run {run}")
        made.append(one(key="order-1", once_per="key").execute(context)["id"])

    assert made == [job["id"] for job in service.jobs] * 2


@pytest.mark.parametrize("operator", [one, many])
def test_a_property_has_one_spelling(service, connect, store, operator):
    connect(service)

    for property_id in (7, "7", " 7", "7\n", "0007"):
        operator(key="order-1", property_id=property_id).execute(context_for(store))

    assert [job["propertyID"] for job in service.jobs] == [7]
    assert [request.path for request in service.requests] == ["/properties/7/jobs"]


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

    created, uncertain = sorted(context["ti"].pushed["return_value"], key=lambda one: one["outcome"])
    assert (created["outcome"], created["jobID"]) == ("created", 4711)
    assert (uncertain["outcome"], uncertain["jobID"]) == ("uncertain", None)
    assert f"job 4711 is that of key '{created['key']}'" in uncertain["error"]


@IN_A_DATABASE
def test_one_response_is_not_that_of_two_tasks(service, connect, store):
    connect(service)
    service.fail("POST", "*", faults.Rewrite(lambda job: {**job, "id": 4711}), every=True)
    one(key="order-1").execute(context_for(store, run_id="first"))

    for cleared in (0, 1):
        with pytest.raises(AirflowFailException, match="job 4711 is that of key 'order-1' as well"):
            one(key="order-2").execute(context_for(store, run_id="second", cleared=cleared))


WRITTEN = [TOKEN, TOKEN.replace("/", "\\/"), TOKEN.replace("+", "\\u002b").replace("=", "\\u003D")]
ECHOES = {
    "in a link": lambda token: {"links": {"self": f"https://api.example.com/jobs/5?key={token}"}},
    "in a time": lambda token: {"createdOnDateTime": token, "lastUpdatedOnDateTime": f"2026-01-31 {token}"},
    "as a name": lambda token: {"links": {token: "x"}, "customerReference": token},
}


@OPERATORS
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_token_that_the_service_repeats_is_kept_nowhere(service, connect, store, operator, written, echo):
    connect(service)
    body = json.dumps({"id": 5, "propertyID": 7, **echo("TOKEN")}).replace("TOKEN", written)
    service.fail("POST", "*", faults.Body(body, content_type="application/json"))
    contexts = [context_for(store), context_for(store, cleared=1)]

    results = [operator().execute(context) for context in contexts]

    for text in (str(store.rows), json.dumps(results), *(str(context["ti"].pushed) for context in contexts)):
        assert "canary" not in text


@OPERATORS
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("status", [201, 400, 502])
def test_a_token_in_a_failure_is_kept_nowhere(service, connect, store, operator, written, status):
    connect(service, max_retries=0)
    body = json.dumps({"error": "no such key: TOKEN"}).replace("TOKEN", written)
    service.fail("POST", "*", faults.Status(status, body, content_type="application/json"))
    context = context_for(store)

    try:
        said = operator().execute(context)
    except AirflowException as error:
        said = error

    for text in (str(store.rows), str(context["ti"].pushed), str(said)):
        assert "canary" not in text


@THREADS.needed
@IN_A_DATABASE
@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("if_uncertain", ["fail", "create"])
def test_two_tasks_that_look_at_once_do_not_both_take_one_job(service, connect, store, if_uncertain):
    connect(service)
    lose(service)
    service.fail("POST", "/properties/*/jobs", faults.Reset(), call=2)
    for run in "ab":
        with pytest.raises(AirflowFailException):
            one().execute(context_for(store, run_id=run))
    (job,) = service.jobs
    both = threading.Barrier(2)

    def find(hook, request):
        both.wait(20)
        return job["id"]

    def attempt(run):
        task = one(find_existing=find, if_uncertain=if_uncertain)
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
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        single = FsmCreateJobOperator(task_id="one", property_id="12_34", job=job, key="12_34")
        several = FsmCreateJobsOperator(
            task_id="many", jobs=[{"property_id": "0_7", "job": job, "key": "{{ params.key }}-1"}]
        )
        other = FsmRequestOperator(task_id="request", method="POST", path="/x", json=job)
    service.fail("POST", "*", faults.Status(201, {"id": 5}), call=1)
    service.fail("POST", "*", faults.Status(201, {"id": 6}), call=2)
    service.fail("POST", "*", faults.Status(201, {"id": 7}), call=3)

    for operator in (single, several, other):
        context = {**context_for(MemoryStateStore()), "params": {"key": "12_34"}}
        operator.render_template_fields(context, jinja_env=dag.get_template_env())
        operator.execute(context)

    assert [request.json for request in service.requests] == [job] * 3
    assert [request.path.split("/")[2] for request in service.requests[:2]] == ["12_34", "0_7"]


@THREADS.needed
@OPERATORS
def test_outside_of_a_task_nothing_is_recorded_and_a_warning_says_so(service, connect, caplog, operator):
    connect(service)

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda reference: execute_outside(operator, reference), ["PO-1", "PO-2"]))

    assert len({str(one) for one in made}) == len(service.jobs) == 2
    assert caplog.text.count("This is not run as a task") == 2


def execute_outside(operator, reference):
    return operator(job={"customerReference": reference}).execute({})


@IN_A_DATABASE
@OPERATORS
def test_outside_of_a_task_no_key_is_written_once(service, connect, store, operator):
    connect(service)

    with pytest.raises(AirflowFailException, match="once_per: 'key' works in a task only"):
        operator(key="order-1", once_per="key").execute({})
    assert service.requests == []
