"""A token that is replaced during many concurrent requests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from fsm_provider.api import FsmClient, FsmConnectionEditedError, FsmUnauthorisedError, Settings
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.conftest import TOKEN

OLD = "the-old-token"


class Connection:
    """The connection that a client is made of, and its token by now."""

    def __init__(self, base_url, token=TOKEN):
        self.reads = 0
        self.base_url = base_url
        self.token = token

    def read(self):
        self.reads += 1
        if isinstance(self.token, Exception):
            raise self.token
        values = {"base_url": self.base_url, "token": self.token, "max_retries": 0}
        return Settings.parse(values)


@pytest.fixture
def connection(service):
    return Connection(service.base_url)


@pytest.fixture
def client(service, connection):
    settings = Settings.parse({"base_url": service.base_url, "token": OLD, "max_retries": 0})
    with FsmClient(settings, reload_settings=connection.read) as made:
        yield made


class RefusedTogether:
    """Answers 401 to each of ``count`` requests, once the last of them has come."""

    def __init__(self, count):
        self.missing = count
        self.complete = asyncio.Event()

    async def play(self, exchange):
        self.missing -= 1
        if not self.missing:
            self.complete.set()
        await self.complete.wait()
        await faults.Status(401).play(exchange)


@pytest.mark.parametrize("threads", [2, 8])
def test_all_that_were_refused_at_once_are_sent_again_after_one_reading(
    service, client, connection, threads
):
    first_calls = range(1, threads + 1)
    service.fail("POST", "/properties/7/jobs", RefusedTogether(threads), calls=first_calls)

    with ThreadPoolExecutor(threads) as pool:
        jobs = list(pool.map(lambda _: client.create_job(7, {}), range(threads)))

    assert len({job.id for job in jobs}) == threads
    assert len(service.requests) == 2 * threads
    assert connection.reads == 1


def test_a_request_is_sent_twice_at_most(service, client, connection):
    service.fail("*", "*", faults.Status(401), every=True)

    with pytest.raises(FsmUnauthorisedError):
        client.create_job(7, {})
    assert len(service.requests) == 2
    assert connection.reads == 1


def test_a_connection_that_cannot_be_read_leaves_the_refusal_as_it_is(
    service, client, connection, caplog
):
    connection.token = ConnectionResetError("vault at https://user:hunter2@vault is away")

    with pytest.raises(FsmUnauthorisedError) as raised:
        client.create_job(7, {})
    assert "the connection could not be read again (ConnectionResetError)" in caplog.text
    assert "hunter2" not in caplog.text
    assert raised.value.__cause__ is connection.token
    assert not raised.value.may_have_written
    assert len(service.requests) == 1


@pytest.mark.parametrize("token", ["", "a-new-token\n"])
def test_an_invalid_token_is_not_sent(service, client, connection, token, caplog):
    connection.token = token

    with pytest.raises(FsmUnauthorisedError, match="token is not accepted") as raised:
        client.create_job(7, {})
    assert "could not be read again (token: " in caplog.text.replace("password", "token")
    assert "a-new" not in str(raised.value)
    assert "a-new" not in repr(raised.value)
    assert "a-new" not in caplog.text
    assert len(service.requests) == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_a_token_for_another_host_is_not_sent_to_this_one(service, client, connection, threads):
    service.fail("*", "*", RefusedTogether(threads), every=True)
    with FakeFieldService(token=TOKEN) as moved, ThreadPoolExecutor(threads) as pool:
        connection.base_url = moved.base_url
        creations = [pool.submit(client.create_job, 7, {}) for _ in range(threads)]
        errors = [creation.exception() for creation in creations]
        assert moved.requests == []

    for error in errors:
        assert isinstance(error, FsmConnectionEditedError)
        assert "the connection leads to another service now" in str(error)
        assert not error.permanent
    assert len(service.requests) == threads
