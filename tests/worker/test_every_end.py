"""End jobs in every way: what follows the end happens at once. No sweep runs before the end of these tests."""

from __future__ import annotations

import json
import mmap
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection as django_connection

from django_pgqueue.contrib.remote import transitions
from django_pgqueue.ends.compensations import HEADER
from django_pgqueue.ends.end_checks import CHECKS
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import completions, operator, rescues, sagas, steps, workers
from django_pgqueue.lifecycle.bulk_acts import Selection
from django_pgqueue.lifecycle.steps import EndedStep
from django_pgqueue.lifecycle.types import Claimed, Released
from django_pgqueue.models import Job
from django_pgqueue.states import StepKind
from django_pgqueue.worker import foreground
from django_pgqueue.worker.claiming.claimer import set_aside
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.maintenance.rescuer import Rescuer
from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision import settlement
from django_pgqueue.worker.supervision.heartbeat import ChildProcess
from tests import helpers
from tests.concurrency.test_batches import batch_of, callbacks
from tests.concurrency.test_sagas import arguments, call, dead_job, undone
from tests.worker.test_bulk_acts import finish, request

pytestmark = pytest.mark.usefixtures("committing")

# ------------------------------------------------------------------ jobs that something follows


def job_of_a_batch(engine) -> int:
    batch_of(engine, 1)
    return int(helpers.scalar(engine, "SELECT id FROM pgqueue_job"))


def batch_ended(engine) -> bool:
    return "complete" in callbacks(engine)


def node_with_a_dependent(engine) -> int:
    [needed] = helpers.make_nodes(engine)
    helpers.make_nodes(engine, needs=[needed])
    return needed


def dependent_advanced(engine) -> bool:
    return not helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state = 'waiting'")


def job_with_a_step(engine) -> int:
    """Return a ready job whose first attempt has stored a step that can be undone."""
    job_id = helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    step = EndedStep("a", 1, StepKind.STEP, None, 0.1, compensation=call(), compensation_arguments=arguments("a"))
    steps.store_step(engine, claimed.key, step)
    completions.release(engine, [Released(claimed.key)])
    return job_id


def step_undone(engine) -> bool:
    return undone(engine) == ["a"]


def compensation_before_another_one(engine) -> int:
    """Return the job of the first of two compensations."""
    [added] = sagas.compensate(engine, [dead_job(engine, "a", "b")]).added
    headers = json.dumps({HEADER: added.compensated_id})
    engine.execute("UPDATE pgqueue_job SET queue_name = 'default', headers = %s WHERE id = %s", [headers, added.job_id])
    return added.job_id


FOLLOWED: dict[str, Any] = {
    "batches": (job_of_a_batch, batch_ended),
    "workflows": (node_with_a_dependent, dependent_advanced),
    "compensations": (job_with_a_step, step_undone),
}


def test_every_check_is_tested_here():
    assert {each.name for each in CHECKS} == FOLLOWED.keys()


# ------------------------------------------------------------------ the ends


def link_to(engine) -> Any:
    return SimpleNamespace(use=lambda: nullcontext(engine), close=lambda: None, connected_at=1.0, alias="default")


def report(engine, ending: Ending, **changes: Any) -> Report:
    claimed, now = helpers.claim_one(engine), time.monotonic()
    has_steps = bool(helpers.scalar(engine, "SELECT count(*) FROM pgqueue_step WHERE compensation IS NOT NULL"))
    return Report(claimed, ending, now - 0.02, now - 0.01, has_compensations=has_steps, **changes)


def by_worker(engine, job_id: int, ending: Ending = Ending.FAILED) -> None:
    completer = Completer(link_to(engine))
    completer.hand_over(report(engine, ending))
    completer.tick()


def by_foreground(engine, job_id: int, ending: Ending = Ending.FAILED) -> None:
    foreground.write(engine, report(engine, ending), Notes())


def by_test_or_immediate(engine, job_id: int, ending: Ending = Ending.FAILED) -> None:
    """End a job on the caller's own connection, as `run_jobs()` and `PGQUEUE["IMMEDIATE"]` do."""
    foreground.write(django_connection, report(engine, ending), Notes())


def by_remote_worker(engine, job_id: int, ending: Ending = Ending.FAILED) -> None:
    transitions.write(engine, [report(engine, ending)], FOREGROUND)


def by_expiry_at_the_start(engine, job_id: int) -> None:
    claimed = helpers.claim_one(engine)
    assert transitions.prepare(engine, [claimed._replace(start_by=time.monotonic() - 1.0)], FOREGROUND) == []


def claimed_for_the_last_time(engine, **changes: Any) -> Claimed:
    engine.execute("UPDATE pgqueue_job SET max_attempts = attempt + 1 WHERE state = 'ready'")
    return helpers.claim_one(engine, **changes)


def by_settlement(engine, job_id: int) -> None:
    """End a job that has crashed its worker process, in a settlement process."""
    worker_id = workers.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)
    process = ChildProcess(ProcessState(1), 1, 0, worker_id)
    process.state.started(0, claimed_for_the_last_time(engine, worker_id=worker_id).execution_id)
    written = mmap.mmap(-1, 1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(settlement, "Link", lambda alias, role: link_to(engine))
        patch.setattr(background_log, "start", lambda: None)
        for name in ("forget_inherited_processes", "run_exit_functions"):
            patch.setattr(settlement, name, lambda: None)
        patch.setattr(os, "_exit", exit_with)
        settlement.main("default", [process], written)
    assert written[0]


def exit_with(code: int) -> None:
    raise SystemExit(code)


def by_rescue(engine, job_id: int) -> None:
    helpers.end_lease(engine, helpers.claim_one(engine).execution_id)
    rescuer = Rescuer(link_to(engine), FOREGROUND, lambda execution: None, lambda seconds: None)
    rescuer._rescue(engine, rescues.ending_leases(engine, 60.0))


def by_expiry(engine, job_id: int) -> None:
    engine.execute("UPDATE pgqueue_job SET expires_at = now() - interval '1 s' WHERE id = %s", [job_id])
    assert Maintenance(link_to(engine))._expire() is False


def by_requeue(engine, job_id: int) -> None:
    """End a running job whose execution was removed."""
    claimed = claimed_for_the_last_time(engine)
    engine.execute("DELETE FROM pgqueue_execution WHERE id = %s", [claimed.execution_id])
    Maintenance(link_to(engine))._requeue()


def by_set_aside(engine, job_id: int) -> None:
    assert set_aside(engine, job_id, ValueError("its row is broken"), 1, FOREGROUND)


def by_release(engine, job_id: int) -> None:
    """Release a job that an operator has asked to stop."""
    claimed = helpers.claim_one(engine)
    operator.cancel(engine, [job_id])
    release_executions(engine, [claimed], FOREGROUND)


def by_attempt_to_be_repeated(engine, job_id: int) -> None:
    """Write a failure that a retry would follow, if an operator had not asked the job to stop."""
    again = report(engine, Ending.FAILED, delay_seconds=60.0)
    operator.cancel(engine, [job_id])
    completer = Completer(link_to(engine))
    completer.hand_over(again)
    completer.tick()


def by_report_that_cannot_be_stored(engine, job_id: int) -> None:
    """End a job whose last snooze the database refuses, after it has written the snooze of another job."""
    engine.execute("UPDATE pgqueue_job SET max_attempts = attempt + 1 WHERE state = 'ready'")
    bad, completer = report(engine, Ending.SNOOZED, delay_seconds=1e20), Completer(link_to(engine))
    helpers.make_job(engine)
    for each in (report(engine, Ending.SNOOZED, delay_seconds=1.0), bad):
        completer.hand_over(each)
    completer.tick()


def by_crash_in_isolation(engine, job_id: int) -> None:
    """End a job by the crash of its isolated process, which cannot say which steps it has."""
    completer = Completer(link_to(engine))
    completer.hand_over(replace(report(engine, Ending.CRASHED), has_compensations=False))
    completer.tick()


def by_operator(engine, job_id: int) -> None:
    assert Job.objects.get(pk=job_id).cancel()


def by_bulk_act(engine, job_id: int) -> None:
    request(engine, "cancel", Selection("ready"))
    finish(engine)


COMPLETIONS = [by_worker, by_foreground, by_test_or_immediate, by_remote_worker]
OTHERS = [
    by_attempt_to_be_repeated,
    by_report_that_cannot_be_stored,
    by_crash_in_isolation,
    by_expiry_at_the_start,
    by_settlement,
    by_rescue,
    by_expiry,
    by_requeue,
    by_set_aside,
    by_release,
    by_bulk_act,
    by_operator,
]

LEFT_TO_THE_SWEEP = [
    ("batches", by_operator),
    ("compensations", by_operator),
    ("compensations", by_expiry_at_the_start),
]
"""As the table in `ends` says."""

# ------------------------------------------------------------------ tests


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__.removeprefix("by_")


@pytest.mark.promise("every-end-is-followed")
@pytest.mark.parametrize("by", [*COMPLETIONS, *OTHERS], ids=name_of)
@pytest.mark.parametrize("followed", FOLLOWED)
def test_end_of_a_job_what_follows_happens_at_once(engine, followed, by):
    make, has_happened = FOLLOWED[followed]
    job_id = make(engine)
    assert not has_happened(engine)
    by(engine, job_id)
    assert helpers.state_of(engine, job_id) in ("dead", "cancelled")
    assert has_happened(engine) == ((followed, by) not in LEFT_TO_THE_SWEEP)
    for end_check in CHECKS:
        helpers.sweep_ends(engine, end_check.sweeps[-1].name)
    assert has_happened(engine)


@pytest.mark.promise("every-end-is-followed")
@pytest.mark.parametrize("by", COMPLETIONS, ids=name_of)
def test_end_of_a_compensation_the_next_one_is_added_at_once(engine, by):
    job_id = compensation_before_another_one(engine)
    by(engine, job_id, Ending.SUCCEEDED)
    assert helpers.state_of(engine, job_id) == "succeeded"
    assert undone(engine) == ["a"]
