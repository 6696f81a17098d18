"""The page in Airflow's UI, behind a socket, on databases, with Airflow's login and permissions."""

import asyncio
import html
import json
import re
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote, unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fsm_provider.plugins.plugin import FsmPlugin
from fsm_provider.polling import admin
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import OWNER, RESET
from fsm_provider.state.schema import LEDGER
from fsm_provider.storage import uri_for_records
from fsm_provider.testing.server import BackgroundServer, listen
from tests.capabilities import PAGE, STATE_STORE
from tests.unit.conftest import TOKEN
from tests.unit.disputed import dags_that_define
from tests.unit.polling.test_watermarks import store_with
from tests.unit.state_store import DatabaseStore, context_for
from tests.unit.writes.operators import write_job
from tests.unit.writes.test_command import (
    AirflowStore,
    leave_uncertain,
    let_leases_end,
    rows,
    states,
)

PAGE.require()
KEY = "PM-7\nb%20"
MARKUP = "<b>{{ 7 * 7 }}</b>\"'><script>alert(1)</script>"
USERS = {"jo": "USER", "vera": "VIEWER"}
FOUND = {"is_made": "true", "job_id": "4711", "why": "looked it up"}
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
UNCERTAIN = ["uncertain"]


@pytest.fixture(scope="module")
def server():
    """The page, mounted as Airflow mounts it, with Airflow's tables."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.utils.db import initdb

    initdb()
    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    create_auth_manager()
    (mounted,) = (app for app in FsmPlugin.fastapi_apps if app["name"] == "fsm page")
    app = Starlette(routes=[Mount(mounted["url_prefix"], mounted["app"])])
    listener = listen(0)
    running = BackgroundServer(app, listener, asyncio.Event(), http="auto", ws="auto")
    running.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/fsm-page/"
    running.stop()
    patch.undo()


class Browser:
    """What a user's browser sends."""

    def __init__(self, url, name=None):
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        self.url = url
        self.cookies = {}
        if name:
            user = SimpleAuthManagerUser(username=name, role=USERS[name])
            self.cookies["_token"] = get_auth_manager().generate_jwt(user)

    def get(self, path="", **headers):
        with self._client() as client:
            return client.get(self.url + path, headers=headers)

    def post(self, path, data, **headers):
        data = {"conn_id": "fsm_default", **data}
        with self._client() as client:
            return client.post(self.url + path, data=data, headers=headers or SAME_ORIGIN)

    def _client(self):
        return httpx.Client(cookies=self.cookies, trust_env=False, timeout=60)

    def forms(self):
        """Return the page's forms: their addresses and hidden fields."""
        form = r'method="post" action="(\w+)">(.*?)</form>'
        hidden = r'<input type="hidden" name="(.*?)" value="(.*?)">'
        forms = []
        for action, text in re.findall(form, self.get().text, re.DOTALL):
            fields = {name: html.unescape(value) for name, value in re.findall(hidden, text)}
            forms.append((action, fields))
        return forms


@pytest.fixture
def browser(server):
    return partial(Browser, server)


@pytest.fixture(params=["in a database", pytest.param("in Airflow", marks=STATE_STORE.needed)])
def store(request, service, connection_extra, connect, monkeypatch, tmp_path, server):
    """A ledger in which PM-7 is uncertain."""
    if request.param == "in Airflow":
        made = AirflowStore()
        made.set_state("failed")
    else:
        made = DatabaseStore(tmp_path)
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", made.connection)
        connection_extra["state_conn_id"] = made.CONN_ID
    connect(service, max_retries=0, web_url="https://app.example.com/jobs/{id}")
    leave_uncertain(service, made, write_job(key=KEY, job={"customerReference": MARKUP}))
    yield made
    if request.param == "in Airflow":
        made.remove()
    else:
        made.engine.dispose()


in_a_database = pytest.mark.parametrize("store", ["in a database"], indirect=True)


@pytest.fixture
def asset(store):
    """An asset that starts a DAG, and whose watcher has failed; a new one; deliveries."""
    from airflow.models.asset import AssetActive, AssetEvent, AssetModel
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    from fsm_provider.plugins.webhooks.events import REFUSED

    with create_session() as session:
        forms = AssetModel(name=f"gas{MARKUP}", uri="fsm://fsm_default/forms/gas", group="asset")
        new = AssetModel(name="new", uri="fsm://fsm_default/forms/new", group="asset")
        jobs = AssetModel(name="jobs", uri=uri_for_records("fsm_default", "jobs"), group="asset")
        session.add_all([forms, new, jobs, DagBundleModel(name="bundle")])
        session.flush()
        session.add_all(map(AssetActive.for_asset, (forms, new, jobs)))
        session.add(DagModel(dag_id="reports", bundle_name="bundle", fileloc="reports.py"))
        session.flush()
        session.add(Scheduled(asset_id=forms.id, dag_id="reports"))
        for number in range(3):
            session.add(AssetEvent(asset_id=jobs.id, extra={"delivery": f"{number}"}))
    watched, _ = admin.watched_assets()
    progress = {
        "floor": 0.0,
        "watermark": datetime(2026, 1, 6, 7, 12, 40, tzinfo=UTC).timestamp(),
        "days": {f"{datetime.now(UTC):%F}": 1203},
    }
    store_with(watched, watched.prefix + WATERMARK, progress)
    status = {"polled_at": 1.7e9, "failing_since": 1.8e9, "error": MARKUP, "backlog": 17}
    store_with(watched, OWNER, ["id", 1.0, status])
    REFUSED.clear()
    REFUSED["fsm_default/jobs"]["signature"] = 5

    def stored(key):
        key = watched.prefix + key
        return admin.read_stored([watched], [key]).get((watched.asset_id, key))

    yield stored
    with create_session() as session:
        for table in (AssetEvent, Scheduled, AssetActive, AssetModel, DagModel, DagBundleModel):
            session.query(table).delete()


def test_what_is_uncertain_is_seen_and_settled_and_the_task_returns_it(store, browser, service):
    jo = browser("jo")
    seen = jo.get()
    assert seen.status_code == 200
    assert "../dags/dag/runs/run/tasks/task" in seen.text
    assert 'href="https://app.example.com"' in seen.text
    ((action, given),) = jo.forms()
    assert (action, unquote(given["key"])) == ("settle", KEY)
    answer = jo.post(action, {**given, **FOUND, "owner": "another"})
    assert answer.status_code == 409
    assert "has changed meanwhile" in answer.text

    settled = jo.post(action, {**given, **FOUND})

    assert (settled.status_code, settled.headers["location"]) == (303, "./?conn_id=fsm_default")
    among = " among the newest 600 entries of Airflow&#39;s store"
    if isinstance(store, DatabaseStore):
        among = ""
    assert f"Nothing is uncertain{among}." in jo.get().text
    found = jo.get("?q=4711").text
    assert "Done, id 4711." in found
    assert "Done: 1 in 30 days" in found
    again = write_job(key=KEY, job={"customerReference": MARKUP})
    returned = again.execute(context_for(store, cleared=1))
    assert returned["id"] == 4711
    assert len(service.requests) == 1


@in_a_database
def test_what_does_not_exist_is_settled_after_its_lease_with_the_users_name(store, browser):
    jo = browser("jo")
    ((action, given),) = jo.forms()
    answer = {**given, "is_made": "false", "job_id": "", "why": "asked Sam"}

    early = jo.post(action, answer)
    assert early.status_code == 409
    assert "a request may be on its way" in early.text
    let_leases_end(store)
    assert jo.post(action, answer).status_code == 303

    (row,) = rows(store)
    assert row.state == "free"
    assert re.fullmatch(r"not created, says jo at .* UTC: asked Sam", row.note)


@in_a_database
def test_a_watcher_is_seen_and_set_back_and_deliveries_are_counted(asset, browser):
    jo = browser("jo")
    shown = jo.get().text
    for text in (
        "2026-01-06 07:12:40",
        "Backlog: 17",
        "Fails since 2027-01-15",
        "Forms: 1203 in 30 days",
    ):
        assert text in shown
    assert re.search(r"fsm_default/jobs: 3 accepted.*\n?signature: 5", shown)
    (given,) = (fields for action, fields in jo.forms() if action == "begin")

    refused = jo.post("begin", {**given, "since": "2999-01-01T00:00"})
    assert refused.status_code == 409
    assert asset(RESET) is None
    given["since"] = "2026-01-05T08:00"
    assert jo.post("begin", given).status_code == 303

    assert asset(RESET)["time"] == datetime(2026, 1, 5, 8, tzinfo=UTC).timestamp()
    given["asset_id"] = "77"
    assert jo.post("begin", given).status_code == 403


@in_a_database
def test_an_asset_that_two_dags_define_differently_is_shown_with_both(
    store, browser, tmp_path, monkeypatch
):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    jo = browser("jo")
    is_authorized = SimpleAuthManager.is_authorized_dag

    def hides_boiler(self, *, details=None, **others):
        if details is not None and details.id == "boiler":
            return False
        return is_authorized(self, details=details, **others)

    folder = tmp_path / "dags"
    folder.mkdir()
    with dags_that_define(folder, monkeypatch) as read:
        read(gas="Gas Safety", boiler="Boiler")
        shown = jo.get().text
        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", hides_boiler)
        hidden = jo.get().text

    assert "DAGs define this asset differently: boiler, gas. Only the definition" in shown
    assert "DAGs define this asset differently. Only the definition" in hidden
    assert "boiler" not in hidden


@in_a_database
def test_a_viewer_looks_and_nobody_sees_or_changes_what_is_not_for_them(
    asset, store, browser, monkeypatch
):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    jo = browser("jo")
    vera = browser("vera")
    (action, given), (_, of_asset) = jo.forms()
    is_authorized = SimpleAuthManager.is_authorized_dag
    hidden_methods = set()

    def is_for_them(self, *, method, details=None, **others):
        is_of_ours = details is not None and details.id in ("dag", "reports")
        if is_of_ours and method in hidden_methods:
            return False
        return is_authorized(self, method=method, details=details, **others)

    def assert_refused(user):
        settled = user.post(action, {**given, **FOUND})
        begun = user.post("begin", {**of_asset, "since": "2026-01-05"})
        for answer in (settled, begun):
            assert (answer.status_code, answer.text) == (403, "Forbidden")

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", is_for_them)
    assert "PM-7" in vera.get().text
    assert vera.forms() == []
    assert_refused(vera)
    hidden_methods.add("PUT")
    assert "PM-7" in jo.get().text
    assert jo.forms() == []
    assert_refused(jo)
    hidden_methods.add("GET")
    assert "PM-7" not in jo.get().text
    assert jo.get("?q=PM-7").text.count("PM-7") == 1
    assert_refused(jo)
    assert states(store) == UNCERTAIN
    assert asset(RESET) is None


@in_a_database
def test_without_login_there_is_nothing_but_the_way_to_it(store, browser):
    nobody = browser()
    _, given = browser("jo").forms()[0]

    answer = nobody.get()
    assert (answer.status_code, answer.text) == (401, "Unauthorized")
    led = nobody.get(Accept="text/html")
    assert (led.status_code, led.headers["location"][:27]) == (307, "../api/v2/auth/login?next=h")
    assert nobody.post("settle", {**given, **FOUND}).status_code == 401
    nobody.cookies["_token"] = "forged"
    assert nobody.get().status_code in (401, 403)
    assert states(store) == UNCERTAIN


@in_a_database
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Referer": "http://127.0.0.1/fsm-page/"},
        {"Authorization": "Bearer x", "Origin": "https://evil.example"},
    ],
)
def test_what_another_site_has_a_browser_send_is_refused(store, browser, headers):
    jo = browser("jo")
    ((action, given),) = jo.forms()

    assert jo.post(action, {**given, **FOUND}, **headers).status_code in (401, 403)
    assert jo.get(f"{action}?key=PM-7").status_code == 405
    assert states(store) == UNCERTAIN
    origin = jo.url.removesuffix("/fsm-page/")
    assert jo.post(action, {**given, **FOUND}, Origin=origin).status_code == 303


@in_a_database
def test_values_are_escaped_and_no_script_of_others_runs(asset, store, browser):
    jo = browser("jo")

    refused = jo.post("settle", {"key": MARKUP, "owner": "x", **FOUND})
    for answer in (jo.get(), jo.get(f"?q={quote(MARKUP)}"), refused):
        assert html.escape("<b>{{ 7 * 7 }}</b>") in answer.text
        for bad in ("<b>", "alert(1)</script>", TOKEN):
            assert bad not in answer.text
        policy = answer.headers["content-security-policy"]
        nonce = re.search(r"script-src 'nonce-(.*?)'", policy)[1]
        assert policy.startswith("default-src 'none'; ")
        tags = re.findall(r"<(?:script|style|link|img|iframe)\b.*?>", answer.text)
        assert tags == [f'<style nonce="{nonce}">', f'<script nonce="{nonce}">']


@in_a_database
def test_what_is_not_there_or_not_meant_is_said_in_a_word(store, browser):
    jo = browser("jo")
    for query in (
        "?conn_id=other",
        f"?conn_id={quote(MARKUP)}",
        "other",
        "../fsm-page/x/../../etc",
    ):
        answer = jo.get(query)
        assert (answer.status_code, answer.text) == (404, "Not Found")
    for data in ({"key": "PM-7"}, {**FOUND, "conn_id": "other"}):
        answer = jo.post("settle", data)
        assert (answer.status_code, answer.text) == (400, "Bad Request")
    ((action, given),) = jo.forms()
    answer = {**given, **FOUND}
    assert jo.post(action, {**answer, "conn_id": "other"}).text == "Not Found"
    for job_id, says in (("", "is a job: give its id"), ("47.11", "should be an integer")):
        refused = jo.post(action, {**answer, "job_id": job_id})
        assert refused.status_code == 409
        assert says in refused.text


@in_a_database
def test_what_another_airflow_has_sent_is_not_for_the_users_of_this_one(store, browser):
    jo = browser("jo")
    ((action, given),) = jo.forms()
    with store.engine.begin() as connection:
        connection.execute(LEDGER.update().values(airflow="north"))

    assert "Nothing is uncertain." in jo.get().text
    assert "Nothing was found." in jo.get(f"?q={quote(KEY)}").text
    assert jo.post(action, {**given, **FOUND}).status_code == 403


def test_where_there_is_no_ledger_yet_it_says_so_and_makes_none(
    service, connect, connection_extra, browser, monkeypatch, tmp_path
):
    file = tmp_path / "none.db"
    connection = {"conn_type": "sqlite", "host": str(file)}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))
    connection_extra["state_conn_id"] = "ledger"
    connect(service)

    shown = browser("jo").get()

    assert shown.status_code == 200
    assert "There is no ledger yet at connection &#39;ledger&#39;: the first task" in shown.text
    assert "No DAG uses an asset" in shown.text
    assert str(file) not in shown.text
    assert not file.exists()


def test_a_page_costs_at_most_ten_queries(asset, browser):
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    queries = []
    jo = browser("jo")
    jo.get()

    def note(connection, cursor, statement, *_):
        queries.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert jo.get("?q=PM-7").status_code == 200
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    asked = [query for query in queries if not query.startswith(("PRAGMA", "BEGIN"))]
    assert 4 < len(asked) <= 10, asked


@in_a_database
def test_where_the_ledger_is_away_the_other_sections_stand(asset, browser, monkeypatch):
    password = "pa55word"
    jo = browser("jo")
    action, given = jo.forms()[0]
    away = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(away))

    shown = jo.get()
    settled = jo.post(action, {**given, **FOUND})

    assert settled.status_code == 409
    assert "This cannot be stored now." in settled.text
    assert shown.status_code == 200
    assert shown.text.count("This cannot be read now.") == 1
    assert "Backlog: " in shown.text or "No DAG uses" in shown.text
    assert "fsm_default/jobs: 3 accepted" in shown.text
    assert password not in shown.text
