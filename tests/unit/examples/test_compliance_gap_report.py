"""The report of gaps: intervals, what a portfolio lacks, and its page."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from example_dags import compliance_gap_report as gaps
from fsm_provider.api import Form

PORTFOLIO = Path(gaps.__file__).parent / "data" / "portfolio.csv"
DAY = date(2026, 3, 1)
NAME = "Gas Safety Record"


def completed(number, created, property_id="7", name=NAME):
    return Form.model_validate(
        {
            "id": number,
            "createdOnDateTime": created,
            "propertyID": property_id,
            "formName": name,
        }
    )


class TestIntervals:
    def test_a_range_has_its_day_in_each_month(self):
        assert gaps.report_days(DAY, DAY) == [DAY]
        assert gaps.report_days(DAY, date(2026, 2, 1)) == []
        assert gaps.report_days(date(2025, 12, 31), date(2026, 3, 30)) == [
            date(2025, 12, 31),
            date(2026, 1, 31),
            date(2026, 2, 28),
        ]

    def test_the_lower_bound_is_of_the_interval_and_the_upper_is_not(self):
        forms = [
            completed(1, "2025-01-31T23:59:59.999Z", "1"),
            completed(2, "2025-02-01T00:00:00Z", "2"),
            completed(3, "2026-02-28T23:59:59.999Z", "3"),
            completed(4, "2026-03-01T00:00:00Z", "4"),
        ]

        latest, unreadable = gaps.latest_per_property(iter(forms), [DAY], NAME)

        assert gaps.interval_for(DAY) == (
            datetime(2025, 2, 1, tzinfo=UTC),
            datetime(2026, 3, 1, tzinfo=UTC),
        )
        assert latest == {DAY: {"2": forms[1], "3": forms[2]}}
        assert unreadable == []

    def test_one_pass_gives_each_day_its_latest_whatever_the_order(self):
        forms = [
            completed(1, "2026-01-10T00:00:00Z"),
            completed(2, "2026-02-10T00:00:00Z"),
            completed(3, "2025-12-10T00:00:00Z"),
            completed(4, "2026-02-20T00:00:00Z", name="Job Sign-off"),
        ]
        days = gaps.report_days(date(2026, 1, 1), DAY)

        for order in (forms, forms[::-1]):
            latest, _ = gaps.latest_per_property(iter(order), days, NAME)
            form_ids = [latest[day]["7"].id for day in days]
            assert form_ids == [3, 1, 2]

    def test_a_form_whose_time_or_property_is_unreadable_is_named(self):
        forms = [
            completed(1, "2026-01-10T00:00:00Z", None),
            completed(2, None),
            completed(3, None, name="Job Sign-off"),
        ]

        latest, unreadable = gaps.latest_per_property(forms, [DAY], NAME)

        assert latest == {DAY: {}}
        assert unreadable == forms[:2]


class TestGaps:
    @pytest.mark.parametrize(
        ("created", "gap", "due"),
        [
            ("2025-02-28T12:00:00Z", "overdue", "2026-02-28"),
            ("2025-03-01T12:00:00Z", "due", "2026-03-01"),
            ("2025-04-30T23:59:59Z", "due", "2026-04-30"),
        ],
    )
    def test_a_record_is_due_a_year_on(self, created, gap, due):
        form = completed(1, created)

        row = gaps.judge({"propertyID": "7"}, form, DAY)

        assert (row["gap"], row["due"], row["formID"]) == (gap, due, 1)

    def test_a_property_without_a_record_is_missing_and_the_report_says_what_is_never_listed(self):
        portfolio = gaps.parse_portfolio(PORTFOLIO.read_text())

        rows = gaps.gaps_for(gaps.judge_all(portfolio, {}, DAY))

        states = [(row["propertyID"], row["gap"]) for row in rows]
        assert states == [
            ("7", "missing"),
            ("12", "missing"),
            ("31", "missing"),
            ("44", "missing"),
        ]
        assert gaps.as_csv(rows[:1]) == (
            "propertyID,address,gap,due,formID,remark\n"
            '7,"7 Mill Lane, Leeds",missing,,,none in 13 months; legacy forms are not listed\n'
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("propertyID,address\n7,a\n ,b\n", "line 3: has no propertyID"),
            ("property;address\n7;a\n", "line 2: has no propertyID"),
            ("propertyID,address\n7,a\n8,b\n7 ,c\n", "line 4: property 7 is there twice"),
        ],
    )
    def test_a_portfolio_names_its_mistake(self, text, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            gaps.parse_portfolio(text)
