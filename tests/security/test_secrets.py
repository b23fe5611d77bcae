"""Test that a secret in a job's arguments is stored in the job's row only.

It must not be in any log record, error, traceback or repr. The package cannot control what a task itself logs, raises
or returns, so the tasks of these tests do not reveal the secret.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import enqueue_many, log, signals
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks

SECRET = "hunter2-correct-horse"
CALL = {"password": SECRET}
ENDINGS = {
    "noop": "succeeded",
    "keep_secret": "dead",
    "keep_secret_async": "dead",
    "keep_secret_atomic": "dead",
    "raise_directive": "ready",  # the task has no such argument
    "nobody_knows": "ready",
}
fail: Any = tasks.fail
noop: Any = tasks.noop
COLUMNS = "exception_class || error || traceback"


def enqueue_all(on: Any) -> dict[str, int]:
    arguments = [f'{{"args":[],"kwargs":{{"password":"{SECRET}"}}}}']
    return {
        name: helpers.make_job(on, task_name=f"tests.app.tasks.{name}", arguments=arguments, max_attempts=2)
        for name in ENDINGS
    }


@pytest.mark.process
def test_worker_at_debug_level_logs_no_secret(engine, start, monkeypatch):
    """Cover each ending, a crash, a lost worker, a claim that fails on its data, and an expired grace period."""
    monkeypatch.setenv("PGQUEUE_TEST_LOG", "DEBUG")
    engine.execute("ALTER TABLE pgqueue_job ADD CONSTRAINT never_13 CHECK (priority <> 13 OR state <> 'running')")
    try:
        ids = enqueue_all(engine)
        arguments = [f'{{"args":["{SECRET}"],"kwargs":{{}}}}']
        bad_id = helpers.make_job(engine, arguments=arguments, priority=13)
        lost_id = helpers.make_job(engine, arguments=arguments, queue_name="lost")
        helpers.claim_all(engine, Lane("lost", 0), worker_id=1_000_000)
        helpers.end_lease(engine)
        worker = start("--concurrency", "2", CRASH_BUDGET=1, GRACE=0.2, LEASE=6.0)
        wanted = {ids[name]: state for name, state in ENDINGS.items()} | {bad_id: "dead", lost_id: "dead"}
        worker.wait_until(lambda: {job_id: helpers.state_of(engine, job_id) for job_id in wanted} == wanted)
        crash_id = helpers.make_job(
            engine, task_name="tests.app.tasks.exit_at_once", arguments=['{"args":[],"kwargs":{"code":7}}']
        )
        worker.wait_until(lambda: helpers.state_of(engine, crash_id) == "dead")
        stuck = [f'{{"args":["/{SECRET}"],"kwargs":{{}}}}']
        stuck_id = helpers.make_job(engine, task_name="tests.app.tasks.wait_for_file", arguments=stuck)
        worker.wait_until(lambda: f"job {stuck_id} (tests.app.tasks.wait_for_file) started" in worker.said)
        worker.send(15)
        worker.exit_code()
    finally:
        engine.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT never_13")
    assert (
        "DEBUG" in worker.said and "one by one" in worker.said and "still running after the grace period" in worker.said
    )
    assert SECRET not in worker.said, worker.said
    rows = [text for [text] in engine.execute(f"SELECT {COLUMNS} FROM pgqueue_execution").fetchall()]
    assert len(rows) >= len(ENDINGS) + 3 and any("KeptError" in row for row in rows)
    assert not [row for row in rows if SECRET in row]


@pytest.mark.django_db
def test_run_jobs_logs_and_signals_contain_no_secret(caplog):
    """Check the records with all their attributes, except for the frames of an exception's own traceback."""
    caplog.set_level(logging.DEBUG)
    log.enable()
    signalled: list[Any] = []
    senders = [value for value in vars(signals).values() if isinstance(value, signals.Signal)]
    for signal in senders:
        signal.connect(lambda **about: signalled.append(about), weak=False, dispatch_uid="secrets")
    try:
        enqueue_all(connection)
        run_jobs()
    finally:
        log.disable()
        for signal in senders:
            signal.disconnect(dispatch_uid="secrets")
    assert len(signalled) >= len(ENDINGS)
    records = [record for record in caplog.records if record.name.startswith("django_pgqueue")]
    assert len(records) >= len(ENDINGS)
    assert SECRET not in "".join(f"{vars(record)} {record.getMessage()}" for record in records) + caplog.text + str(
        signalled
    )
    assert not [row for row in Execution.objects.values() if SECRET in str(row)]


@pytest.mark.quick
@pytest.mark.django_db
def test_repr_job_with_secret_omits_the_secret():
    job = noop.enqueue(SECRET, password=SECRET)
    run_jobs()
    stored = Job.objects.get(pk=job.pk)
    execution = stored.executions.get()
    call = noop.s(SECRET, password=SECRET)
    shown = [str(thing) + repr(thing) for thing in (job, stored, execution, Job.objects.all(), tasks.noop, call)]
    assert SECRET not in "".join(shown)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fail.enqueue(password=SECRET),
        lambda: fail.enqueue(SECRET, SECRET),
        lambda: noop.enqueue(password=f"{SECRET}\0"),
        lambda: noop.enqueue(password=f"{SECRET}\ud800"),
        lambda: noop.enqueue(password=SECRET.encode()),
        lambda: noop.enqueue(password={SECRET}),
        lambda: noop.enqueue(password=[SECRET, float("nan")]),
        lambda: noop.enqueue(password=SECRET * 100_000),
        lambda: noop.enqueue(password={"a": [SECRET, 10**5000]}),
        lambda: noop.enqueue_many([SECRET]),
        lambda: noop.enqueue_many([([SECRET], CALL)]),
        lambda: fail.enqueue_many([CALL]),
        lambda: fail.enqueue_many([(SECRET, CALL)]),
        lambda: fail.enqueue_many([fail.s(SECRET, SECRET)]),
        lambda: noop.enqueue_many([fail.s(SECRET)]),
        lambda: enqueue_many([(SECRET,)]),  # type: ignore[list-item]  # that is the error
        lambda: noop.enqueue_many([((), {"password": SECRET.encode()})]),
    ],
)
def test_enqueue_refused_call_error_omits_the_secret(wrong):
    with pytest.raises((TypeError, ValueError)) as refused:
        wrong()
    shown = refused.value
    while shown is not None:  # check its causes too
        assert SECRET not in f"{shown!s} {shown!r}"
        shown = (
            None if shown.__suppress_context__ and shown.__cause__ is None else (shown.__cause__ or shown.__context__)
        )
    assert SECRET not in "".join(traceback.format_exception(refused.value))
