"""The example DAGs: light to import, and what they know of lists, claims and watermarks."""

import csv
import resource
from datetime import date
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from example_dags import forms_since_watermark as since
from example_dags import planned_maintenance_jobs as planned
from tests.capabilities import ASSETS, LIGHT_PARSING
from tests.unit.state_store import MemoryStateStore
from tests.unit.test_imports import python

EXAMPLES = Path(planned.__file__).parent
LIST = EXAMPLES / "data" / "planned_maintenance.csv"
REFUSED = () if ASSETS.is_there else ("gas_safety_forms", "forms_beside_webhooks")
"""Examples that Airflow 2 refuses to import."""
HEAD = "reference,propertyID,due,notes\n"


@LIGHT_PARSING.needed
def test_every_example_imports_without_an_http_library():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    modules = [f"example_dags.{name}" for name in names - set(REFUSED)]

    loaded = python(f"""
        import sys, {", ".join(modules)}
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


class TestReadDueList:
    def test_reads_the_list_that_ships(self):
        rows = planned.parse_due_list(LIST.read_text())

        assert len(rows) == 6
        assert rows[1]["reference"] == "PM-2026-0002"
        assert rows[1]["due"] == date(2026, 1, 5)
        assert rows[1]["notes"] == "Smoke alarms, all floors"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "line 1: there is no column reference"),
            ("reference;propertyID;due\n", "line 1: there is no column reference"),
            ("reference,propertyID\n", "line 1: there is no column due"),
            (HEAD + "A,7,2026-01-05\n", "line 2: does not have as many columns as line 1"),
            (HEAD + "A,7,2026-01-05,x,y\n", "line 2: does not have as many columns as line 1"),
            (HEAD + "A,,2026-01-05,\n", "line 2, column propertyID: is empty"),
            (HEAD + "A,7,05/01/2026,\n", "line 2, column due: '05/01/2026' is not a date like 2026-01-05"),
            (HEAD + "A,7,2026-01-05,\n\nA ,8,2026-01-05,\n", "line 4, column reference: A is on line 2 too"),
            (HEAD + 'A,7,2026-01-05,"ring\nB,7,2026-01-05,\n', "after line 1: unexpected end of data"),
        ],
    )
    def test_names_the_line_and_column_of_a_mistake(self, text, message):
        with pytest.raises(ValueError, match="line") as caught:
            planned.parse_due_list(text)

        assert str(caught.value) == message


class TestChoose:
    def test_takes_what_is_due_by_the_day(self):
        rows = planned.parse_due_list(LIST.read_text())

        jobs, held = planned.choose(rows, date(2026, 1, 6), {})

        assert [job["key"] for job in jobs] == [f"PM-2026-000{number}" for number in (1, 2, 3, 4)]
        assert held == []

    def test_sends_the_cells_that_are_filled(self):
        rows = planned.parse_due_list(LIST.read_text())

        (first, second), _ = planned.choose(rows[:2], date(2026, 1, 5), {})

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

    def test_leaves_what_others_have_taken_and_shows_what_needs_a_check(self):
        rows = planned.parse_due_list(HEAD + "A,7,2026-01-05,\nB,8,2026-01-05,\nC,9,2026-01-06,\n")
        taken = {
            name: {"outcome": outcome, "remark": f"see run {name}"}
            for name, outcome in {"A": "created", "B": "uncertain", "C": "claimed"}.items()
        }

        jobs, held = planned.choose(rows, date(2026, 1, 5), taken)

        assert jobs == []
        assert [(row["reference"], row["outcome"], row["remark"]) for row in held] == [
            ("B", "uncertain", "see run B")
        ]


class TestClaims:
    RUN = "manual__2026-01-05T06:00:00.123456+00:00_x~y"

    @pytest.fixture
    def folder(self, storage):
        return storage / "due list.csv.outcomes"

    def write(self, folder, run_id, suffix, **outcomes):
        rows = [planned.report_row(name, "7", outcome) for name, outcome in outcomes.items()]
        planned.write_rows(planned.file_for(folder, run_id, suffix), rows)

    def test_a_claim_without_an_outcome_is_another_runs(self, folder):
        self.write(folder, self.RUN, planned.CLAIMS, A="claimed")

        assert planned.taken_from(folder, "other") == {
            "A": {"outcome": "claimed", "remark": f"see run {self.RUN}"}
        }
        assert planned.taken_from(folder, self.RUN) == {}

    def test_what_certainly_does_not_exist_is_free_again(self, folder):
        outcomes = {
            "A": "created",
            "B": "rejected",
            "C": "uncertain",
            "D": "not_created",
            "E": "unknown",
            "F": "existing",
        }
        self.write(folder, self.RUN, planned.CLAIMS, **dict.fromkeys(outcomes, "claimed"))
        self.write(folder, self.RUN, planned.OUTCOMES, **outcomes)

        assert planned.taken_from(folder, "other").keys() == {"A", "C", "E", "F"}

    def test_a_conflict_may_be_with_a_job_that_exists(self, folder):
        rows = [
            planned.report_row(
                name, "7", "rejected", remark=f"POST /properties/409/jobs returned HTTP {status}"
            )
            for name, status in {"A": 409, "B": 400}.items()
        ]
        planned.write_rows(planned.file_for(folder, self.RUN, planned.CLAIMS), rows)

        assert planned.taken_from(folder, "other").keys() == {"A"}

    def test_what_a_run_has_created_it_does_not_send_again(self, folder):
        outcomes = {"A": "created", "B": "rejected", "C": "uncertain", "D": "unknown"}
        self.write(folder, self.RUN, planned.CLAIMS, **dict.fromkeys(outcomes, "claimed"))
        self.write(folder, self.RUN, planned.OUTCOMES, **outcomes)

        assert planned.taken_from(folder, self.RUN).keys() == {"A"}

    def test_a_run_made_again_under_its_id_is_another(self, folder):
        claimant = self.claimant()
        self.write(folder, claimant, planned.CLAIMS, A="claimed")

        taken = planned.taken_from(folder, self.claimant())

        assert taken == {"A": {"outcome": "claimed", "remark": f"see run {claimant}"}}
        assert claimant.startswith(f"{self.RUN}~")

    def test_a_run_that_is_cleared_is_the_same(self, folder):
        store = MemoryStateStore()
        self.write(folder, self.claimant(store), planned.CLAIMS, A="claimed")

        assert planned.taken_from(folder, self.claimant(store)) == {}

    def claimant(self, store=None):
        return planned.claimant_for({"run_id": self.RUN, "task_state_store": store or MemoryStateStore()})

    def test_what_one_run_frees_another_may_hold(self, folder):
        for run_id, outcome in {"a": "rejected", "b": "created", "c": "rejected"}.items():
            self.write(folder, run_id, planned.CLAIMS, A="claimed")
            self.write(folder, run_id, planned.OUTCOMES, A=outcome)

        assert planned.taken_from(folder, "other")["A"]["remark"] == "see run b"

    def test_a_cleared_run_forgets_nothing(self, folder):
        self.write(folder, self.RUN, planned.CLAIMS, A="claimed", B="claimed")
        self.write(folder, self.RUN, planned.CLAIMS, B="claimed", C="claimed")

        assert planned.taken_from(folder, "other").keys() == {"A", "B", "C"}

    @pytest.mark.parametrize("later", ["claimed", "not_created", "rejected", "uncertain", "unknown"])
    def test_nothing_replaces_what_was_created(self, folder, later):
        file = planned.file_for(folder, self.RUN, planned.OUTCOMES)
        planned.write_rows(
            file, [planned.report_row("A", "7", "created", jobID=77), planned.report_row("B", "7")]
        )

        self.write(folder, self.RUN, planned.OUTCOMES, A=later, B=later)

        rows = {row["reference"]: (row["outcome"], row["jobID"]) for row in planned.read_rows(file)}
        assert rows == {"A": ("created", "77"), "B": (later, "")}

    @pytest.mark.parametrize("damaged", [planned.CLAIMS, planned.OUTCOMES])
    def test_half_a_file_frees_nothing_that_was_created(self, folder, damaged):
        self.write(folder, self.RUN, planned.CLAIMS, A="claimed", B="claimed")
        self.write(folder, self.RUN, planned.OUTCOMES, A="created", B="created")
        file = planned.file_for(folder, self.RUN, damaged)
        complete = file.read_text()

        for length in range(0, len(complete), 5):
            file.write_text(complete[:length])
            assert planned.taken_from(folder, "other").keys() >= {"A", "B"}

    def test_a_disk_that_is_full_takes_no_claim_away(self, tmp_path):
        folder = planned.ObjectStoragePath(str(tmp_path))
        self.write(folder, self.RUN, planned.CLAIMS, A="claimed")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                self.write(folder, self.RUN, planned.CLAIMS, B="claimed", C="claimed")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert planned.taken_from(folder, "other").keys() == {"A"}

    def test_the_files_are_csv(self, folder):
        self.write(folder, "run", planned.OUTCOMES, **{"A, B": "created"})

        (row,) = csv.DictReader(planned.file_for(folder, "run", planned.OUTCOMES).read_text().splitlines())
        assert row == {
            **dict.fromkeys(planned.FILE_COLUMNS, ""),
            "reference": "A, B",
            "propertyID": "7",
            "outcome": "created",
        }


class TestTasks:
    """What the tasks themselves do, called as Airflow calls them."""

    JOBS = tuple({"key": name, "property_id": "7", "job": {"quotedAmount": "9.50"}} for name in "AB")

    @pytest.fixture
    def run(self, tmp_path):
        params = {"due_list": str(tmp_path / "due.csv"), "outcomes": "", "dry_run": False}
        tasks = planned.planned_maintenance_jobs()

        def call(task_id, claimant="run~1", **arguments):
            return tasks.get_task(task_id).python_callable(claimant=claimant, params=params, **arguments)

        return call

    @pytest.fixture
    def claim(self, tmp_path):
        folder = planned.ObjectStoragePath(str(tmp_path / "due.csv.outcomes"))

        def call(claimant="run~1"):
            return planned.claim(list(self.JOBS), folder, claimant)

        return call

    def write(self, run, *outcomes, claimant="run~1"):
        outcomes = [
            {"key": name, "propertyID": "7", "outcome": outcome, "jobID": job, "link": None, "error": None}
            for name, outcome, job in outcomes
        ]
        rows = run("write_outcomes", claimant, jobs=list(self.JOBS), outcomes=outcomes)
        return {row["reference"]: (row["outcome"], row["jobID"]) for row in rows}

    def test_what_an_earlier_attempt_created_counts_as_created(self, run, claim):
        claim()

        assert self.write(run, ("A", "existing", 77), ("B", "unknown", None)) == {
            "A": ("created", "77"),
            "B": ("unknown", ""),
        }

    def test_an_attempt_that_knows_less_takes_nothing_back(self, run, claim):
        claim()
        self.write(run, ("A", "created", 77))

        written = self.write(run, ("A", "not_created", None), ("B", "not_created", None))

        assert written == {"A": ("created", "77"), "B": ("not_created", "")}

    def test_a_cleared_run_claims_what_it_has_not_created(self, run, claim):
        claim()
        self.write(run, ("A", "created", 77), ("B", "rejected", None))

        assert [job["key"] for job in claim()] == ["B"]
        assert self.write(run) == {"A": ("created", "77"), "B": ("claimed", "")}

    def test_what_another_run_has_claimed_since_is_not_claimed(self, run, claim):
        claim("other~1")
        self.write(run, ("A", "created", 77), ("B", "uncertain", None), claimant="other~1")

        with pytest.raises(AirflowFailException, match="claimed already: B: clear choose_rows too"):
            claim()

    def test_a_creation_that_died_leaves_its_claims(self, run, claim):
        claim()

        rows = run("write_outcomes", jobs=list(self.JOBS), outcomes=None)

        assert {row["outcome"] for row in rows} == {"claimed"}
        assert {row["remark"] for row in rows} == {"see the log of create_jobs"}


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
