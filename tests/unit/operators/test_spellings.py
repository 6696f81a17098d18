"""Identifiers and keys have one spelling, and what a template did not find names nothing."""

import logging
from decimal import Decimal
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException

from fsm_provider.api import FsmInputError
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.generic import FsmListOperator, FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import faults
from tests.unit.operators.jobs import statuses
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.operators import lose, write_job, write_jobs, write_request


@pytest.fixture(autouse=True)
def connected(service, connect, request):
    if "store" in request.fixturenames:
        request.getfixturevalue("store")
    connect(service, max_retries=0)


def rendered(make, native=False, **params):
    """Make an operator, and render its templates."""
    with DAG("native", schedule=None, render_template_as_native_obj=native) as dag:
        operator = make()
    context = {**context_for(MemoryStateStore()), "params": params}
    operator.render_template_fields(context, jinja_env=dag.get_template_env())
    return operator


def delete(path):
    return FsmRequestOperator(task_id="task", method="DELETE", path=path)


def request(key):
    return FsmRequestOperator(task_id="task", method="POST", path="/x", key=key)


def job(**fields):
    return write_job(job=fields)


FOUND = "{{ params.found }}"
NAMES = {
    "path": lambda: delete(f"/jobs/{FOUND}"),
    "path, inside": lambda: delete(f"/jobs/{FOUND}/notes"),
    "path, listing": lambda: FsmListOperator(task_id="task", path=f"/jobs/{FOUND}/notes"),
    "key, request": lambda: request(FOUND),
    "key, job": lambda: write_job(key=FOUND),
    "property_id": lambda: write_job(property_id=FOUND),
    "property_id, listing": lambda: FsmListFormsOperator(task_id="task", property_id=FOUND),
}
PARTS = {
    "path": lambda: delete(f"/jobs/PM-{FOUND}"),
    "key, request": lambda: request(f"PM-{FOUND}"),
    "key, job": lambda: write_job(key=f"PM-{FOUND}"),
    "key, jobs": lambda: write_jobs(key=f"{FOUND}_2"),
    "customerReference": lambda: job(customerReference=f"PM-{FOUND}"),
}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("found", [None, "null", "nan", ""])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_did_not_find_names_nothing(service, name, found, native):
    operator = rendered(NAMES[name], native, found=found)

    with pytest.raises(AirflowFailException, match=name.partition(",")[0]) as refused:
        operator.execute(context_for(MemoryStateStore()))

    assert (
        "None" in str(refused.value)
        or "is empty" in str(refused.value)
        or ("found nothing" in str(refused.value))
    )
    assert service.requests == []


@pytest.mark.parametrize("found", [None, "null", "NaT", "<NA>"])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_a_template_did_not_find_names_nothing_either(service, name, found):
    operator = rendered(PARTS[name], found=found)

    says = f"{name.partition(',')[0]}: holds '{found}': its template has found nothing"
    with pytest.raises(AirflowFailException, match=says):
        operator.execute(context_for(MemoryStateStore()))
    assert service.requests == []


@pytest.mark.parametrize("name", ["NONESUCH-1", "Nan-1", "nonesuch", "PM-NONE", "Annull-2"])
def test_a_name_that_only_begins_like_nothing_is_one(service, name):
    service.fail("DELETE", "*", faults.Status(204))

    delete(f"/jobs/{name}").execute(context_for(MemoryStateStore()))
    rendered(partial(write_job, key=FOUND, job={"customerReference": FOUND}), found=name).execute(
        context_for(MemoryStateStore())
    )

    assert [sent.path for sent in service.requests] == [f"/jobs/{name}", "/properties/7/jobs"]
    assert service.jobs[0]["customerReference"] == name


@pytest.mark.parametrize("make", [write_job, request])
def test_a_key_that_another_task_did_not_give_is_not_left_out(service, make):
    operator = make(key="given when the DAG is parsed")
    operator.key = None

    with pytest.raises(AirflowFailException, match=r"^key: is None: the template or task output"):
        operator.execute(context_for(MemoryStateStore()))
    assert service.requests == []


def test_notes_and_priority_that_were_not_found_are_sent_with_a_warning(service, caplog):
    job = {"notes": FOUND, "priority": FOUND, "customerReference": "PM-7"}

    with caplog.at_level(logging.WARNING, "fsm_provider.api.payloads"):
        rendered(partial(write_job, job=job), found=None).execute(context_for(MemoryStateStore()))

    problem = (
        "is the text 'None': the template that it comes from found nothing. It is sent as it is"
    )
    assert [record.getMessage() for record in caplog.records if "None" in record.message] == [
        f"job.notes at property 7 {problem}",
        f"job.priority at property 7 {problem}",
    ]
    assert (service.jobs[0]["notes"], service.jobs[0]["priority"]) == ("None", "None")


def test_notes_of_many_jobs_that_were_not_found_are_named_once_each(service, caplog):
    jobs = [{"property_id": number, "job": {"notes": "None"}} for number in (7, 8)]

    with caplog.at_level(logging.WARNING, "fsm_provider.api.payloads"):
        FsmCreateJobsOperator(task_id="task", jobs=jobs).execute(context_for(MemoryStateStore()))

    named = [record.args[1] for record in caplog.records if "found nothing" in record.getMessage()]
    assert named == [7, 8]
    assert len(service.jobs) == 2


SPELLINGS = [5001, 5001.0, " 5001 ", "5001.0", "0005001"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_record_of_a_listing_has_one_identifier_however_it_is_spelled(service, spelling):
    def respell(page):
        for form in page["data"]:
            form["id"] = form["jobDetails"]["jobID"] = form["propertyID"] = spelling
        return page

    service.add_form(property_id=5001, job_id=5001)
    service.fail("GET", "/forms", faults.Rewrite(respell), every=True)

    for filters in ({}, {"property_id": "5001.0"}, {"job_id": 5001.0}, {"job_id": Decimal(5001)}):
        operator = FsmListFormsOperator(task_id="forms", **filters)
        [form] = operator.execute({})
        assert (form["id"], form["jobID"]) == (5001, 5001)
    assert dict(service.requests[-1].query)["jobID"] == "5001"


@pytest.mark.parametrize(
    ("identifier", "shown"),
    [
        ("five", "'five'"),
        (7.5, "7.5"),
        (2.0**53, "9007199254740992.0"),
        (True, "True"),
        ("x" * 99, "'xxxxxxxxxxxxxxxxxxx..."),
    ],
)
def test_an_identifier_that_cannot_be_read_is_shown(service, identifier, shown):
    def respell(page):
        page["data"][0]["id"] = identifier
        return page

    service.add_form()
    service.fail("GET", "/forms", faults.Rewrite(respell))

    with pytest.raises(Exception, match="no usable 'id': should be an integer, not") as refused:
        FsmListFormsOperator(task_id="forms").execute({})
    assert str(refused.value).endswith(f", not {shown}")


@pytest.mark.parametrize("property_id", [7, 7.0, Decimal("7.00"), "7.0", " 7", "0007"])
def test_a_property_is_one_however_it_is_spelled(service, property_id):
    write_job(property_id=property_id).execute(context_for(MemoryStateStore()))

    assert [sent.path for sent in service.requests] == ["/properties/7/jobs"]


@pytest.mark.parametrize("property_id", [7.5, "7.5", Decimal("7.5"), 1e22, float("inf"), 2.0**53])
def test_a_decimal_number_is_no_property_and_is_shown(service, property_id):
    with pytest.raises(FsmInputError) as refused:
        write_job(property_id=property_id)

    problem = f"property_id: {property_id!r} is a decimal number: make it an integer"
    assert str(refused.value) == problem


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("found", [4711.0, " 4711 ", "4711.0"])
def test_a_look_up_may_spell_the_id_of_a_job_as_it_likes(service, store, found):
    lose(service)
    options = {"find_existing": lambda hook, asked: found}

    made = write_job(**options).execute(context_for(store))

    assert made["id"] == 4711


@pytest.mark.parametrize("value", [{"x"}, frozenset("x"), b"x", {"a": 1}, iter("x")])
@pytest.mark.parametrize(
    "operator", [FsmListFormsOperator, partial(FsmFormSensor, since="2026-01-31")]
)
def test_a_query_parameter_is_a_value_or_a_list_of_values(service, operator, value):
    listing = operator(task_id="forms", query_params={"skill": value})

    with pytest.raises(
        AirflowFailException, match="'skill': should be a value or a list of values, not"
    ):
        listing.execute(context_for(None))
    assert service.requests == []


KEYS = {
    "NFD": "Pru\u0308fung-7",
    "no-break space": "Prüfung-7\u00a0",
    "zero-width space": "Prüf\u200bung-7",
    "byte-order mark": "\ufeffPrüfung-7",
    "soft hyphen": "Prüf\u00adung-7",
    "mark of a direction": "\u200ePrüfung-7\u202c",
    "hyphen": "Prüfung\u20107",
    "no-break hyphen": "Prüfung\u20117",
    "en dash": "Prüfung\u20137",
    "Armenian hyphen": "Prüfung\u058a7",
    "blank of Braille": "\u2800Prüfung-7",
    "filler of Hangul": "Prüfung-7\u3164",
    "minus": "Prüfung\u22127",
    "NUL": "Prüfung-7\0",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("write", [write_job, write_jobs, write_request])
def test_keys_that_look_the_same_are_one_key(service, store, write, key):
    for spelling in ("Prüfung-7", key):
        write(key=spelling).execute(context_for(store))

    assert len(service.jobs) == 1
    assert [row["key"] for row in store.rows.values()] == ["Prüfung-7"]


def test_a_row_keeps_the_key_as_it_was_typed(store):
    write_job(key=" Pru\u0308fung\u20137 ").execute(context_for(store))

    assert [row["key"] for row in store.rows.values()] == ["Pru\u0308fung\u20137"]


def test_inner_blanks_of_a_key_are_blanks_and_two_of_them_are_two(service, store):
    for key in ("PM 7", "PM\u00a07", "PM\t7", "PM\u20037", "PM  7", "PM7", "pm 7"):
        write_job(key=key).execute(context_for(store))

    assert len(service.jobs) == 4


@pytest.mark.parametrize("key", ["\u200b", "\ufeff \u00a0", "\u3164"])
def test_a_key_that_cannot_be_seen_is_refused(key):
    for make in (write_job, request):
        with pytest.raises(FsmInputError, match=r"^key: is empty"):
            make(key=key)


def test_a_byte_order_mark_before_a_list_is_ignored(service, store):
    jobs = '\ufeff[{"property_id": 7, "job": {}, "key": "PM-7"}]'

    FsmCreateJobsOperator(task_id="task", jobs=jobs).execute(context_for(store))

    assert len(service.jobs) == 1


def test_keys_that_look_the_same_are_duplicates_in_one_list(service, store):
    first = {"property_id": 7, "job": {"notes": "a"}, "key": "PM-7"}
    respelled = {**first, "key": "PM\u20117"}

    outcomes = FsmCreateJobsOperator(task_id="task", jobs=[first, respelled]).execute(
        context_for(store)
    )
    with pytest.raises(FsmInputError) as refused:
        FsmCreateJobsOperator(task_id="task", jobs=[first, {**respelled, "property_id": 8}])

    assert statuses(outcomes) == ["created", "created"]
    assert len(service.jobs) == 1
    assert str(refused.value) == "jobs[1].key: 'PM\u20117' is the key of jobs[0], another job"


@pytest.mark.parametrize("store", ["in a database"], indirect=True)
def test_what_the_version_before_has_stored_of_ordinary_keys_is_found_again(store):
    """The ids are those that it gave them."""
    ids = {
        "PM-7": "ea1223700a57da810ac8b00a45b5d618",
        "a  b": "2a22662541974ea74f81e8bd6e7cdd91",
        "~!@#$%^&*()_+": "a4d1f30198d25eb8f5b1406c7728bb84",
        "x" * 300: "d24923841d98dcd5a081ba3b99596483",
    }

    for key in ids:
        write_job(key=key).execute(context_for(store))

    assert {key: row["id"] for key, row in store.rows.items()} == ids
