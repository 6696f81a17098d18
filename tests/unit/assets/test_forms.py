"""An asset of completed forms as a DAG file names it, and the forms that a run takes from its events."""

import json
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from fsm_provider.assets.forms import completed_forms, forms_from_events
from tests.capabilities import SHARED_STREAMS

AT = datetime(2026, 1, 31, 8, tzinfo=UTC)


def kwargs_of(**arguments):
    SHARED_STREAMS.require()
    (watcher,) = completed_forms("records", **arguments).watchers
    classpath, kwargs = watcher.trigger.serialize()
    assert classpath == "fsm_provider.triggers.forms.FsmFormEventTrigger"
    return kwargs


def test_an_asset_has_its_own_address_and_one_watcher():
    SHARED_STREAMS.require()
    asset = completed_forms("gas safety/records", fsm_conn_id="fsm_east")

    assert asset.uri == "fsm://fsm_east/forms/gas%20safety%2Frecords"
    assert [watcher.name for watcher in asset.watchers] == ["gas safety/records"]


def test_the_watcher_is_described_by_plain_json_and_the_same_at_each_parsing():
    arguments = {
        "start_from": datetime(2026, 1, 31, 8, tzinfo=UTC),
        "look_back": timedelta(minutes=5),
        "property_id": 7,
        "form_names": ("Gas", "Sign-off"),
        "query_params": {"includeDrafts": "true"},
    }
    kwargs = kwargs_of(**arguments)

    assert json.loads(json.dumps(kwargs)) == kwargs == kwargs_of(**arguments)
    assert kwargs == {
        "asset_name": "records",
        "fsm_conn_id": "fsm_default",
        "filters": {"property_id": "7"},
        "form_names": ["Gas", "Sign-off"],
        "query_params": {"includeDrafts": "true"},
        "poll_interval": 60.0,
        "start_from": "2026-01-31T08:00:00+00:00",
        "look_back": 300.0,
        "reconcile_every": 3600.0,
        "reconcile_back": 604800.0,
    }


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"poll_interval": 0.5}, "poll_interval"),
        ({"poll_interval": float("nan")}, "poll_interval"),
        ({"look_back": timedelta(seconds=-1)}, "look_back"),
        ({"reconcile_every": timedelta(0)}, "reconcile_every"),
        ({"reconcile_back": timedelta(days=-1)}, "reconcile_back"),
        ({"start_from": "tomorrow"}, "start_from"),
        ({"property_id": ""}, "property_id"),
        ({"form_names": [""]}, "form_names"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(argument, field):
    SHARED_STREAMS.require()
    with pytest.raises(ValueError, match=rf"^{field}: "):
        completed_forms("records", **argument)


def test_before_airflow_3_3_it_says_what_it_cannot_promise(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.triggers.shared_stream", None)

    with pytest.raises(AirflowOptionalProviderFeatureException, match=r"needs Airflow 3\.3 or newer"):
        completed_forms("records")


@pytest.mark.parametrize("uri", ["fsm://", "fsm:///forms", "fsm://fsm_default", "fsm://fsm_default/"])
def test_an_address_without_a_connection_or_a_subject_is_refused(uri):
    SHARED_STREAMS.require()
    from airflow.sdk import Asset

    with pytest.raises(ValueError, match="should be fsm://<connection>/"):
        Asset(name="records", uri=uri)


def reference(identifier, updated="2026-01-31T08:00:00Z"):
    return {"id": identifier, "lastUpdatedOnDateTime": updated}


def event(*references, minute=0):
    extra = {"from_trigger": True, "payload": {"forms": list(references)}}
    return SimpleNamespace(timestamp=AT + timedelta(minutes=minute), extra=extra)


def test_the_forms_of_all_events_each_version_once_in_the_order_of_the_events():
    later = reference(1, "2026-01-31T09:00:00Z")
    events = {
        "east": [event(reference(2), later, minute=2), event(reference(1), reference(2), minute=1)],
        "west": [event(reference(3))],
    }

    assert forms_from_events(events) == [reference(3), reference(1), reference(2), later]


def test_an_event_that_stands_under_an_asset_and_an_alias_counts_once():
    one = event(reference(1))

    assert forms_from_events({"asset": [one], "alias": [one]}) == [reference(1)]


@pytest.mark.parametrize("extra", [{}, None, {"payload": None}, {"payload": "x"}, {"payload": {"forms": 3}}])
def test_events_of_others_are_passed_over(extra):
    other = SimpleNamespace(timestamp=AT, extra=extra)

    assert forms_from_events({"a": [other], "b": [event(reference(1))]}) == [reference(1)]


def test_no_events_are_no_forms():
    assert forms_from_events({}) == []
