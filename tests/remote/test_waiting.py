"""Long polls: machines wait for jobs without threads, and a job wakes as many of them as it needs."""

import asyncio
import json
import threading
import time

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.test import AsyncRequestFactory

from django_pgqueue.contrib.remote import machine_tokens, views
from django_pgqueue.contrib.remote.engine import engine_of
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle import remote_tokens
from tests import helpers

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'pgqueue:remote%'"
)


@pytest.fixture(autouse=True)
def seldom_polls(settings):
    """Let no poll hide a lost notification."""
    settings.PGQUEUE = {"POLL_INTERVAL_WITHOUT_LISTEN": 30.0}


async def post(view, one, **body):
    """Return the status and the executions of an answer."""
    request = AsyncRequestFactory().post(
        "/",
        json.dumps({"worker": one.handle} | body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {one.secret}"},
    )
    response = await view(request)
    return response.status_code, json.loads(response.content).get("executions")


def claim(one, wait_seconds=25.0, **body):
    return post(views.claim, one, wait_seconds=wait_seconds, **body)


async def waiting(count):
    """Wait until so many machines wait."""
    claims = engine_of("default")._claims
    deadline = time.monotonic() + 20
    while claims is None or sum(len(group.waiting) for group in list(claims._groups.values())) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
        claims = engine_of("default")._claims


def in_thread(function, *args, **kwargs):
    return asyncio.get_running_loop().run_in_executor(None, lambda: function(*args, **kwargs))


@pytest.fixture
def enqueue(new_connection):
    """Return a function that enqueues a job and notifies, as an application on another machine does."""

    def enqueue(**changes):
        connection = new_connection()
        job_id = helpers.make_job(connection, **changes)
        connection.execute("NOTIFY pgqueue")
        return job_id

    return enqueue


def test_wait_ends_when_job_is_enqueued(machine, enqueue):
    one = machine()

    async def scenario():
        polls = asyncio.create_task(claim(one))
        await waiting(1)
        await asyncio.sleep(0.5)  # longer than the polls after the last notification
        began = time.monotonic()
        job_id = await in_thread(enqueue)
        status, [execution] = await polls
        assert (status, execution["job_id"]) == (200, job_id)
        assert time.monotonic() - began < 20

    asyncio.run(scenario())


def test_wait_ends_when_scheduled_job_is_due(machine, enqueue):
    one = machine()

    async def scenario():
        job_id = await in_thread(enqueue, delay_seconds=0.4)
        began = time.monotonic()
        _, [execution] = await claim(one)
        assert execution["job_id"] == job_id
        assert time.monotonic() - began < 20

    asyncio.run(scenario())


def test_wait_over_answers_without_jobs(machine):
    one = machine()
    began = time.monotonic()
    assert asyncio.run(claim(one, wait_seconds=0.2)) == (200, [])
    assert 0.15 <= time.monotonic() - began < 15


@pytest.mark.promise("remote-wait-costs-no-thread-and-no-poll")
def test_jobs_wake_only_as_many_machines_as_they_need(machine, new_connection, monkeypatch):
    one, machines, jobs = machine(), 60, 5
    claims, others = [], threading.active_count()
    original = lifecycle_claims.claim
    monkeypatch.setattr(
        lifecycle_claims, "claim", lambda *args, **kwargs: claims.append(1) or original(*args, **kwargs)
    )

    async def scenario():
        polls = [asyncio.create_task(claim(one, wait_seconds=5.0)) for _ in range(machines)]
        await waiting(machines)
        threads = threading.active_count()
        await asyncio.sleep(0.4)
        claims.clear()
        connection = await in_thread(new_connection)
        assert await in_thread(helpers.scalar, connection, SESSIONS) <= 5
        await in_thread(helpers.make_jobs, connection, jobs)
        await in_thread(connection.execute, "NOTIFY pgqueue")
        answers = await asyncio.gather(*polls)
        assert threads - others < 15, "a machine that waits must not cost a thread"
        return sorted(execution["job_id"] for _, executions in answers for execution in executions)

    assert len(asyncio.run(scenario())) == jobs
    assert jobs <= len(claims) < jobs + 12, "the other machines must not have claimed"


@pytest.mark.promise("remote-wait-costs-no-thread-and-no-poll")
def test_machines_that_wait_at_asgi_server_take_no_threads(machine):
    """Django's handler makes a thread for each request, and would keep it until the request ends."""
    one, machines, others = machine(), 30, threading.active_count()
    body = json.dumps({"worker": one.handle, "wait_seconds": 10}).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/remote/v1/claim",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {one.secret}".encode()), (b"content-type", b"application/json")],
    }

    async def scenario():
        application = get_asgi_application()
        polls = [ApplicationCommunicator(application, dict(scope)) for _ in range(machines)]
        for poll in polls:
            await poll.send_input({"type": "http.request", "body": body})
        await waiting(machines)
        threads = threading.active_count()
        for poll in polls:
            await poll.send_input({"type": "http.disconnect"})
            await poll.wait()
        return threads

    assert asyncio.run(scenario()) - others < 15


@pytest.mark.promise("remote-revoked-token-is-refused-at-once")
def test_token_revoked_during_wait_gets_no_job(machine, engine, enqueue):
    one = machine()
    row = remote_tokens.use_remote_token(engine, machine_tokens.digest_of(one.secret))

    async def scenario():
        polls = asyncio.create_task(claim(one))
        await waiting(1)
        await asyncio.sleep(0.2)
        await in_thread(remote_tokens.revoke_remote_token, engine, row.token_id, revoked_by="ann")
        job_id = await in_thread(enqueue)
        assert await polls == (401, None)
        return job_id

    assert helpers.state_of(engine, asyncio.run(scenario())) == "ready"


@pytest.mark.promise("defect-claim-of-a-stopped-machine")
def test_machine_that_has_stopped_gets_no_job_for_its_older_claim(machine, engine, enqueue):
    """Some servers do not notice that a machine has closed the connection of a waiting claim."""
    one = machine()

    async def scenario():
        polls = asyncio.create_task(claim(one))
        await waiting(1)
        await asyncio.sleep(0.2)
        assert await post(views.stop, one) == (200, None)
        job_id = await in_thread(enqueue)
        assert await polls == (200, [])
        return job_id

    assert helpers.state_of(engine, asyncio.run(scenario())) == "ready"


def test_machine_that_goes_away_leaves_jobs_for_others(machine, engine, enqueue, monkeypatch):
    """The jobs were claimed for it, and are released without counting the attempt."""
    one, two = machine(), machine()

    async def scenario():
        loop, polls = asyncio.get_running_loop(), asyncio.create_task(claim(one))
        await waiting(1)
        original = loop.call_soon_threadsafe

        def late(callback, *args):
            if "hand_over" in getattr(callback, "__qualname__", ""):
                loop.call_soon_threadsafe = original
                original(polls.cancel)
            return original(callback, *args)

        loop.call_soon_threadsafe = late
        job_id = await in_thread(enqueue)
        with pytest.raises(asyncio.CancelledError):
            await polls
        _, [execution] = await claim(two)
        assert (execution["job_id"], execution["attempt"]) == (job_id, 1)

    asyncio.run(scenario())


def test_idle_claim_thread_ends_and_next_claim_starts_another(machine, enqueue, monkeypatch):
    monkeypatch.setattr("django_pgqueue.contrib.remote.waiting_claims.KEEP_SECONDS", 0.0)
    one = machine()
    assert one.claim() == []
    engine = engine_of("default")
    helpers.wait_until(lambda: engine._claims is None)
    job_id = enqueue()
    assert [each["job_id"] for each in one.claim()] == [job_id]
