"""References of forms."""

from datetime import UTC, datetime, timedelta

from fsm_provider.api.form_filter import format_time

DAY = datetime(2026, 1, 31, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)


def reference(identifier, *, job=21, place="7", name="Gas", created=NOON, updated=None):
    return {
        "id": identifier,
        "formName": name,
        "propertyID": place,
        "jobID": job,
        "createdOnDateTime": format_time(created),
        "lastUpdatedOnDateTime": format_time(updated or created),
    }
