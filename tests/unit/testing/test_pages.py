"""The jobs: pages for browsers, without the token, and JSON for others."""

import pytest
import requests

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def visit(url, headers=BROWSER):
    return requests.get(url, headers=headers, timeout=5)


def test_the_link_of_a_job_leads_a_browser_to_its_page(serve):
    call = serve(base_path="/api")
    job = call.create_job(7, {"customerReference": "PO-1"}).json()
    call.service.add_form(job_id=job["id"], form_name="Warning Notice")
    call.service.add_form(job_id=job["id"] + 1, form_name="Another job's")

    page = visit(job["links"]["self"])

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert f"<h1>Job {job['id']}</h1>" in page.text
    assert "<tr><th>customerReference<td>PO-1" in page.text
    assert "Warning Notice" in page.text
    assert "Another job" not in page.text


def test_the_jobs_are_listed_with_a_link_to_each(call):
    call.service.add_job(7, customerReference="PO-1")

    page = visit(f"{call.service.base_url}/jobs")

    assert '<a href="jobs/1001">Job 1001</a> PO-1' in page.text


def test_nothing_of_a_record_is_html(call):
    evil = "<script>alert('\"&')</script>"
    body = {"notes": evil, "customerReference": evil, evil: [evil]}
    job = call.create_job(7, body).json()
    call.service.add_form(job_id=job["id"], form_name=evil)
    other = call.service.add_job(8, id='"><script>', status={"x": evil})

    for path in ("", f"/{job['id']}"):
        page = visit(f"{call.service.base_url}/jobs{path}")
        assert page.status_code == 200
        assert "<script" not in page.text
        assert "&lt;script&gt;" in page.text
    assert visit(other["links"]["self"]).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": "application/json"},
        {"Accept": "*/*"},
        {"Accept": None},
    ],
)
def test_what_is_no_browser_needs_the_token_and_gets_the_job(call, headers):
    job = call.service.add_job(7)
    job = call.service.update_job(job["id"], status="Completed")
    path = f"/jobs/{job['id']}"

    assert call("GET", path, headers=headers).json() == job
    assert call("GET", "/jobs", headers=headers).json()["data"] == [job]
    assert call("GET", "/jobs/7").status_code == 404
    assert call("GET", "/jobs/x").status_code == 404
    assert visit(call.service.base_url + path, headers).status_code == 401
    assert visit(f"{call.service.base_url}/jobs", headers).status_code == 401
