"""The example DAGs: light to import, and what they know of due lists and watermarks."""

from datetime import date, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from example_dags import forms_since_watermark as since
from example_dags import planned_maintenance_jobs as planned
from tests.capabilities import ASSETS, LIGHT_PARSING
from tests.unit.test_imports import python

EXAMPLES = Path(planned.__file__).parent
LIST = EXAMPLES / "data" / "planned_maintenance.csv"
REFUSED = () if ASSETS.is_there else ("gas_safety_forms",)
"""Examples that Airflow 2 refuses to import."""
HEAD = "reference,propertyID,due,notes\n"


@LIGHT_PARSING.needed
def test_every_example_imports_without_an_http_library():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    modules = sorted(names.difference(REFUSED))
    listed = ", ".join(modules)

    loaded = python(f"""
        import sys
        sys.path.append({str(EXAMPLES)!r})
        import {listed}
        print([name for name in ("requests", "urllib3", "aiohttp") if name in sys.modules])
    """)

    assert len(modules) >= 6
    assert loaded == "[]"


@pytest.fixture
def gas_safety():
    ASSETS.require()
    from example_dags import gas_safety_forms

    return gas_safety_forms


class TestDueJobs:
    def test_sends_the_cells_that_are_filled(self):
        jobs = planned.due_jobs(LIST.read_text(), date(2026, 1, 5))
        first, second, *_ = jobs

        assert first == {
            "key": "PM-2026-0001",
            "property_id": "7",
            "job": {
                "customerReference": "PM-2026-0001",
                "notes": "Annual gas safety check",
                "priority": "Important",
                "quotedAmount": "120.00",
            },
        }
        assert second["job"].keys() == {"customerReference", "notes", "quotedAmount"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "reference;propertyID;due\nA;7;2026-01-05\n",
                "row 1: there is no column reference, propertyID",
            ),
            (
                "reference,propertyID\nA,7\n",
                "row 1: due: should be a date such as 2026-01-05, not None",
            ),
            (HEAD + "A,,2026-01-05,\n", "row 1 (key 'A'): propertyID: is empty"),
            (
                HEAD + "A,7,05/01/2026,\n",
                "row 1: due: should be a date such as 2026-01-05, not '05/01/2026'",
            ),
            (HEAD + 'A,7,2026-01-05,"ring\nB,7,2026-01-05,\n', "unexpected end of data"),
        ],
    )
    def test_names_the_row_and_the_column_of_a_mistake(self, text, message):
        with pytest.raises(AirflowFailException) as caught:
            planned.due_jobs(text, date.max)

        assert message in str(caught.value)


class TestRoutes:
    def test_each_form_goes_to_the_one_task_of_its_name(self, gas_safety):
        forms = [
            {"id": 1, "formName": "Warning Notice"},
            {"id": 2, "formName": "Gas Safety Record"},
        ]

        assert gas_safety.routes_for(forms) == ["file_records", "warn_office"]
        assert gas_safety.forms_for("warn_office", forms) == forms[:1]
        assert gas_safety.forms_for("file_records", forms) == forms[1:]

    def test_every_route_is_a_task(self, gas_safety):
        tasks = gas_safety.gas_safety_forms().task_ids

        assert set(gas_safety.ROUTES.values()) <= set(tasks)


class TestSinceWatermark:
    @staticmethod
    def form(number, updated="2026-01-05T08:00:00.000Z"):
        return {"id": number, "lastUpdatedOnDateTime": updated}

    def test_what_was_seen_is_left_out_and_a_changed_form_is_not(self):
        first = self.form(1)
        changed = self.form(1, "2026-01-05T09:00:00.000Z")
        second = self.form(2)
        third = self.form(3)
        state = since.next_state({}, "2026-01-05T08:30:00+00:00", [first, second])

        unseen = since.unseen([first, changed, third, second], state["seen"])

        assert unseen == [changed, third]

    def test_a_run_that_is_cleared_takes_nothing_back(self):
        noted = since.next_state({}, "2026-01-05T09:00:00+00:00", [self.form(2)])

        assert since.next_state(noted, "2026-01-05T08:00:00.5+00:00", [self.form(1)]) == noted
        assert since.next_state(noted, "2026-01-05T10:00:00+00:00", [])["seen"] == []


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("forms_since_watermark", [[]]),
        ("gas_safety_pdf_delivery", []),
    ],
)
def test_a_run_moves_the_time_once_it_has_done_its_work_and_a_cleared_one_not_back(
    monkeypatch, name, forms
):
    module = import_module(f"example_dags.{name}")
    stored = {}
    variables = SimpleNamespace(get=stored.get, set=stored.__setitem__)
    monkeypatch.setattr(module, "Variable", variables)
    dag = getattr(module, name)()
    begin = dag.get_task("begin").python_callable
    commit = dag.get_task("commit").python_callable
    params = {"look_back_hours": 1}

    first = begin(params)
    later = begin(params)
    commit(later["now"], *forms)
    commit(first["now"], *forms)
    next_run = begin(params)

    assert listed_from(first) == an_hour_before(first["now"])
    assert listed_from(later) <= an_hour_before(later["now"])
    assert listed_from(next_run) == an_hour_before(later["now"])


def listed_from(begun):
    return datetime.fromisoformat(begun["since"])


def an_hour_before(time):
    return datetime.fromisoformat(time) - timedelta(hours=1)
