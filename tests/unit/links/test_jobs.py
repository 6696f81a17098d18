"""Where the link of a task that creates a job leads."""

import pytest

from fsm_provider.links.jobs import address_of


@pytest.mark.parametrize(
    ("job", "address"),
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
def test_it_leads_to_the_job_where_that_has_a_web_address(job, address):
    assert address_of(job) == address
