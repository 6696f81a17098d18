"""An asset of completed forms in a DAG file, and the forms that a run takes from its events."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from fsm_provider.api.errors import FsmInputError
from fsm_provider.assets import forms
from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.polling.watcher_config import WatcherConfig
from fsm_provider.triggers.forms import FsmFormConfigurationTrigger
from tests.capabilities import ASSETS

AT = datetime(
    2026,
    1,
    31,
    8,
    tzinfo=UTC,
)


@pytest.fixture(autouse=True)
def nothing_defined_yet(monkeypatch):
    """The assets that other tests of this process have defined."""
    monkeypatch.setattr(forms, "_defined", {})


def kwargs_for(**arguments):
    ASSETS.require()
    _, configuration = completed_forms("records", **arguments).watchers
    classpath, kwargs = configuration.trigger.serialize()
    assert classpath == "fsm_provider.triggers.forms.FsmFormConfigurationTrigger"
    return kwargs


def test_an_asset_has_its_uri_and_a_trigger_that_does_not_depend_on_its_configuration():
    ASSETS.require()
    for arguments in ({}, {"poll_interval": 5}, {"property_id": 7, "start_from": "beginning"}):
        asset = completed_forms("gas safety/records", fsm_conn_id="fsm_east", **arguments)
        watcher, configuration = asset.watchers

        assert asset.uri == "fsm://fsm_east/forms/gas%20safety%2Frecords"
        assert configuration.name == "gas safety/records configuration"
        assert watcher.name == "gas safety/records"
        assert watcher.trigger.serialize() == (
            "fsm_provider.triggers.forms.FsmFormEventTrigger",
            {"asset_name": "gas safety/records", "fsm_conn_id": "fsm_east"},
        )


def test_the_configuration_is_one_text_and_the_same_at_each_parsing():
    arguments = {
        "start_from": datetime(
            2026,
            1,
            31,
            8,
            tzinfo=UTC,
        ),
        "late_by": timedelta(days=5),
        "property_id": 7,
        "form_names": ("Gas", "Sign-off"),
        "query_params": {"includeDrafts": "true"},
    }
    kwargs = kwargs_for(**arguments)
    watch = {
        "format": 1,
        "asset_name": "records",
        "fsm_conn_id": "fsm_default",
        "filters": {},
        "property_ids": ["7"],
        "job_ids": [],
        "form_names": ["Gas", "Sign-off"],
        "query_params": {"includeDrafts": "true"},
        "poll_interval": 60.0,
        "start_from": "2026-01-31T08:00:00+00:00",
        "late_by": 432000.0,
        "max_forms_per_event": 100,
    }

    assert kwargs == kwargs_for(**arguments)
    assert {name: json.loads(text) for name, text in kwargs.items()} == {"watch": watch}
    assert FsmFormConfigurationTrigger(**kwargs).serialize()[1] == kwargs


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"property_id": [8, "0007", 8]}, (["7", "8"], [])),
        ({"job_id": ("b", "a"), "property_id": 7}, (["7"], ["a", "b"])),
    ],
)
def test_properties_and_jobs_may_be_lists_in_any_spelling(arguments, places):
    kwargs = kwargs_for(**arguments)
    watch = json.loads(kwargs["watch"])

    assert (watch["property_ids"], watch["job_ids"]) == places
    assert json.loads(json.dumps(kwargs)) == kwargs


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"poll_interval": 0.5}, "poll_interval"),
        ({"poll_interval": float("nan")}, "poll_interval"),
        ({"poll_interval": float("inf")}, "poll_interval"),
        ({"poll_interval": "abc"}, "poll_interval"),
        ({"poll_interval": 10**400}, "poll_interval"),
        ({"late_by": "an hour"}, "late_by"),
        ({"late_by": timedelta(minutes=59)}, "late_by"),
        ({"late_by": timedelta.max}, "late_by"),
        ({"start_from": "tomorrow"}, "start_from"),
        ({"max_forms_per_event": 0}, "max_forms_per_event"),
        ({"max_forms_per_event": 1001}, "max_forms_per_event"),
        ({"property_id": []}, "property_id"),
        ({"property_id": [7, ""]}, "property_id"),
        ({"job_id": [7, None]}, "job_id"),
        ({"form_names": [""]}, "form_names"),
        ({"form_names": []}, "form_names"),
        ({"form_names": ""}, "form_names"),
        ({"name": "Gas \ud83d"}, "name"),
        ({"name": ""}, "name"),
        ({"fsm_conn_id": None}, "fsm_conn_id"),
        ({"query_params": ["since"]}, "query_params"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(argument, field):
    ASSETS.require()
    with pytest.raises(FsmInputError, match=rf"^{field}: "):
        completed_forms(**{"name": "records"} | argument)


def test_query_parameters_are_the_same_question_in_the_dag_and_in_an_event(caplog):
    ASSETS.require()
    asset = completed_forms("parameters", query_params={7: ("a", 1), "flag": True})
    _, kwargs = asset.watchers[1].trigger.serialize()
    question = WatcherConfig.from_json(json.loads(kwargs["watch"])).question()
    payload = {"asset_name": "parameters", "question": question, "forms": []}

    polled = SimpleNamespace(timestamp=AT, extra={"payload": payload})
    forms_from_events({"asset": [polled]})

    assert question["query_params"] == {"7": ["a", 1], "flag": True}
    assert caplog.messages == []


def test_on_airflow_2_it_says_which_version_it_needs(monkeypatch):
    monkeypatch.setattr(forms, "AIRFLOW_V_3_0_PLUS", False)

    with pytest.raises(
        AirflowOptionalProviderFeatureException, match=r"needs Airflow 3\.0 or newer"
    ):
        completed_forms("records")


@pytest.mark.parametrize(
    "uri", ["fsm://", "fsm:///forms", "fsm://fsm_default", "fsm://fsm_default/"]
)
def test_a_uri_without_a_connection_or_a_path_is_refused(uri):
    ASSETS.require()
    from airflow.sdk import Asset

    with pytest.raises(ValueError, match="should be fsm://<connection>/"):
        Asset(name="records", uri=uri)


def reference(identifier, updated="2026-01-31T08:00:00Z", **fields):
    return {
        "id": identifier,
        "lastUpdatedOnDateTime": updated,
        "fsm_conn_id": "fsm_default",
        **fields,
    }


def event(*references, minute=0):
    payload = {
        "asset_name": "any",
        "question": {"fsm_conn_id": "fsm_default"},
        "forms": list(references),
    }
    extra = {"from_trigger": True, "payload": payload}
    return SimpleNamespace(timestamp=AT + timedelta(minutes=minute), extra=extra)


def test_the_forms_of_all_events_each_version_once_in_the_order_of_the_events():
    later = reference(1, "2026-01-31T09:00:00Z")
    first = event(reference(3))
    second = event(reference(1), reference(2), minute=1)
    third = event(reference(2), later, minute=2)
    events = {"east": [third, second], "west": [first]}

    assert forms_from_events(events) == [reference(3), reference(1), reference(2), later]


@pytest.mark.parametrize(
    "updated",
    ["2026-01-31T08:00:00+00:00", "2026-01-31T08:00:00.000Z", "2026-01-31T09:00:00+01:00"],
)
def test_the_same_time_written_otherwise_is_one_version_and_its_last_reference_counts(updated):
    moved = reference(1, updated, jobID=22)
    first = event(reference(1, jobID=21), reference(2), minute=1)
    second = event(moved, minute=2)

    assert forms_from_events({"asset": [first, second]}) == [moved, reference(2)]


@pytest.mark.parametrize("updated", [None, "yesterday", ["2026"]])
def test_without_a_readable_time_each_different_reference_of_a_form_is_kept(updated):
    before = reference(1, updated, jobID=21)
    after = reference(1, updated, jobID=22)
    another = reference(2, updated)
    first = event(before, another, minute=1)
    second = event(dict(before), after, minute=2)

    assert forms_from_events({"asset": [first, second]}) == [before, another, after]


def test_the_same_form_of_two_accounts_is_two_forms_and_each_names_its_connection():
    events = {}
    for conn_id in ("north", "south"):
        events[conn_id] = [event(reference(1))]
        payload = events[conn_id][0].extra["payload"]
        payload["asset_name"] = conn_id
        payload["question"] = {"fsm_conn_id": conn_id}

    forms = forms_from_events(events)

    assert forms == [reference(1, fsm_conn_id="north"), reference(1, fsm_conn_id="south")]


def test_an_event_of_an_asset_and_an_alias_counts_once_and_none_is_no_form():
    emitted = event(reference(1))

    assert forms_from_events({"asset": [emitted], "alias": [emitted]}) == [reference(1)]
    assert forms_from_events({}) == []


@pytest.mark.parametrize(
    "extra",
    [
        {},
        None,
        {"payload": None},
        {"payload": "x"},
        {"payload": {"forms": 3}},
        {"payload": {"forms": [reference(2), "x"]}},
        {"payload": {"question": "x", "forms": []}},
        {"payload": {"question": {}, "forms": [], "asset_name": ["x"]}},
    ],
)
def test_events_of_other_assets_are_ignored(extra, caplog):
    other = SimpleNamespace(timestamp=AT, extra=extra)

    events = {"a": [other], "b": [event(reference(1))]}

    assert forms_from_events(events) == [reference(1)]
    assert caplog.messages == []


def event_of(asset_name, property_id):
    config = WatcherConfig.from_json(json.loads(kwargs_for(property_id=property_id)["watch"]))
    payload = {"asset_name": asset_name, "question": config.question(), "forms": []}
    return SimpleNamespace(timestamp=AT, extra={"payload": payload})


@pytest.mark.parametrize("polled", [7, 8])
def test_an_event_of_one_of_two_definitions_in_one_process_logs_an_error_that_names_both(
    caplog, polled
):
    ASSETS.require()
    name = f"defined_once_{polled}"
    completed_forms(name, property_id=7)
    completed_forms(name, property_id=7, poll_interval=5)
    forms_from_events({"asset": [event_of(name, 7)]})
    assert caplog.messages == []

    completed_forms(name, property_id=8)
    forms_from_events({"asset": [event_of(name, polled)]})

    (error,) = caplog.messages
    assert "'property_ids': ['7']" in error
    assert "'property_ids': ['8']" in error
