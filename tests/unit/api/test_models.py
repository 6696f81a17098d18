"""What a record makes of its values.

That it has the fields of the specification is in testing/test_conformance.py.
"""

from __future__ import annotations

import pytest

from fsm_provider.api.models import Form, Job, Webhook

SECRET = "whsec-canary"
FORM = {"id": 121, "formPDFURL": "https://files.example.com/121.pdf?signature=canary"}
WEBHOOK = {"id": 131, "targetURL": "https://hooks.example.com/canary", "signingSecret": SECRET}


@pytest.mark.parametrize(
    ("model", "name", "given", "written"),
    [
        (Job, "id", "17", 17),
        (Job, "propertyID", "17", 17),
        (Job, "jobType", "17", 17),
        (Job, "serviceReminderInstance1ID", "17", 17),
        (Form, "propertyID", 17, "17"),
        (Form, "createdByID", 17, "17"),
        (Form, "createdOnDateTime", "2026-01-31T08:00:00.678Z", "2026-01-31T08:00:00.678000Z"),
        (Form, "newField", {"deep": [1, None]}, {"deep": [1, None]}),
    ],
)
def test_a_value_of_either_type_gets_the_specified_one_and_an_unknown_field_is_kept(
    model, name, given, written
):
    record = model.model_validate({"id": 0, name: given})

    assert record.as_json()[name] == written
    assert model.model_validate(record.as_json()) == record


def test_an_attribute_by_the_services_name_leads_to_its_own():
    form = Form.model_validate({"id": 1, "newField": 2})

    hint = r"^formPDFURL is the service's name: here it is form_pdf_url$"
    with pytest.raises(AttributeError, match=hint):
        _ = form.formPDFURL
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = form.nothing
    assert form.newField == 2


@pytest.mark.parametrize("secret", [SECRET, {"value": SECRET}, [SECRET]])
def test_the_signing_secret_shows_in_no_dump_and_no_repr(secret):
    webhook = Webhook.model_validate({**WEBHOOK, "signingSecret": secret})

    shown = [
        repr(webhook),
        str(webhook),
        repr([webhook]),
        webhook.as_json(),
        webhook.model_dump(),
        webhook.model_dump_json(),
        webhook.model_dump(mode="json", by_alias=True),
    ]

    assert SECRET not in str(shown)
    assert webhook.signing_secret is not None
    assert webhook.signing_secret.get_secret_value() == str(secret)


@pytest.mark.parametrize("name", ["signing_secret", "signingsecret", "secrets", "webhook"])
def test_a_secret_that_comes_under_another_name_is_not_in_the_json(name):
    webhook = Webhook.model_validate({**WEBHOOK, name: {"signingSecret": SECRET}})

    assert SECRET not in str(webhook.as_json())


@pytest.mark.parametrize(("model", "record"), [(Form, FORM), (Webhook, WEBHOOK)])
def test_a_url_that_may_be_signed_is_not_in_the_repr(model, record):
    read = model.model_validate(record)

    assert "canary" not in repr(read)
    assert "canary" not in str(read)
    assert "canary" not in repr([read])
