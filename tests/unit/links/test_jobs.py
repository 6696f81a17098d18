"""The link of a task that creates a job."""

import pytest

from fsm_provider.api.models import job_url


@pytest.mark.parametrize(
    ("job", "url"),
    [
        (None, None),
        ("x", None),
        ({}, None),
        ({"links": None}, None),
        ({"links": "x"}, None),
        ({"links": {"self": 5}}, None),
        ({"links": {"self": "javascript:alert(1)"}}, None),
        ({"links": {"self": "https://fsm.example.com/jobs/1001"}}, "https://fsm.example.com/jobs/1001"),
    ],
)
def test_it_leads_to_the_job_if_that_has_a_url(job, url):
    assert job_url(job) == url
