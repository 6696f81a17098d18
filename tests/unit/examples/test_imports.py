"""The example DAGs: light to import, and what they know of due lists and watermarks."""

from datetime import UTC, date, datetime, timedelta
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
REFUSED = () if ASSETS.is_there else ("gas_safety_forms", "forms_beside_webhooks")
"""Examples that Airflow 2 refuses to import."""
HEAD = "reference,propertyID,due,notes\n"


@LIGHT_PARSING.needed
def test_every_example_imports_without_an_http_library():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    modules = sorted(names - set(REFUSED))

    loaded = python(f"""
        import sys
        sys.path.append({str(EXAMPLES)!r})
        import {", ".join(modules)}
        print([name for name in ("requests", "urllib3", "aiohttp") if name in sys.modules])
    """)

    assert len(modules) >= 6
    assert loaded == "[]"


@pytest.fixture
def gas_safety():
    ASSETS.require()
    from example_dags import gas_safety_forms

    return gas_safety_forms


def test_two_examples_share_one_watcher(gas_safety):
    from example_dags import forms_beside_webhooks

    mine, theirs = forms_beside_webhooks.FORMS, gas_safety.gas_safety_forms().schedule

    assert (mine.name, mine.uri) == (theirs.name, theirs.uri)
    assert mine.watchers[0].trigger.serialize() == theirs.watchers[0].trigger.serialize()


class TestDueJobs:
    def test_takes_what_is_due_by_the_day(self):
        keys = [job["key"] for job in planned.due_jobs(LIST.read_text(), date(2026, 1, 6))]

        assert keys == [f"PM-2026-000{number}" for number in (1, 2, 3, 4)]

    def test_sends_the_cells_that_are_filled(self):
        first, second = planned.due_jobs(LIST.read_text(), date(2026, 1, 5))[:2]

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
        ("second", "said"),
        [('y"', r"row 1: has a line break: is a quote not closed\?"), ("y", "unexpected end of data")],
    )
    def test_a_quote_that_is_not_closed_makes_no_job_of_several_rows(self, second, said):
        text = HEAD + f'A,7,2026-01-05,"x\nB,8,2026-01-05,\nC,9,2026-01-05,{second}\n'

        with pytest.raises(AirflowFailException, match=said):
            planned.due_jobs(text, date.max)

    def test_optional_columns_may_be_missing_and_others_are_ignored(self):
        (job,) = planned.due_jobs("due,reference,engineer,propertyID\n 2026-01-05 , A ,Kim,7\n", date.max)

        assert job == {"key": "A", "property_id": "7", "job": {"customerReference": "A"}}

    @pytest.mark.parametrize("text", ["", HEAD])
    def test_a_list_without_rows_has_no_jobs(self, text):
        assert planned.due_jobs(text, date.max) == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("reference;propertyID;due\nA;7;2026-01-05\n", "row 1: there is no column reference, propertyID"),
            ("reference,propertyID\nA,7\n", "row 1: due: should be a date such as 2026-01-05, not None"),
            (HEAD + "A,7\n", "row 1: due: should be a date such as 2026-01-05, not None"),
            (HEAD + "A,7,2026-01-05,x,y\n", "row 1: has more cells than there are columns"),
            (HEAD + "A,,2026-01-05,\n", "row 1: propertyID: is empty"),
            (HEAD + "A,7,05/01/2026,\n", "row 1: due: should be a date such as 2026-01-05, not '05/01/2026'"),
            (HEAD + "A,7,2026-01-05,\n\nA ,8,2026-01-05,\n", "row 2: reference: is the same as in row 1"),
            (HEAD + 'A,7,2026-01-05,"ring\nB,7,2026-01-05,\n', "unexpected end of data"),
        ],
    )
    def test_names_the_row_and_the_column_of_a_mistake(self, text, message):
        with pytest.raises(AirflowFailException) as caught:
            planned.due_jobs(text, date.max)

        assert message in str(caught.value)

    def test_lists_all_mistakes_also_of_rows_that_are_not_due(self):
        text = f"{HEAD}A,,2026-01-05,\nB,7,soon,\nC,7,2999-01-05,\nC,7,2999-01-05,\n"

        with pytest.raises(AirflowFailException) as caught:
            planned.due_jobs(text, date(2026, 1, 6))

        lines = str(caught.value).splitlines()
        assert [line.partition(": ")[0] for line in lines] == ["row 1", "row 4", "row 2"]


class TestReport:
    @pytest.fixture
    def report(self):
        return planned.planned_maintenance_jobs().get_task("report").python_callable

    def outcome(self, outcome, **more):
        known = {"key": "PM-1", "propertyID": "7", "jobID": None, "by": None, "error": None}
        return {**known, "outcome": outcome, **more}

    def test_shows_each_row_and_counts_the_outcomes(self, report, capsys):
        by = {"dag_id": "d", "run_id": "manual__1", "task_id": "create_jobs", "map_index": -1}
        outcomes = [
            self.outcome("created", jobID=1001),
            self.outcome("existing", jobID=1002, by=by),
            self.outcome("uncertain", error="it may exist", by=by),
        ]

        assert report(outcomes) == {"created": 1, "existing": 1, "uncertain": 1}
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["reference", "property", "outcome", "job", "remark"],
            ["PM-1", "7", "created", "1001"],
            ["PM-1", "7", "existing", "1002", "by", "create_jobs", "of", "run", "manual__1"],
            ["PM-1", "7", "uncertain", "it", "may", "exist"],
        ]

    def test_a_creation_that_died_has_no_outcomes(self, report):
        assert report(None) == {}


class TestRoutes:
    def test_each_form_goes_to_the_one_task_of_its_name(self, gas_safety):
        forms = [{"id": 1, "formName": "Warning Notice"}, {"id": 2, "formName": "Gas Safety Record"}]

        taken = {task: gas_safety.forms_for(task, forms) for task in gas_safety.routes_for(forms)}

        assert taken == {"warn_office": forms[:1], "file_records": forms[1:]}

    def test_no_task_runs_without_a_form(self, gas_safety):
        assert gas_safety.routes_for([]) == []

    def test_every_route_is_a_task(self, gas_safety):
        assert set(gas_safety.ROUTES.values()) <= set(gas_safety.gas_safety_forms().task_ids)


class TestSinceWatermark:
    @staticmethod
    def form(number, updated="2026-01-05T08:00:00.000Z"):
        return {"id": number, "lastUpdatedOnDateTime": updated}

    def test_what_was_seen_is_left_out_and_a_changed_form_is_not(self):
        changed = self.form(1, "2026-01-05T09:00:00.000Z")
        seen = since.next_state({}, "2026-01-05T08:30:00+00:00", [self.form(1), self.form(2)])["seen"]

        assert since.unseen([self.form(1), changed, self.form(3), self.form(2)], seen) == [
            changed,
            self.form(3),
        ]

    def test_a_form_on_two_pages_is_one(self):
        assert since.unseen([self.form(1), self.form(2), self.form(1)], []) == [self.form(1), self.form(2)]

    def test_the_listing_counts_from_its_start_and_not_from_what_it_holds(self):
        future = self.form(1, "2031-01-01T00:00:00.000Z")

        assert since.next_state({}, "2026-01-05T08:30:00+00:00", [future])["listed_at"] == (
            "2026-01-05T08:30:00+00:00"
        )

    def test_a_run_that_is_cleared_takes_nothing_back(self):
        noted = since.next_state({}, "2026-01-05T09:00:00+00:00", [self.form(2)])

        assert since.next_state(noted, "2026-01-05T08:00:00.5+00:00", [self.form(1)]) == noted
        assert since.next_state(noted, "2026-01-05T10:00:00+00:00", [])["seen"] == []

    def test_only_a_run_that_has_done_its_work_moves_the_time(self, monkeypatch):
        stored = {}
        fake = SimpleNamespace(get=stored.get, set=stored.__setitem__)
        monkeypatch.setattr(since, "Variable", fake)
        tasks = since.forms_since_watermark()
        begin, commit = (tasks.get_task(name).python_callable for name in ("begin", "commit"))
        look_back = timedelta(hours=2)
        before = datetime.now(UTC)

        first, again = begin({"look_back_hours": 2}), begin({"look_back_hours": 2})
        commit(again["now"], [])
        next_one = begin({"look_back_hours": 2})
        commit(first["now"], [self.form(1)])  # a cleared run

        assert before - look_back <= datetime.fromisoformat(first["since"]) <= datetime.now(UTC) - look_back
        assert datetime.fromisoformat(next_one["since"]) == datetime.fromisoformat(again["now"]) - look_back
        assert begin({"look_back_hours": 2})["since"] == next_one["since"]


@pytest.mark.parametrize(
    "name", ["gas_safety_pdf_delivery", "invoice_on_signoff", "remedial_from_warning_notice"]
)
def test_a_cleared_run_moves_no_time_back(monkeypatch, name):
    module, stored = import_module(f"example_dags.{name}"), {}
    monkeypatch.setattr(module, "Variable", SimpleNamespace(get=stored.get, set=stored.__setitem__))
    dag = getattr(module, name)()
    begin, commit = (dag.get_task(task).python_callable for task in ("begin", "commit"))

    first, later = begin({"look_back_hours": 1}), begin({"look_back_hours": 1})
    for now in (later["now"], first["now"]):
        commit(now)

    assert stored == {name: later["now"]}
    since_then = datetime.fromisoformat(begin({"look_back_hours": 1})["since"])
    assert since_then == datetime.fromisoformat(later["now"]) - timedelta(hours=1)
