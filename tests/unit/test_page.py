"""The page in Airflow's UI, behind a socket, on databases, with Airflow's login and permissions."""

import asyncio
import html
import json
import os
import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote, unquote
from uuid import uuid4

import httpx
import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.secrets import BaseSecretsBackend
from starlette.applications import Starlette
from starlette.routing import Mount

from fsm_provider.plugins.plugin import FsmPlugin
from fsm_provider.polling import admin
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.waiting import Waiting
from fsm_provider.polling.watcher import CONFIGURATION, OWNER, RESET
from fsm_provider.state.schema import LEDGER
from fsm_provider.storage import uri_for_records
from fsm_provider.testing import faults
from fsm_provider.testing.server import BackgroundServer, listen
from fsm_provider.writes import admin as ledger_admin
from fsm_provider.writes.ledger import id_for
from tests.capabilities import PAGE, STATE_STORE
from tests.unit.conftest import TOKEN
from tests.unit.disputed import break_import, dags_that_define, process_files
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
FOUND = {"outcome": "exists_with_id", "job_id": "4711", "why": "looked it up"}
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


def words(answer):
    """Give the text of a page as it is read: without tags, each blank once."""
    text = re.sub(r"<(style|script)\b.*?</\1>", "", answer.text, flags=re.DOTALL)
    in_a_line = re.sub(r"</?(bdi|a|time|small)\b[^>]*>", "", text)
    without_tags = re.sub(r"<[^>]*>", " ", in_a_line)
    return " ".join(html.unescape(without_tags).split())


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


def test_a_key_is_searched_for_in_any_spelling_that_looks_the_same(store, browser):
    seen = browser("jo").get(f"?q={quote(KEY.replace('-', chr(0x2011)))}").text

    assert "No write was found" not in seen
    assert seen.count(html.escape(KEY)) > browser("jo").get("?q=other").text.count(html.escape(KEY))


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
        dag = DagModel(dag_id="reports", bundle_name="bundle", fileloc="reports.py")
        dag.relative_fileloc = "reports.py"
        dag.is_stale = False
        dag.is_paused = False
        session.add(dag)
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
    store_with(watched, watched.read_prefix() + WATERMARK, progress)
    status = {"polled_at": 1.7e9, "failing_since": 1.8e9, "error": MARKUP, "backlog": 17}
    store_with(watched, OWNER, ["id", 1.0, status])
    REFUSED.clear()
    REFUSED["fsm_default/jobs"]["signature"] = 5

    def stored(key):
        key = watched.read_prefix() + key
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
    answer = jo.post(action, {**given, **FOUND, "outcome": "does_not_exist"})
    assert answer.status_code == 409
    assert "what does not exist has no id, and 4711 was given: leave it out, or say " in answer.text

    settled = jo.post(action, {**given, **FOUND})

    assert settled.status_code == 303
    confirmed = words(jo.get(settled.headers["location"]))
    assert (
        "PM-7 b%20 is settled. Clear task task of run run of DAG dag: it returns 4711" in confirmed
    )
    among = " among the newest 600 entries of Airflow's store"
    if isinstance(store, DatabaseStore):
        among = ""
    assert f"Nothing is uncertain{among}." in confirmed
    assert re.search(r"The last 1 .* says jo at .* UTC: looked it up", confirmed)
    found = words(jo.get("?q=4711"))
    assert "Done, id 4711." in found
    assert "Done: 1 in 30 days, 1 today" in found
    again = write_job(key=KEY, job={"customerReference": MARKUP})
    returned = again.execute(context_for(store, cleared=1))
    assert returned["id"] == 4711
    assert len(service.requests) == 1


def test_what_people_settled_is_shown_however_much_was_written_since(store, browser, monkeypatch):
    monkeypatch.setattr("fsm_provider.plugins.page.reading.MAX_NOTED", 1)
    jo = browser("jo")
    ((action, given),) = jo.forms()
    assert jo.post(action, {**given, **FOUND}).status_code == 303

    write_job(key="PM-8").execute(context_for(store))

    assert "says jo at" in words(jo.get())


@pytest.mark.parametrize("store", ["in Airflow"], indirect=True)
@STATE_STORE.needed
def test_the_newest_rows_of_airflows_store_are_shown_however_far_apart_their_ids(store, browser):
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.utils.session import create_session

    later = AirflowStore("later")
    with create_session() as session:
        session.add(Stored(id=10_000, dag_run_id=later._run_id, **later._task, key="x", value="1"))

    shown = words(browser("jo").get())

    assert "1 jobs or other writes to look up" in shown


@in_a_database
def test_the_services_own_page_is_not_taken_for_that_of_a_property(
    store, browser, service, connect
):
    connect(service, max_retries=0, web_url="https://fsm7.example.com/jobs/{id}")

    shown = browser("jo").get().text

    assert (
        '<a target="_blank" rel="noreferrer" href="https://fsm7.example.com">The service' in shown
    )


def test_what_the_service_refused_counts_as_not_made(store, browser, service):
    service.fail("POST", "*", faults.Status(400))
    with pytest.raises(AirflowFailException):
        write_job(key="PM-8").execute(context_for(store))

    shown = words(browser("jo").get())

    assert "Sent, and may be sent again: 1 in 30 days, 1 today" in shown
    assert "Uncertain or on their way: 1 in 30 days, 1 today" in shown


@in_a_database
def test_what_does_not_exist_is_settled_after_its_lease_with_the_users_name(store, browser):
    jo = browser("jo")
    ((action, given),) = jo.forms()
    answer = {**given, "outcome": "does_not_exist", "why": "asked Sam"}

    early = jo.post(action, answer)
    assert early.status_code == 409
    assert "a request may be on its way" in early.text
    let_leases_end(store)
    settled = jo.post(action, answer)
    assert settled.status_code == 303
    confirmed = words(jo.get(settled.headers["location"]))
    assert "Clear task task of run run of DAG dag: it is sent again." in confirmed

    (row,) = rows(store)
    assert row.state == "free"
    assert re.fullmatch(r"not created, says jo at .* UTC: asked Sam", row.note)


@in_a_database
def test_a_watcher_is_seen_and_set_back_and_deliveries_are_counted(asset, browser):
    jo = browser("jo")
    shown = jo.get()
    assert 'title="2026-01-06 07:12:40 UTC"' in shown.text
    for text in (
        "Backlog: 17",
        "alert(1)</script>, at least since 15 Jan 2027, 08:00 UTC",
        "Forms: 1,203 in 30 days, 1,203 today",
        "1,203 forms passed on to Airflow today",
        "fsm_default/jobs 3 signature: 5",
    ):
        assert text in words(shown)
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
def test_what_the_receiver_counts_is_read_and_not_changed(asset):
    from fsm_provider.plugins.webhooks.events import REFUSED, count_deliveries

    (of_jobs,) = count_deliveries("fsm_default")
    REFUSED["fsm_default/jobs"]["headers"] += 1  # the receiver, while a page is made

    assert of_jobs.refused == {"signature": 5}
    assert list(REFUSED) == ["fsm_default/jobs"]


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
        shown = words(jo.get())
        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", hides_boiler)
        hidden = words(jo.get())

    for text in (shown, hidden):
        assert "Its DAGs define it differently, and only the definition that Airflow read" in text
    assert "Starts boiler, gas." in shown
    assert "Starts 2 DAGs." in hidden
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
    searched = jo.get("?q=PM-7")
    assert searched.text.count("PM-7") == 1
    assert "No write was found." in words(searched)
    assert "Nothing is uncertain." in words(searched)
    assert "0 jobs or other writes to look up" in words(searched)
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
def test_what_is_not_there_or_not_meant_is_refused_in_a_word_and_records_nothing(store, browser):
    jo = browser("jo")
    for query in ("other", "../fsm-page/x/../../etc"):
        answer = jo.get(query)
        assert (answer.status_code, answer.text) == (404, "Not Found")
    for data in ({"key": "PM-7"}, {**FOUND, "conn_id": "other"}):
        answer = jo.post("settle", data)
        assert (answer.status_code, answer.text) == (400, "Bad Request")
    for query in ("?page=0", "?waits=x", "?names=perhaps"):
        answer = jo.get(query)
        assert (answer.status_code, answer.text) == (400, "Bad Request")
    ((action, given),) = jo.forms()
    answer = {**given, **FOUND}
    assert jo.post(action, {**answer, "conn_id": "other"}).text == "Not Found"
    for changes, says in (
        ({"outcome": "exists", "job_id": ""}, "is a job: give its id"),
        ({"job_id": ""}, "should be an integer"),
        ({"job_id": "47.11"}, "should be an integer"),
        ({"outcome": "exists"}, "leave it out"),
        ({"outcome": "does_not_exist"}, "what does not exist has no id, and 4711 was given"),
        ({"outcome": "true"}, "is none of exists_with_id, exists, does_not_exist"),
        ({"why": " "}, "recorded: --why (How you know): should have 1 to 1000 characters, not 0"),
    ):
        refused = jo.post(action, {**answer, **changes})
        assert refused.status_code == 409
        assert says in words(refused)
    assert states(store) == UNCERTAIN


@in_a_database
def test_what_another_airflow_has_sent_is_not_for_the_users_of_this_one(store, browser):
    jo = browser("jo")
    ((action, given),) = jo.forms()
    with store.engine.begin() as connection:
        connection.execute(LEDGER.update().values(airflow="north"))

    assert "Nothing is uncertain." in words(jo.get())
    assert "No write was found." in words(jo.get(f"?q={quote(KEY)}"))
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
    assert "No ledger was found at connection 'ledger', of fsm_default." in words(shown)
    assert "its file is on another machine" in words(shown)
    assert (
        "? jobs or other writes to look up, as the ledger of 1 connection cannot be read"
        in words(shown)
    )
    assert "Nothing is uncertain" not in shown.text
    assert "No DAG whose file Airflow can import uses an asset of completed forms" in shown.text
    assert str(file) not in shown.text
    assert not file.exists()


@in_a_database
def test_a_page_costs_at_most_twenty_queries(asset, browser, waits, request):
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    request.getfixturevalue("three")
    waits.add()
    queries = []
    jo = browser("jo")
    jo.get()

    def note(connection, cursor, statement, *_):
        queries.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert jo.get().status_code == 200
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    asked = [query for query in queries if not query.startswith(("PRAGMA", "BEGIN"))]
    assert 4 < len(asked) <= 20, asked


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
    assert "The ledger of fsm_default cannot be read now." in words(shown)
    assert "No ledger can be read, so it is not known" in words(shown)
    assert "nothing is uncertain" not in words(shown)
    assert "Nothing is uncertain" not in shown.text
    assert (
        "? jobs or other writes to look up, as the ledger of 1 connection cannot be read"
        in words(shown)
    )
    assert "Backlog: " in shown.text or "No DAG uses" in shown.text
    assert "fsm_default/jobs 3 " in words(shown)
    assert password not in shown.text


@in_a_database
def test_the_log_says_what_could_not_be_stored_and_where_a_defect_is(
    store, browser, monkeypatch, caplog
):
    jo = browser("jo")
    action, given = jo.forms()[0]

    def fail(*names):
        raise ZeroDivisionError

    def errors_of_page():
        return [record for record in caplog.records if "plugins.page" in record.name]

    monkeypatch.setattr("fsm_provider.plugins.page.app.count_deliveries", fail)
    assert "Deliveries cannot be read now." in words(jo.get())
    (of_defect,) = errors_of_page()
    assert of_defect.getMessage() == "The page cannot be read in full: ZeroDivisionError"
    assert f"in {fail.__name__}\n" in caplog.text
    caplog.clear()

    away = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(away))
    assert jo.post(action, {**given, **FOUND}).status_code == 409
    of_settlement, of_ledger, _ = errors_of_page()
    assert of_settlement.getMessage().startswith("What a user entered cannot be stored: ")
    assert of_ledger.getMessage().startswith("The page cannot be read in full: the database: ")
    assert not of_settlement.exc_info
    assert not of_ledger.exc_info


# --- all connections ---


@pytest.fixture
def three(service, connect, store, monkeypatch, tmp_path):
    """Connections ``north`` with a ledger of its own, and ``south``, whose host is missing."""
    north = DatabaseStore(tmp_path / "north")
    north.file.parent.mkdir()
    connection = service.connection()
    connection["login"] = "north"
    extra = {**connection["extra"], "state_conn_id": "ledger_north", "max_retries": 0}
    connection["extra"] = extra
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER_NORTH", north.connection)
    monkeypatch.setenv("AIRFLOW_CONN_NORTH", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SOUTH", json.dumps({"conn_type": "fsm", "password": TOKEN}))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "http", "host": "fsm"}))
    operator = write_job(key="N-1", fsm_conn_id="north", job={"customerReference": "Boiler"})
    leave_uncertain(service, north, operator)
    yield north
    north.engine.dispose()


@in_a_database
def test_what_is_uncertain_of_any_connection_is_on_top_and_a_broken_one_hides_nothing(
    three, store, browser
):
    jo = browser("jo")
    shown = words(jo.get())
    assert (
        "2 or more jobs or other writes to look up, as the ledger of 1 connection cannot be read"
        in shown
    )
    assert re.search(r"fsm_default: POST /properties/7/jobs", shown)
    assert re.search(r"north: POST /properties/7/jobs", shown)
    assert "Connection south cannot be used, so nothing of its ledger is shown:" in shown
    assert "host: is missing" in shown
    assert TOKEN not in shown

    of_north = words(jo.get("?conn_id=north"))
    assert "1 jobs or other writes to look up" in of_north
    assert "north: POST" in of_north
    assert "fsm_default: POST" not in of_north
    assert "1 jobs or other writes to look up" in words(jo.get("?conn_id=fsm_default"))


@in_a_database
def test_a_connection_that_is_not_there_is_named_with_those_that_are(three, browser):
    jo = browser("jo")
    for conn_id in ("mistyped", "other", MARKUP):
        answer = jo.get(f"?conn_id={quote(conn_id)}")
        assert answer.status_code == 404
        says = f"There is no connection {' '.join(conn_id.split())} of type fsm. "
        assert says + "There are fsm_default, north, south." in words(answer)
        assert "Nothing is uncertain" not in answer.text
        assert "to look up" not in answer.text  # a 0 would be no comfort
        assert "<b>" not in answer.text


class Vault(BaseSecretsBackend):
    """A secrets backend, whose connections cannot be listed, that Airflow loads by its name."""

    def get_connection(self, conn_id, team_name=None):
        from airflow.models import Connection

        if conn_id not in ("vault_conn", "fsm_default"):
            return None
        extra = '{"max_retrys": 3}'
        return Connection(conn_id, "fsm", host="fsm.example.com", password=TOKEN, extra=extra)


def test_a_connection_of_a_secrets_backend_that_is_broken_is_not_said_to_be_absent(
    server, browser, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", f"{__name__}.Vault")
    jo = browser("jo")

    for query, conn_id in (("", "fsm_default"), ("?conn_id=vault_conn", "vault_conn")):
        broken = jo.get(query)
        assert broken.status_code == 200
        assert f"Connection {conn_id} cannot be used, so nothing of its ledger" in words(broken)
        assert "max_retrys: is not a setting" in words(broken)
        assert "There is no connection" not in words(broken)
    assert jo.get("?conn_id=mistyped").status_code == 404


@in_a_database
@pytest.mark.parametrize("names_database_likewise", [True, False])
def test_two_connections_of_one_service_and_ledger_have_each_write_once(
    service, store, browser, monkeypatch, names_database_likewise
):
    again = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    if not names_database_likewise:
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER_B", os.environ["AIRFLOW_CONN_LEDGER"])
        again["extra"] = {**again["extra"], "state_conn_id": "ledger_b"}
    monkeypatch.setenv("AIRFLOW_CONN_AGAIN", json.dumps(again))

    shown = words(browser("jo").get())

    assert "1 jobs or other writes to look up" in shown
    assert "again: POST /properties/7/jobs" in shown  # always the first of both by name


@in_a_database
def test_the_connections_whose_ledger_cannot_be_read_are_counted_and_named(
    service, store, browser, monkeypatch
):
    connection = os.environ["AIRFLOW_CONN_FSM_DEFAULT"]
    north = {**json.loads(connection), "login": "north"}
    monkeypatch.setenv("AIRFLOW_CONN_AGAIN", connection)
    monkeypatch.setenv("AIRFLOW_CONN_NORTH", json.dumps(north))
    file = {"conn_type": "sqlite", "host": f"{store.file}-gone"}
    for place, says in (
        ({"conn_type": "postgres", "host": "127.0.0.1", "port": 1}, "The ledger of {} cannot"),
        (file, "No ledger was found at connection 'ledger', of {}."),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(place))
        shown = words(browser("jo").get())
        assert "to look up, as the ledgers of 3 connections cannot be read" in shown
        assert says.format("again, fsm_default, north") in shown


@in_a_database
def test_a_settlement_goes_to_the_ledger_of_its_row_and_back_to_what_was_shown(
    three, store, browser
):
    jo = browser("jo")
    given = next(fields for _, fields in jo.forms() if fields["conn_id"] == "north")

    settled = jo.post("settle", {**given, **FOUND})

    assert settled.status_code == 303
    assert "N-1 is settled." in words(jo.get(settled.headers["location"]))
    assert "conn_id=&" in settled.headers["location"]
    assert states(three) == ["done"]
    assert states(store) == UNCERTAIN


@in_a_database
def test_what_was_sent_to_a_service_before_it_was_renamed_is_shown_and_settled(
    store, browser, monkeypatch
):
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**connection, "login": "north"}))
    jo = browser("jo")
    shown = jo.get()
    assert "1 jobs or other writes to look up" in words(shown)
    assert "No connection that is listed here leads there now" in words(shown)
    assert jo.forms() == []
    of_connection = words(jo.get("?conn_id=fsm_default"))
    assert "0 jobs or other writes to look up" in of_connection
    assert "those that were sent under the present host and login of" in of_connection
    old = rows(store)[0].service
    with ledger_admin.open_ledgers("fsm_default") as ledgers:
        ledgers.rename_service(old, f"{old} (account north)")

    assert "1 jobs or other writes to look up" in words(jo.get())
    ((action, given),) = jo.forms()
    assert jo.post(action, {**given, **FOUND}).status_code == 303
    assert states(store) == ["done"]


@in_a_database
def test_a_confirmation_says_only_what_the_ledger_has(store, browser):
    jo = browser("jo")
    for settled in (rows(store)[0].id, quote(MARKUP), "x"):
        shown = jo.get(f"?settled={settled}")
        assert "is settled" not in words(shown)
        assert 'role="status"' not in shown.text


@in_a_database
def test_a_ledger_that_is_locked_is_said_to_be_unreadable(store, browser, monkeypatch):
    monkeypatch.setattr("fsm_provider.state.database.SQLITE_LOCK_SECONDS", 0.1)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA locking_mode=EXCLUSIVE")
        connection.exec_driver_sql("BEGIN EXCLUSIVE")
        began = time.monotonic()
        shown = browser("jo").get()
        assert time.monotonic() - began < 15  # a task would repeat it for half a minute or more

    assert shown.status_code == 200
    assert "The ledger of fsm_default cannot be read now." in words(shown)
    assert "Nothing is uncertain" not in shown.text


# --- many writes ---


def copy_rows(store, number, **values):
    """Make so many more entries of the one that is there; a value may be called with a number."""
    (row,) = rows(store)
    made = []
    for index in range(number):
        changed = {name: value(index) for name, value in values.items()}
        key = f"K-{index}"
        made.append({**row._asdict(), "id": id_for(key), "key": key, **changed})
    with store.engine.begin() as connection:
        connection.execute(LEDGER.insert(), made)


@in_a_database
def test_more_than_a_hundred_are_counted_and_shown_in_pages(store, browser):
    copy_rows(store, 249, sent_at=lambda index: 1_700_000_000_000 + index)
    jo = browser("jo")

    first = jo.get()
    assert "250 jobs or other writes to look up" in words(first)
    assert "100 of 250 are shown" in words(first)
    assert first.text.count("Record what became of it") == 100
    (link,) = re.findall(r'href="(\?[^"]*page=2[^"]*)#uncertain"', first.text)
    last = jo.get("?page=3")
    assert "50 of 250 are shown" in words(last)
    assert "key K-0 " in words(last)
    assert "100 of 250 are shown" in words(jo.get(html.unescape(link)))
    beyond = words(jo.get("?page=9"))
    assert "250 are uncertain, on the pages before." in beyond
    assert "Nothing is uncertain" not in beyond


@in_a_database
def test_writes_are_found_by_a_part_of_a_reference_and_by_property(store, browser):
    references = ["PO-4711 Boiler", "PO-4712 Radiator", "100%"]
    copy_rows(
        store,
        3,
        reference=lambda index: references[index],
        property_id=lambda index: f"{index + 20}",
        state=lambda _: "done",
    )
    jo = browser("jo")
    for query, found in {
        "q=boiler": ["K-0"],
        "q=po-47": ["K-0", "K-1"],
        "q=%25": ["K-2", "PM-7 b%20"],
        "q=_": [],
        "property=21": ["K-1"],
        "property=2": [],
        "q=PO&property=21": ["K-1"],
        "q=+K-2+": ["K-2"],
    }.items():
        section = words(jo.get(f"?{query}")).partition("To be looked up")[0]
        keys = re.findall(r"key (K-\d|PM-7 b%20) ", section)
        assert sorted(keys) == found, query
        if found:
            assert f"{len(found)} of {len(found)} writes" in section


@in_a_database
def test_writes_of_a_dag_that_a_user_may_not_see_are_not_counted(store, browser, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    is_authorized = SimpleAuthManager.is_authorized_dag

    def sees_only_ours(self, *, details=None, **others):
        is_hidden = details is not None and details.id == "hidden"
        return not is_hidden and is_authorized(self, details=details, **others)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", sees_only_ours)
    note = "not created, says sam at 2026-01-01 00:00:00 UTC: secret"
    copy_rows(store, 150, dag_id=lambda _: "hidden", note=lambda _: note)

    shown = words(browser("vera").get("?q=K-"))

    assert "1 jobs or other writes to look up" in shown
    assert "key PM-7 b%20" in shown
    assert "No write was found." in shown
    assert "Uncertain or on their way: 1 in 30 days" in shown
    for hidden in ("hidden", "secret", "key K-"):
        assert hidden not in shown


@STATE_STORE.needed
@pytest.mark.parametrize("store", ["in Airflow"], indirect=True)
def test_the_lease_of_a_write_in_airflows_store_is_counted_from_now(store, browser):
    shown = words(browser("jo").get())

    (left,) = re.findall(r"on its way for another (\d+) (s|min)", shown)
    assert int(left[0]) <= 120


@in_a_database
def test_the_owner_of_a_dag_is_named_beside_its_writes_and_waits(store, waits, browser):
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    (row,) = rows(store)
    waits.add(missing=["Gas"])
    assert "whose owner is" not in words(browser("vera").get())
    with create_session() as session:
        session.merge(DagBundleModel(name="bundle"))
        session.flush()
        for dag_id in {row.dag_id, "dag"}:
            session.merge(DagModel(dag_id=dag_id, bundle_name="bundle", owners="Amy & Bo"))
    shown = words(browser("vera").get())
    with create_session() as session:
        session.query(DagModel).delete()
        session.query(DagBundleModel).delete()

    assert f"of DAG {row.dag_id}, whose owner is Amy & Bo" in shown
    assert "such as its owner" in shown


@in_a_database
def test_what_is_being_sent_is_not_yet_uncertain(store, browser):
    with store.engine.begin() as connection:
        connection.execute(LEDGER.update().values(state="sending"))
    jo = browser("jo")

    shown = words(jo.get())
    assert "0 jobs or other writes to look up" in shown
    assert "Being sent, for another" in shown
    assert jo.forms() == []
    let_leases_end(store)
    assert "1 jobs or other writes to look up" in words(jo.get())
    assert len(jo.forms()) == 1


@in_a_database
@pytest.mark.parametrize(
    ("web_url", "href", "text"),
    [
        ("https://app.example.com/jobs/{id}", "https://app.example.com", "The service"),
        (
            "https://app.example.com/properties/{propertyID}/jobs/{id}",
            "https://app.example.com/properties/7/jobs",
            "7 in the service",
        ),
        (
            "https://app.example.com/?property={propertyID}&job={id}",
            "https://app.example.com/?property=7",
            "7 in the service",
        ),
        ("", None, "Record what became of it"),
    ],
)
def test_the_service_is_linked_as_near_to_the_property_as_web_url_shows(
    service, connect, store, browser, web_url, href, text
):
    connect(service, max_retries=0, web_url=web_url)

    shown = browser("jo").get()

    links = re.findall(r'<a target="_blank" rel="noreferrer" href="(.*?)">', shown.text)
    assert [html.unescape(link) for link in links] == ([href] if href else [])
    assert text in words(shown)


@in_a_database
def test_texts_that_change_direction_are_isolated(store, browser):
    override = "\u202eevil\u2066"
    with store.engine.begin() as connection:
        values = dict.fromkeys(("key", "error", "dag_id", "run_id", "task_id"), override)
        escaped = {name: json.dumps(value)[1:-1] for name, value in values.items()}
        connection.execute(LEDGER.update().values(**escaped, id=id_for(override)))
    jo = browser("jo")
    ((action, given),) = jo.forms()

    refused = jo.post(action, {**given, **FOUND, "job_id": ""})
    for answer in (jo.get(), refused):
        without_isolated = re.sub(r"<bdi>[^<]*</bdi>", "", answer.text)
        in_texts = re.sub(r"<[^>]*>", "", without_isolated)
        assert override not in in_texts
    again = jo.post(action, {**given, **FOUND, "owner": "x"})
    assert r"'\u202eevil\u2066' has changed meanwhile" in words(again)


# --- waits ---


class Waits:
    """Task instances of sensors that wait, in Airflow's tables."""

    def __init__(self):
        self.number = 0

    def add(self, *, dag_id="dag", state="deferred", operator="FsmFormSensor", **fields):
        """Add a sensor that has deferred; ``fields`` are those of what it waits for."""
        now = time.time()
        waiting = Waiting(
            **{
                "fsm_conn_id": "fsm_default",
                "job_id": "29711",
                "property_id": "438",
                "missing": ["Gas Safety Record"],
                "found": [],
                "text": "0 of 1 form",
                "since": now - 3600,
                "until": now + 7200,
                "polled_at": now - 60,
                "problem": "",
                **fields,
            }
        )
        ends = datetime.fromtimestamp(waiting.until + 60, UTC)
        self.add_row(dag_id, state, operator, waiting.as_kwargs(), ends)

    def add_row(self, dag_id, state, operator, kwargs=None, ends=None, rendered=None):
        from airflow.models import DagRun, TaskInstance
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.utils.session import create_session

        takes_uuid = getattr(TaskInstance.__table__.c.id.type, "as_uuid", False)  # since 3.2
        self.number += 1
        run_id = f"wait-{self.number}"
        task = {"dag_id": dag_id, "run_id": run_id, "task_id": "wait", "map_index": -1}
        values = {
            **task,
            "id": uuid4() if takes_uuid else str(uuid4()),
            "max_tries": 0,
            "pool": "default_pool",
            "pool_slots": 1,
            "state": state,
            "operator": operator,
            "start_date": datetime.now(UTC),
            "trigger_timeout": ends,
            "next_kwargs": kwargs,
        }
        with create_session() as session:
            now = datetime.now(UTC)
            session.add(DagRun(dag_id=dag_id, run_id=run_id, run_type="manual", run_after=now))
            session.flush()
            session.execute(sqlalchemy.insert(TaskInstance.__table__).values(values))
            if rendered:
                table = RenderedTaskInstanceFields.__table__
                fields = {**task, "rendered_fields": rendered}
                session.execute(sqlalchemy.insert(table).values(fields))

    def remove(self):
        from airflow.models import DagRun, TaskInstance
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.utils.session import create_session

        with create_session() as session:
            for table in (RenderedTaskInstanceFields, TaskInstance, DagRun):
                session.query(table).delete()


@contextmanager
def triggerer_running(*more):
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    with create_session() as session:
        for job_type in ("TriggererJob", *more):
            job = Job(job_type=job_type, state="running")
            # As alive for as long as a busy machine takes.
            job.latest_heartbeat = datetime.now(UTC) + timedelta(hours=1)
            session.add(job)
    yield
    with create_session() as session:
        session.query(Job).delete()


@pytest.fixture
def waits(server):
    made = Waits()
    yield made
    made.remove()


def waits_in(answer):
    """Give the words of the section about waits."""
    return words(answer).partition(" Waits ")[2].partition(" Watchers of new forms ")[0]


@in_a_database
def test_a_wait_shows_job_property_what_is_missing_and_until_when(store, waits, browser):
    hour = 3600
    now = time.time()
    waits.add(
        missing=["Warning Notice", "Job Sign-off"],
        found=["Gas Safety Record"],
        until=now + 5.5 * hour,
        polled_at=None,
        problem="the last poll failed: HTTP 502",
    )
    waits.add(job_id="29712", missing=[], text="1 of 2 forms", until=now + 72.5 * hour)

    jo = browser("jo")
    shown = jo.get()

    assert "1 waits for forms that end within a day" in words(shown)
    assert "2 waits for forms in all" in words(shown)
    section = waits_in(shown)
    for text in (
        "29711 438 Warning Notice, Job Sign-off Gas Safety Record",
        "5 h left none yet the last poll failed: HTTP 502",
        "29712 438 1 of 2 forms -",
        "3 days left",
        "task wait of run wait-1 of DAG dag deferred",
    ):
        assert text in section
    assert section.index("29711") < section.index("29712")
    assert 'href="https://app.example.com/jobs/29711"' in shown.text


@in_a_database
@pytest.mark.parametrize(("age", "is_alarm"), [(30, False), (90, True)])
def test_a_deferred_sensor_that_no_running_triggerer_has_is_an_alarm(
    store, waits, browser, age, is_alarm
):
    from airflow.models import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    waits.add()
    with create_session() as session:
        created = datetime.now(UTC) - timedelta(seconds=age)
        trigger = Trigger(classpath="x", kwargs={}, created_date=created)
        session.add(trigger)
        session.flush()
        session.query(TaskInstance).update({"trigger_id": trigger.id})

    with triggerer_running():
        shown = words(browser("jo").get())

    assert ("Nothing polls for 1 deferred ones" in shown) == is_alarm


@in_a_database
def test_forms_since_is_the_bound_and_not_when_the_wait_began(store, waits, browser):
    began = datetime(2026, 3, 4, 5, 6, tzinfo=UTC).timestamp()
    bound = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    waits.add(job_id="1", forms_since=bound, since=began, until=began + 1)
    waits.add(job_id="2", since=began, until=began + 2)  # of an older version
    waits.add_row("dag", "running", "FsmFormSensor", rendered={"job_id": "3"})

    shown = browser("jo").get()
    section = waits_in(shown)

    assert "2 waits for forms that end within a day; the end of another 1 is not known" in words(
        shown
    )
    of_bound, _, others = section.partition(" 2 438 ")
    of_older, _, on_worker = others.partition(" 3 - ")
    assert "1 Jan 2026, 00:00 UTC" in of_bound
    assert "4 Mar 2026, 05:06 UTC 4 Mar" not in of_bound
    assert "not known waits since 4 Mar 2026, 05:06 UTC" in of_older
    assert f"not known its process began {datetime.now(UTC):%-d %b %Y}" in on_worker


@in_a_database
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"property": 7}, "- 7 waits for Gas"),
        ({"property": "7", "job": "21"}, "21 7 waits for Gas"),
        ({"property": {"id": 7}}, "- 7 waits for Gas"),
        ({"job": {"id": 21, "propertyID": 7}}, "21 7 waits for Gas"),
        ({"job_id": 21, "property_id": "7"}, "21 7 waits for Gas"),
        ({"property_id": " 007 "}, "- 7 waits for Gas"),
        ({"property_id": 7.0}, "- 7 waits for Gas"),
        ({"property": '{"id": "07"}'}, "- 7 waits for Gas"),
        ({"job": "{'id': 21, 'propertyID': 7}"}, "21 7 waits for Gas"),
    ],
)
def test_a_wait_on_a_worker_is_found_however_its_property_was_given(
    store, waits, browser, arguments, shown
):
    rendered = {"fsm_conn_id": "fsm_default", "form_names": ["Gas"], **arguments}
    states = ("running", "up_for_reschedule", "scheduled", "queued", "up_for_retry")
    for state in states:
        waits.add_row("dag", state, "FsmFormSensor", rendered=rendered)
    waits.add_row("dag", "scheduled", "FsmFormSensor")  # it has not begun

    page = browser("jo").get("?property=7")

    assert "5 waits for forms in all, for property 7" in words(page)
    assert "5 waits for forms in all" in words(browser("jo").get())
    assert shown in waits_in(page)


@in_a_database
def test_a_connection_of_the_environment_that_is_no_json_is_shown_as_broken(
    store, browser, monkeypatch
):
    monkeypatch.setenv("AIRFLOW_CONN_QUOTED", "{'conn_type': 'fsm', 'host': 'https://a.example'}")
    monkeypatch.setenv("AIRFLOW_CONN_UPPER", "FSM://a.example")

    shown = words(browser("jo").get())

    assert "Connection quoted cannot be used" in shown
    assert "Connection upper cannot be used" in shown
    assert "1 or more jobs or other writes to look up" in shown


@in_a_database
def test_waits_are_found_by_property_and_connection_and_counted_by_name(store, waits, browser):
    waits.add(missing=["Gas", "Oil"], property_id="7")
    waits.add(missing=["Gas"], property_id="77")
    waits.add(missing=["Oil"], property_id="7", fsm_conn_id="north")
    rendered = {"fsm_conn_id": "fsm_default", "property_id": 7, "form_names": ["Gas"]}
    waits.add_row("dag", "up_for_reschedule", "FsmFormSensor", rendered=rendered)
    waits.add_row("dag", "running", "BashOperator")
    waits.add_row("dag", "deferred", "OtherSensor", {"missing": "x"})
    jo = browser("jo")

    assert "4 waits for forms in all" in words(jo.get())
    assert "3 waits for forms in all" in words(jo.get("?property=7"))
    assert "3 waits for forms in all" in words(jo.get("?conn_id=fsm_default"))
    assert "2 waits for forms in all" in words(jo.get("?conn_id=fsm_default&property=7"))
    assert "3 waits for forms in all, for property 7" in words(jo.get("?property=007"))
    assert "No sensor waits for property 8." in words(jo.get("?property=8"))
    assert "No sensor waits for property %." in words(jo.get("?property=%25"))
    assert "Gas 2 Oil 2" in words(jo.get("?names=true"))
    assert "No triggerer is running, so nothing polls for what is deferred" in words(jo.get())
    with triggerer_running():
        assert "No triggerer is running" not in jo.get().text
    on_a_worker = waits_in(jo.get("?property=7"))
    assert "- 7 waits for Gas not known" in on_a_worker
    assert "polls on a worker" in on_a_worker


@in_a_database
def test_that_no_scheduler_or_dag_processor_runs_is_an_alarm(store, browser):
    shown = words(browser("jo").get())
    assert "No scheduler is running, so no DAG starts" in shown
    assert "No DAG processor is running, so no change of a DAG's file is read" in shown
    with triggerer_running("SchedulerJob", "DagProcessorJob"):
        shown = words(browser("jo").get())
        assert "No scheduler is running" not in shown
        assert "No DAG processor is running" not in shown


@in_a_database
def test_a_sensor_that_another_version_has_deferred_is_listed_with_what_is_known(
    store, waits, browser
):
    fields = {"job_id": "29711", "form_names": "Gas"}
    waits.add_row("dag", "deferred", "FsmFormSensor", {}, datetime.now(UTC), fields)
    waits.add_row("dag", "deferred", "FsmFormSensor", {"waiting": '{"format": 2}'})
    waits.add_row("dag", "deferred", "FsmFormSensor", {"waiting": {"job": MARKUP}}, None, ["x"])
    waits.add_row("dag", "up_for_retry", "FsmFormSensor")

    shown = browser("jo").get()

    assert "4 waits for forms in all" in words(shown)
    assert "polls on a worker" not in words(shown)
    assert "29711 - waits for Gas not known" in waits_in(shown)
    assert "<b>" not in shown.text


@in_a_database
def test_waits_of_a_dag_that_a_user_may_not_see_are_neither_shown_nor_counted(
    store, waits, browser, monkeypatch
):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    is_authorized = SimpleAuthManager.is_authorized_dag

    def sees_only_ours(self, *, details=None, **others):
        is_hidden = details is not None and details.id == "hidden"
        return not is_hidden and is_authorized(self, details=details, **others)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", sees_only_ours)
    for _ in range(101):  # more than a page, and each ends before ours
        waits.add(dag_id="hidden", until=time.time() + 60, missing=["Hidden form"])
    waits.add(missing=["Gas"])
    vera = browser("vera")

    for query in ("", "?names=true", "?property=438", "?conn_id=fsm_default"):
        shown = words(vera.get(query))
        assert "1 waits for forms in all" in shown
        assert "1 waits for forms that end within a day" in shown
        assert "Gas" in shown
        assert "idden" not in shown


@in_a_database
def test_waits_have_pages_and_the_worker_is_last(store, waits, browser):
    waits.add_row("dag", "running", "FsmRecordSensor", rendered={"path": "/jobs/7"})
    for number in range(120):
        waits.add(job_id=f"{number}", until=time.time() + 1000 + number)
    jo = browser("jo")

    first = jo.get()
    assert "100 of 121" in waits_in(first)
    assert "/jobs/7" not in waits_in(first)
    second = waits_in(jo.get("?waits=2"))
    assert "21 of 121" in second
    assert "waits for /jobs/7" in second


@in_a_database
def test_markup_in_what_a_sensor_has_stored_is_escaped(store, waits, browser):
    texts = dict.fromkeys(("job_id", "property_id", "text", "problem"), MARKUP)
    waits.add(**texts, missing=[MARKUP], found=[MARKUP])
    waits.add_row(
        "dag",
        "running",
        "FsmFormSensor",
        rendered={"job_id": MARKUP, "property_id": MARKUP, "form_names": [MARKUP], "path": MARKUP},
    )

    shown = browser("jo").get("?names=true")

    assert shown.text.count(html.escape("<b>{{ 7 * 7 }}</b>")) >= 9
    for bad in ("<b>", "alert(1)</script>"):
        assert bad not in shown.text


# --- watchers ---


@in_a_database
def test_a_watcher_that_nobody_polls_for_is_an_alarm(asset, store, browser):
    jo = browser("jo")
    shown = words(jo.get())
    assert "2 of 2 watchers fail" in shown
    assert "One poll is due every 0 s, and none was complete, at least since 14 Nov 2023" in shown
    assert "No triggerer watches it" in shown
    assert "No form starts a DAG: it starts none." in shown


@in_a_database
@pytest.mark.parametrize("last", ["polled_at", "unpolled_since"])
@pytest.mark.parametrize(("age", "is_late"), [(200, False), (230, True), (-230, True)])
def test_a_watcher_is_late_after_three_intervals(asset, store, browser, last, age, is_late):
    watched = next(status for status in admin.watched_assets() if status.dag_ids)
    store_with(watched, CONFIGURATION, {"poll_interval": 60.0})
    store_with(watched, OWNER, ["id", 1.0, {last: time.time() - age, "backlog": 0}])

    with triggerer_running():
        shown = words(browser("jo").get())
    without_triggerer = words(browser("jo").get())

    assert f"{1 + is_late} of 2 watchers fail" in shown
    assert "No triggerer is running" not in shown
    assert "2 of 2 watchers fail" in without_triggerer
    assert "No triggerer is running" in without_triggerer
    assert ("One poll is due every 60 s, and none was complete, at least" in shown) == is_late


@in_a_database
def test_a_watcher_is_late_by_the_interval_that_it_heeds_until_it_heeds_another(
    asset, store, browser
):
    watched = next(status for status in admin.watched_assets() if status.dag_ids)
    store_with(watched, CONFIGURATION, {"poll_interval": 5.0})  # edited just now
    status = {"polled_at": time.time() - 170, "poll_interval": 60.0}
    store_with(watched, OWNER, ["id", 1.0, status])

    with triggerer_running():
        assert "1 of 2 watchers fail" in words(browser("jo").get())


@in_a_database
@pytest.mark.parametrize(("age", "is_silent"), [(60, False), (120, True), (-120, True)])
def test_a_watcher_is_silent_after_90_seconds_however_long_its_interval(
    asset, store, browser, age, is_silent
):
    watched = next(status for status in admin.watched_assets() if status.dag_ids)
    store_with(watched, CONFIGURATION, {"poll_interval": 3600.0})
    now = time.time()
    store_with(watched, OWNER, ["id", 1.0, {"polled_at": now - 600, "seen_at": now - age}])

    with triggerer_running():
        shown = words(browser("jo").get())

    assert f"{1 + is_silent} of 2 watchers fail" in shown
    assert ("Nothing watches it, so no form starts a DAG" in shown) == is_silent


@in_a_database
@pytest.mark.parametrize("others", [{}, {"boiler": "Gas Safety"}])
def test_a_dag_whose_file_cannot_be_imported_is_an_alarm(
    store, browser, tmp_path, monkeypatch, others
):
    from airflow.models.asset import AssetActive, remove_references_to_deleted_dags
    from airflow.utils.session import create_session

    jo = browser("jo")
    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety", **others)
        watched_well()
        assert "0 of 1 watchers fail" in words(jo.get())
        file = tmp_path / "gas.py"
        file.write_text(f"{file.read_text()}\ndef broken(:")
        process_files()
        broken = words(jo.get())
        with create_session() as session:  # as the processor and the scheduler do some time later
            remove_references_to_deleted_dags(session)
            if not others:
                session.query(AssetActive).delete()
        dropped = words(jo.get())
        (given,) = (fields for action, fields in jo.forms() if action == "begin")
        set_back = jo.post("begin", {**given, "since": "2026-01-05T08:00"})

        file.unlink()
        read(plumber="Gas Safety", **others)
        process_files()
        watched_well()
        mended = words(jo.get())

    for shown in (broken, dropped):
        assert "1 of 1 watchers fail" in shown
        number = 1 + len(others)
        assert f"No form starts 1 of its {number} DAGs, which Airflow does not find in" in shown
        assert "gas (in no file)" in shown
        assert "all that it starts are paused" not in shown
    assert others or "mend the file first" in words(set_back)
    assert set_back.status_code == (303 if others else 409)
    assert "0 of 1 watchers fail" in mended
    assert f"Starts {', '.join([*others, 'plumber'])}." in mended


@in_a_database
@pytest.mark.parametrize(("days", "is_missed"), [(6, True), (8, False)])
def test_a_dag_that_was_removed_is_an_alarm_for_a_week(
    store, browser, tmp_path, monkeypatch, days, is_missed
):
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety")
        watched_well()
        with create_session() as session:
            dag = session.get(DagModel, "gas")
            dag.is_stale = True
            dag.last_parsed_time = datetime.now(UTC) - timedelta(days=days)

        shown = words(browser("jo").get())

    assert ("1 of 1 watchers fail" in shown) == is_missed
    assert ("Starts gas (in no file)." in shown) == is_missed


@in_a_database
@pytest.mark.parametrize("reference", ["name='gas'", "uri='fsm://fsm_default/forms/gas'"])
def test_a_dag_that_names_an_asset_only_is_started_by_it_and_missed(
    store, browser, tmp_path, monkeypatch, reference
):
    from airflow.models.asset import AssetActive
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.models.dag import DagModel
    from airflow.models.errors import ParseImportError
    from airflow.utils.session import create_session

    jo = browser("jo")
    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety", reports=f"Asset.ref({reference})")
        watched_well()
        well = words(jo.get())
        break_import(tmp_path / "reports.py")
        process_files()
        watched_well()
        broken = words(jo.get())
        # Whoever defines it is removed, and deleted in Airflow.
        with create_session() as session:
            for table in (AssetActive, Scheduled, ParseImportError):
                session.query(table).delete()
            session.query(DagModel).filter(DagModel.dag_id == "gas").delete()
            session.get(DagModel, "reports").is_stale = False
        orphan = words(jo.get())
        with create_session() as session:
            session.get(DagModel, "reports").is_stale = True
        lost = words(jo.get())

    assert "1 of 1 watchers fail" in lost
    assert "Starts reports (in no file)." in lost
    assert "1 of 1 watchers fail" in orphan
    assert "Starts reports. Nothing watches it, as Airflow has not activated it" in orphan
    assert "0 of 1 watchers fail" in well
    assert "Starts gas, reports." in well
    assert "1 of 1 watchers fail" in broken
    assert "Starts gas, reports (in no file)." in broken


@in_a_database
def test_an_asset_whose_name_another_has_is_an_alarm(store, browser, tmp_path, monkeypatch):
    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety")
        read(gas="Gas Safety", north="completed_forms('gas', fsm_conn_id='north')")
        shown = words(browser("jo").get())

    assert "0 of 2 watchers fail" not in shown
    assert "gas by north Starts north. Nothing watches it, as Airflow has not activated" in shown


@in_a_database
@pytest.mark.parametrize(("ahead", "is_alarm"), [(60, False), (3600, True)])
def test_a_watermark_to_come_is_an_alarm(store, browser, tmp_path, monkeypatch, ahead, is_alarm):
    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety")
        watched = watched_well()
        progress = {"watermark": time.time() + ahead, "floor": 0.0}
        store_with(watched, watched.read_prefix() + WATERMARK, progress)
        shown = words(browser("jo").get())

    assert f"{int(is_alarm)} of 1 watchers fail" in shown
    assert ("Its watermark is in the future: set it back." in shown) == is_alarm


@in_a_database
@pytest.mark.parametrize("others", [{}, {"boiler": "Gas Safety"}])
def test_dags_that_are_paused_are_an_alarm_once_no_other_is_started(
    store, browser, tmp_path, monkeypatch, others
):
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with dags_that_define(tmp_path, monkeypatch) as read, triggerer_running():
        read(gas="Gas Safety", **others)
        watched_well()
        with create_session() as session:
            session.get(DagModel, "gas").is_paused = True

        shown = words(browser("jo").get())
        if others:
            break_import(tmp_path / "boiler.py")
            process_files()
        without_others = words(browser("jo").get())

    assert f"{0 if others else 1} of 1 watchers fail" in shown
    all_paused = "No form starts a DAG: all that it starts are paused."
    assert (all_paused in shown) == (not others)
    assert all_paused in without_others
    assert "gas (paused)." in shown


def watched_well():
    """Have the watcher of the one asset that there is be well; return it."""
    (watched,) = admin.watched_assets()
    store_with(watched, CONFIGURATION, {"poll_interval": 60.0})
    now = time.time()
    store_with(watched, OWNER, ["id", 1.0, {"polled_at": now, "seen_at": now}])
    return watched


@in_a_database
@pytest.mark.parametrize(
    "stored",
    [{}, "text", ["id", 1.0, "text"], ["id", 1.0, {"seen_at": "now", "polled_at": float("nan")}]],
)
def test_what_another_has_stored_in_place_of_a_watcher_is_an_alarm_and_no_more(
    asset, store, browser, caplog, stored
):
    watched = next(status for status in admin.watched_assets() if status.dag_ids)
    store_with(watched, OWNER, stored)

    answer = browser("jo").get()

    assert answer.status_code == 200
    shown = words(answer)
    assert "2 of 2 watchers fail" in shown
    if "seen_at" in str(stored):
        assert "What its watcher has stored cannot be read." in shown
        assert "seen_at: " in caplog.text


@in_a_database
@STATE_STORE.needed
def test_text_that_is_no_json_in_place_of_a_watcher_is_an_alarm_and_no_more(asset, store, browser):
    from airflow.state import AssetScope, get_state_backend

    watched = next(status for status in admin.watched_assets() if status.dag_ids)
    get_state_backend().set(AssetScope(asset_id=watched.asset_id), OWNER, "{")

    assert "2 of 2 watchers fail" in words(browser("jo").get())


@in_a_database
def test_watchers_of_a_connection_that_is_broken_hide_no_others(asset, store, browser, monkeypatch):
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        theirs = AssetModel(name="theirs", uri="fsm://gone/forms/theirs", group="asset")
        session.add(theirs)
        session.flush()
        session.add(AssetActive.for_asset(theirs))

    shown = words(browser("jo").get())

    assert "Connection gone cannot be used" in shown
    assert "Backlog: 17" in shown
    assert "1,203 or more forms passed on to Airflow today (UTC), as those of 1 watcher" in shown


@in_a_database
def test_a_watcher_of_dags_that_a_user_may_not_see_is_not_shown(asset, store, browser, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    is_authorized = SimpleAuthManager.is_authorized_dag

    def does_not_see_reports(self, *, details=None, **others):
        is_hidden = details is not None and details.id == "reports"
        return not is_hidden and is_authorized(self, details=details, **others)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", does_not_see_reports)

    shown = words(browser("vera").get())

    assert "Backlog: 17" not in shown
    assert "0 forms passed on to Airflow today" in shown
    assert "1 of 1 watchers fail" in shown


# --- the way to the page ---


@in_a_database
def test_behind_a_proxy_the_login_leads_back_to_its_address(store, browser, monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://office.example.com/airflow/")

    led = browser().get("?conn_id=fsm_default&q=a%26b", Accept="text/html")

    location = led.headers["location"]
    assert location.startswith("../api/v2/auth/login?next=")
    back = unquote(location.partition("?next=")[2])
    assert back == "https://office.example.com/airflow/fsm-page/?conn_id=fsm_default&q=a%26b"


@in_a_database
def test_no_address_in_the_page_is_absolute(asset, waits, store, browser):
    waits.add()
    shown = browser("jo").get("?q=PM")

    addresses = re.findall(r'(?:href|src|action)="(.*?)"', shown.text)
    for address in addresses:
        is_ours = address.startswith(("../dags/", "#", "?", "settle", "begin"))
        assert is_ours or address.startswith("https://app.example.com"), address
