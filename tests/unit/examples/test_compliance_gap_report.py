"""The report of gaps: the interval, the rule, and what a portfolio lacks."""

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
    def test_the_lower_bound_is_of_the_interval_and_the_upper_is_not(self):
        forms = [
            completed(1, "2023-12-31T23:59:59.999Z", "1"),
            completed(2, "2024-01-01T00:00:00Z", "2"),
            completed(3, "2026-02-28T23:59:59.999Z", "3"),
            completed(4, "2026-03-01T00:00:00Z", "4"),
        ]

        checks, unreadable = gaps.checks_per_property(iter(forms), DAY, NAME)

        assert gaps.interval_for(DAY) == (
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2026, 3, 1, tzinfo=UTC),
        )
        assert checks == {"2": [forms[1]], "3": [forms[2]]}
        assert unreadable == []

    def test_the_checks_are_in_the_order_of_time_whatever_the_order_of_the_listing(self):
        forms = [
            completed(1, "2026-01-10T00:00:00Z"),
            completed(2, "2026-02-10T00:00:00Z"),
            completed(3, "2025-12-10T00:00:00Z"),
            completed(4, "2026-02-20T00:00:00Z", name="Job Sign-off"),
        ]

        for order in (forms, forms[::-1]):
            checks, _ = gaps.checks_per_property(iter(order), DAY, NAME)
            assert [form.id for form in checks["7"]] == [3, 1, 2]

    def test_a_form_that_is_listed_twice_or_done_twice_on_a_day_is_one_check(self):
        forms = [
            completed(1, "2025-01-10T00:00:00Z"),
            completed(2, "2026-01-10T08:00:00Z"),
            completed(2, "2026-01-10T08:00:00Z"),
            completed(3, "2026-01-10T09:00:00Z"),
        ]

        checks, _ = gaps.checks_per_property(forms, DAY, NAME)

        assert [form.id for form in checks["7"]] == [1, 3]

    def test_a_form_whose_time_or_property_is_unreadable_is_named(self):
        forms = [
            completed(1, "2026-01-10T00:00:00Z", None),
            completed(2, None),
            completed(3, None, name="Job Sign-off"),
        ]

        checks, unreadable = gaps.checks_per_property(forms, DAY, NAME)

        assert checks == {}
        assert unreadable == [1, 2]


class TestRule:
    """Regulation 36A, in force since 6 April 2018; the days are those of a person's reading."""

    @pytest.mark.parametrize(
        ("checks", "deadline"),
        [
            # One check: 12 months.
            (["2025-03-01"], "2026-03-01"),
            (["2024-02-29"], "2025-02-28"),
            (["2025-02-28"], "2026-02-28"),
            (["2025-12-31"], "2026-12-31"),
            # In the two months before the deadline: the deadline of the next year stays.
            (["2025-03-01", "2026-01-05"], "2027-03-01"),
            (["2025-03-01", "2026-01-01"], "2027-03-01"),
            (["2025-03-01", "2026-02-28"], "2027-03-01"),
            (["2025-03-01", "2026-03-01"], "2027-03-01"),
            (["2024-02-29", "2025-01-10"], "2026-02-28"),
            (["2024-04-30", "2025-02-28"], "2026-04-30"),
            # Earlier than that: it counts on its own day.
            (["2025-03-01", "2025-12-31"], "2026-12-31"),
            (["2025-03-01", "2025-09-01"], "2026-09-01"),
            # Late: the days are lost, but not those after it.
            (["2025-03-01", "2026-03-02"], "2027-03-02"),
            (["2025-03-01", "2026-06-15"], "2027-06-15"),
            # After an early one: the two months are those before the deadline that stays.
            (["2024-03-01", "2025-01-05", "2026-01-05"], "2027-03-01"),
            (["2024-03-01", "2025-01-05", "2025-12-20"], "2026-12-20"),
        ],
    )
    def test_the_deadline_after_checks(self, checks, deadline):
        days = [date.fromisoformat(check) for check in checks]

        assert gaps.deadline_after(days) == date.fromisoformat(deadline)

    def test_there_is_no_deadline_without_a_check(self):
        assert gaps.deadline_after([]) is None

    @pytest.mark.parametrize(
        ("day", "gap"),
        [
            ("2026-12-31", "valid"),
            ("2027-01-01", "due"),
            ("2027-03-01", "due"),
            ("2027-03-02", "overdue"),
        ],
    )
    def test_a_property_with_two_records_is_valid_until_the_later_deadline(self, day, gap):
        forms = [completed(1, "2025-03-01T12:00:00Z"), completed(2, "2026-01-05T12:00:00Z")]

        row = gaps.judge({"propertyID": "7"}, forms, date.fromisoformat(day))

        assert (row["gap"], row["due"], row["formID"]) == (gap, "2027-03-01", 2)


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

        row = gaps.judge({"propertyID": "7"}, [form], DAY)

        assert (row["gap"], row["due"], row["formID"]) == (gap, due, 1)

    def test_a_property_without_a_record_is_missing_and_the_report_says_what_is_never_listed(self):
        portfolio = gaps.parse_portfolio(PORTFOLIO.read_text())

        rows = gaps.find_gaps(portfolio, {}, DAY)

        states = [(row["propertyID"], row["gap"]) for row in rows]
        assert states == [
            ("7", "missing"),
            ("12", "missing"),
            ("31", "missing"),
            ("44", "missing"),
        ]
        assert gaps.as_csv(rows[:1]) == (
            "propertyID,address,gap,due,formID,remark\n"
            '7,"7 Mill Lane, Leeds",missing,,,none in 26 months; legacy forms are not listed\n'
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
