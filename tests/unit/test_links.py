"""URLs of jobs."""

import pytest

from fsm_provider.api.settings import job_page_url
from fsm_provider.links import job_url
from tests.capabilities import ASSETS, PAGE
from tests.unit.writes.operators import write_job


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
        (
            {"links": {"self": "https://fsm.example.com/jobs/1001"}},
            "https://fsm.example.com/jobs/1001",
        ),
        ({"links": {"self": "https://a.example", "web": None}}, "https://a.example"),
        ({"links": {"self": "https://a.example", "web": "https://b.example"}}, "https://b.example"),
    ],
)
def test_it_leads_to_the_job_if_that_has_a_url(job, url):
    assert job_url(job) == url


@pytest.mark.parametrize(
    ("web_url", "url"),
    [
        ("https://x.example.com/jobs/{id}", "https://x.example.com/jobs/7"),
        ("https://x.example.com/#/{propertyID}/{id}", "https://x.example.com/#/a%2Fb%20%7Bid%7D/7"),
        ("https://x.example.com/?a={id}&b={id}", "https://x.example.com/?a=7&b=7"),
    ],
)
def test_the_page_of_a_job_is_the_setting_for_its_ids(web_url, url):
    assert job_page_url(web_url, 7, "a/b {id}") == url


def link_of(operator, name):
    (link,) = (link for link in operator.operator_extra_links if link.name == name)
    return link


def test_the_link_of_a_write_leads_to_what_is_uncertain_of_its_connection():
    operator = write_job(fsm_conn_id="fsm/two")
    link = link_of(operator, "Uncertain")

    expected = "fsm-page/?conn_id=fsm%2Ftwo" if PAGE.is_there else ""
    assert link.get_link(operator, ti_key=None) == expected


@ASSETS.needed
def test_a_task_that_made_no_job_has_no_link_to_one_and_asks_airflow_for_none():
    operator = write_job()
    link = link_of(operator, "Job")

    assert link.get_link(operator, ti_key=None) == ""
