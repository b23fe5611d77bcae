"""Who may do what: the scope, the end and the rate of tokens."""

import pytest

from django_pgqueue.contrib.remote import machine_tokens, waiting_claims
from django_pgqueue.lifecycle import remote_tokens
from django_pgqueue.models import Execution
from tests import helpers
from tests.app import tasks

from .conftest import state_of


@pytest.mark.promise("remote-token-has-a-scope")
def test_token_without_scope_gets_403_and_no_jobs(machine):
    other = tasks.add.using(queue_name="other").enqueue(1)
    tasks.fail.enqueue()
    one = machine(queue_names=["default"], task_names=[tasks.add.name])
    assert one.claim() == []
    assert one.post("claim", {"worker": one.handle, "queues": ["other"]})[0] == 403
    assert one.post("claim", {"worker": one.handle, "tasks": [tasks.fail.name]})[0] == 403
    assert one.post("workers", {"name": "m", "queues": ["other"]})[0] == 403
    mine = tasks.add.enqueue(1)
    assert [each["job_id"] for each in one.claim()] == [mine.pk]
    assert state_of(other) == "ready"
    assert Execution.objects.count() == 1, "jobs outside the scope must not be claimed and released"


@pytest.mark.promise("remote-revoked-token-is-refused-at-once")
def test_token_revoked_expired_or_wrong_gets_401_at_once(machine, engine):
    one, late = machine(), machine(expires_in_seconds=60)
    late_row = remote_tokens.use_remote_token(engine, machine_tokens.digest_of(late.secret))
    engine.execute(
        "UPDATE pgqueue_remote_token SET expires_at = now() - interval '1 s' WHERE id = %s", [late_row.token_id]
    )
    row = remote_tokens.use_remote_token(engine, machine_tokens.digest_of(one.secret))
    assert remote_tokens.revoke_remote_token(engine, row.token_id, revoked_by="ann") == row.name
    assert remote_tokens.revoke_remote_token(engine, row.token_id, revoked_by="ann") is None
    for each in (one, late):
        assert each.post("claim", {"worker": each.handle})[0] == 401
        assert each.post("claim", b"{")[0] == 401, "the body must not be read before the token"
        status, answer = each.post("claim", b"{", Authorization="Basic abc")
        assert (status, answer["code"]) == (401, "unauthorized")


def test_token_is_stored_as_digest_and_its_use_is_recorded(machine, engine):
    one = machine()
    [row] = engine.execute("SELECT row_to_json(t)::text, used_at, digest FROM pgqueue_remote_token AS t").fetchall()
    assert one.secret not in row[0]
    assert row[1] is not None
    assert bytes(row[2]) == machine_tokens.digest_of(one.secret)


def test_token_for_unsupported_task_is_refused(token):
    for name in (tasks.create_group.name, "no.such.task"):
        with pytest.raises(ValueError, match="cannot run on a remote worker"):
            token(task_names=[name])


@pytest.mark.promise("remote-quotas")
def test_token_with_too_many_scopes_gets_429_alone(machine, monkeypatch):
    greedy, other = machine(), machine()
    for number in range(waiting_claims.SCOPES_OF_TOKEN):
        greedy.claim(tasks=[f"invented.{number}"])
    status, answer = greedy.post("claim", {"worker": greedy.handle, "limit": 1, "tasks": ["invented.more"]})
    assert (status, answer["code"]) == (429, "too_many")
    assert "more than 20 different sets of queues and tasks" in answer["detail"]
    assert greedy.claim(tasks=["invented.0"]) == [], "it may use the scopes that it has"
    job = tasks.add.enqueue(1)
    assert [each["job_id"] for each in other.claim()] == [job.pk]
    assert other.claim(tasks=["invented.more"]) == []
    monkeypatch.setattr(waiting_claims, "KEEP_GROUP_SECONDS", 0.0)
    assert greedy.claim(tasks=["invented.more"]) == [], "after a minute it may use others"


@pytest.mark.promise("remote-quotas")
def test_token_that_registers_many_workers_gets_429_alone(machine, engine, monkeypatch):
    monkeypatch.setattr(machine_tokens, "REGISTRATIONS_PER_MINUTE", 1)  # and 60 at once
    greedy = machine()
    answers = [greedy.post("workers", {"name": "more"}) for _ in range(61)]
    assert [status for status, _ in answers] == [201] * 59 + [429] * 2
    assert "too many registrations of workers" in answers[-1][1]["detail"]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_worker") == 60
    assert machine().claim() == []
    assert greedy.claim() == [], "its workers work on"


def test_rate_above_limit_gets_429_until_bucket_fills(machine, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(machine_tokens.rates, "_clock", lambda: now[0])
    one = machine(requests_per_minute=6)
    assert one.post("claim", {"worker": one.handle})[0] == 200
    status, answer = one.post("claim", {"worker": one.handle})
    assert (status, answer["code"]) == (429, "too_many")
    now[0] += 10.0
    assert one.post("claim", {"worker": one.handle})[0] == 200
