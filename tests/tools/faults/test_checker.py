"""The checker of the fault suite: a clean history passes, and it reports a violation of each invariant.

I1 to I20 are the numbers of the invariants in docs/internals/reliability.md.
"""

from __future__ import annotations

import os

import pytest

from django_pgqueue.worker.runtime import service
from django_pgqueue.worker.runtime.service import Service
from tests.tools.faults import checker, invariants_seen, journal
from tests.tools.faults.failpoints import with_errors_noted
from tests.tools.faults.history import Complaint, History, complaints
from tests.tools.faults.lives import Rules
from tests.tools.faults.story import Story, broken


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.mark.quick
def test_checker_clean_history_passes(story):
    story.whole(1, 1)
    story.enqueue(2)
    story.claim(2, 2)
    story.begin(2, 2)
    story.close(2, 2, "crashed", "ready", "rescue", crashes=1)
    story.claim(2, 3)
    story.run(2, 3)
    story.close(2, 3, "succeeded", "succeeded", "succeed")
    story.enqueue(3, "unknown")
    story.claim(3, 4)
    story.close(3, 4, "released", "ready", "release", attempt=0)
    story.say("exit", worker=5, code=0, last=len(story.history.events))
    assert checker.check(story.history) == []
    assert checker.summary(story.history)["executions"] == {"succeeded": 2, "crashed": 1, "released": 1}


def test_checker_two_open_executions_reports_i1(story):
    story.enqueue(1)
    story.claim(1, 1)
    story.transaction()
    story.execution(1, 2)
    assert "I1" in broken(story)


def test_checker_running_job_without_execution_reports_i2(story):
    story.enqueue(1)
    story.transaction()
    story.job(1, state="running", attempt=1)
    assert "I2" in broken(story)


def test_checker_outcome_written_twice_reports_i3(story):
    story.whole()
    story.transaction()
    story.execution(1, 1, outcome="failed")
    assert "I3" in broken(story)


@pytest.mark.parametrize("fate", ["done", "done before"])
def test_checker_late_completion_accepted_reports_i3(story, fate):
    story.enqueue(1)
    story.claim(1, 1)
    story.close(1, 1, "crashed", "ready", "rescue", crashes=1)
    story.say("ack", act="succeed", own=False, fates={"1": fate})
    assert "I3" in broken(story)


@pytest.mark.parametrize(("outcome", "expected"), [("crashed", set()), ("released", set()), ("failed", {"I3"})])
def test_checker_rescue_that_ends_otherwise_reports_i3(story, outcome, expected):
    """A rescue releases the job of a worker that had stopped before the claim was committed."""
    story.enqueue(1)
    story.claim(1, 1)
    counts = {"crashed": {"crashes": 1}, "released": {"attempt": 0}}.get(outcome, {})
    story.close(1, 1, outcome, "ready", "rescue", **counts)
    assert broken(story) == expected


def test_checker_completion_accepted_twice_reports_i3(story):
    story.whole()
    story.say("ack", act="succeed", own=False, fates={"1": "done"})
    assert "I3" in broken(story)


def test_checker_finished_job_changing_state_reports_i4(story):
    story.whole()
    story.transaction()
    story.job(1, state="ready", finished_at=None)
    assert "I4" in broken(story)
    story.say("operator", act="retry", jobs=[1])
    assert "I4" not in broken(story)


def test_checker_effect_of_crashed_atomic_job_reports_i5(story):
    story.enqueue(1)
    story.claim(1, 1)
    story.run(1, 1, "atomic")
    story.close(1, 1, "crashed", "ready", "rescue", crashes=1)
    assert "I5" in broken(story)


def test_checker_success_without_effect_reports_i5(story):
    story.whole()
    story.history.effects.clear()
    assert "I5" in broken(story)


def test_checker_wrong_counters_reports_i6(story):
    story.whole()
    story.history.jobs[1]["attempt"] = 2
    assert "I6" in broken(story)
    story.history.jobs[1] |= {"attempt": 1, "crashes": 1}
    assert "I6" in broken(story)


def test_checker_crashes_over_the_budget_reports_i7(story):
    story.enqueue(1)
    for number in range(1, 5):
        story.claim(1, number)
        story.close(1, number, "crashed", "ready", crashes=number)
    assert broken(story) == {"I7"}


def test_checker_attempts_over_the_maximum_reports_i7(story):
    story.enqueue(1, max_attempts=1)
    story.claim(1, 1)
    story.close(1, 1, "failed", "ready", "fail")
    story.claim(1, 2)
    assert broken(story) == {"I7"}


@pytest.mark.parametrize(("answer", "count"), [("committed", 0), ("rolled back", 1), ("unknown", 2)])
def test_checker_enqueue_contradicting_its_answer_reports_i8(story, answer, count):
    story.say("enqueue-sent", tag="tag1")
    story.say("enqueue-returned", tag="tag1", answer=answer)
    for number in range(count):
        story.transaction()
        story.event("job", "INSERT", number + 1, None, None, {"state": "ready", "limit_key": None}, "tag1")
    assert "I8" in broken(story)


def test_checker_order_without_its_job_reports_i8(story):
    story.whole()
    story.history.orders.add("another")
    assert broken(story) == {"I8"}


def test_checker_claim_before_run_after_reports_i9(story):
    story.enqueue(1, run_after=2000.0)
    story.claim(1, 1)
    assert "I9" in broken(story)


def test_checker_claim_over_limit_or_repeated_reports_i12(story):
    story.whole()
    story.say("claim", worker=7, parent=5, limit=1, executions=[8, 9])
    assert "I12" in broken(story)
    story.history.records.pop()
    story.say("claim", worker=7, parent=5, limit=4, executions=[1])
    assert "I12" in broken(story)


def test_checker_clean_exit_with_open_execution_reports_i14(story):
    story.enqueue(1)
    story.claim(1, 1)
    story.say("exit", worker=5, code=0, last=len(story.history.events))
    assert broken(story) == {"I14"}
    story.history.records[-1]["code"] = 1
    assert broken(story) == set()


def test_checker_job_removed_too_early_reports_i17(story):
    story.whole()
    row = story.history.jobs.pop(1)
    story.transaction()
    story.event("job", "DELETE", 1, None, row, None)
    assert "I17" in broken(story)
    assert "I17" in broken(story, retention_seconds=60.0)
    assert "I17" not in broken(story, retention_seconds=0.01)


def test_checker_due_job_left_at_the_end_reports_i19(story):
    story.enqueue(1)
    assert broken(story) == set()
    assert broken(story, finished=True) == {"I19"}


def test_checker_loop_without_backoff_reports_i20(story):
    story.history.complaints = [Complaint("1 pgqueue-fetcher", at) for at in map((0.04).__mul__, range(21))]
    assert broken(story) == {"I20"}
    story.history.complaints = [Complaint("1 pgqueue-fetcher", at) for at in map((0.06).__mul__, range(21))]
    assert broken(story) == set()


def test_checker_body_unclaimed_or_run_twice_reports_i3(story):
    story.whole()
    story.begin(1, 9)
    assert broken(story) == {"I3"}
    story.history.records.pop()
    story.begin(1, 1)
    assert broken(story) == {"I3"}


@pytest.mark.parametrize("starts", [(1, 2), (2, 1)])
def test_checker_overlap_with_open_execution_reports_i1(story, starts):
    """Two bodies of a job may overlap if the first execution was closed before the second was claimed.

    In that case the first body is a zombie. A frozen process can also start it after the second. Otherwise two
    executions are open at the same time, which violates I1.
    """
    story.enqueue(1)
    story.claim(1, 1)
    story.close(1, 1, "crashed", "ready", crashes=1)
    story.claim(1, 2)
    for execution in starts:
        story.begin(1, execution)
    story.end(1, 1)
    story.end(1, 2)
    story.close(1, 2, "succeeded", "succeeded", "succeed")
    assert broken(story) == set()
    assert checker.summary(story.history)["overlaps"] == 1
    opened = next(event for event in story.history.events if event.execution == 2)
    story.history.events.remove(opened)
    story.history.events.insert(0, opened._replace(id=0))
    assert "I1" in broken(story)


def test_complaints_service_error_is_in_the_history(monkeypatch, tmp_path):
    class Failing(Service):
        def tick(self):
            raise OSError("away")

    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(service, "ERROR_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Service, "_pause_after", with_errors_noted(Service._pause_after))
    failing = Failing("failing")
    count = invariants_seen.ERRORS_A_SECOND + 1
    for _ in range(count):
        failing._survive()
    found = complaints(journal.read(tmp_path))
    assert [complaint.source for complaint in found] == [f"{os.getpid()} pgqueue-failing"] * count
    assert list(invariants_seen.no_spinning(History(complaints=found), {}, Rules()))
