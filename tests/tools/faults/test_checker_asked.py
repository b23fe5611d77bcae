"""The checker on what users request: unique keys, schedules, pauses, cancellations and expiry.

`test_checker` tests the other invariants. Their numbers are those in docs/internals/reliability.md.
"""

from __future__ import annotations

import pytest

from tests.tools.faults import checker
from tests.tools.faults.history import Hold, Pause, Tick
from tests.tools.faults.story import PLAIN, Story, broken


@pytest.fixture
def story() -> Story:
    return Story()


# ------------------------------------------------------------------ unique keys


KEYED = {"task": "tests.tools.faults.app.tasks.keyed.keyed", "key": "a"}
DEBOUNCED = {"task": "tests.tools.faults.app.tasks.keyed.debounced", "key": "a", "ready_only": True}


def test_checker_two_live_jobs_with_one_key_reports_i10(story):
    story.enqueue(1, **KEYED)
    story.enqueue(2, **KEYED | {"key": "b"})
    story.enqueue(3, **DEBOUNCED)
    assert broken(story) == set()
    story.enqueue(4, **KEYED)
    assert broken(story) == {"I10"}


@pytest.mark.parametrize("state", ["ready", "running"])
def test_checker_second_job_after_key_cleared_reports_i10(story, state):
    """The first job's row loses its key, which lets a second job use the key while the first is still live.

    No column shows the lost key, so the checker has to go by the key of the enqueue.
    """
    story.enqueue(1, **KEYED)
    story.claim(1, 1)
    if state == "ready":
        story.close(1, 1, "failed", "ready", "fail", key=None)
    else:
        story.transaction()
        story.job(1, key=None)
    assert broken(story) == set()
    story.enqueue(2, **KEYED)
    assert broken(story) == {"I10"}


def test_checker_retry_of_job_with_reused_key_reports_i10(story):
    story.enqueue(1, **KEYED)
    story.claim(1, 1)
    story.close(1, 1, "failed", "dead", "fail")
    story.enqueue(2, **KEYED)
    assert broken(story) == set()
    story.say("operator", act="retry", jobs=[1])
    story.transaction()
    story.job(1, state="ready", attempt=0, finished_at=None)
    assert broken(story) == {"I10"}


def test_checker_key_reused_after_start_passes(story):
    story.enqueue(1, **DEBOUNCED)
    story.claim(1, 1)
    story.enqueue(2, **DEBOUNCED)
    story.close(1, 1, "released", "ready", "release", attempt=0, key=None)
    assert broken(story) == set()
    story.enqueue(3, **DEBOUNCED)
    assert broken(story) == {"I10"}


def test_checker_duplicate_of_deleted_job_passes(story):
    """An operator has deleted the job after the answer."""
    story.enqueue(1, **KEYED)
    story.say("enqueue-sent", tag="again")
    story.say("enqueue-returned", tag="again", answer="duplicate", job=1, task=KEYED["task"], key=KEYED["key"])
    story.say("operator", act="delete", jobs=[1])
    assert broken(story) == set()


def test_checker_wrong_duplicate_answer_reports_i10(story):
    story.enqueue(1, **KEYED)
    story.say("enqueue-sent", tag="again")
    story.say("enqueue-returned", tag="again", answer="duplicate", job=1, task=KEYED["task"], key="a")
    assert broken(story) == set()
    story.history.records[-1]["key"] = "b"
    assert broken(story) == {"I10"}
    story.history.records[-1]["key"] = "a"
    story.transaction()
    story.event("job", "INSERT", 2, None, None, {**story.rows[1], "key": None}, "again")
    assert broken(story) == {"I8"}


def test_checker_replace_without_its_update_reports_i8(story):
    story.enqueue(1, **DEBOUNCED)
    story.say("enqueue-sent", tag="later")
    story.say("enqueue-returned", tag="later", answer="committed", job=1, task=DEBOUNCED["task"], key="a")
    assert broken(story) == {"I8"}
    story.transaction()
    story.event("job", "UPDATE", 1, None, story.rows[1], story.rows[1], "later")
    assert broken(story) == set()


def open_window(story: Story, job: int, at: float, key: str = "a") -> None:
    """Add a job and its uniqueness window of ten seconds in one transaction, as one statement does."""
    story.transaction()
    story.job(job)
    story.history.holds.append(Hold(at, str(story.xid), PLAIN, key, job, at + 10))


def test_checker_key_reused_within_window_reports_i10(story):
    open_window(story, 1, 5.0)
    open_window(story, 2, 6.0, key="b")
    open_window(story, 3, 15.0)
    assert broken(story) == set()
    story.say("enqueue-sent", tag="again")
    story.say("enqueue-returned", tag="again", answer="duplicate", job=1, task=PLAIN, key="a")
    assert broken(story) == set()
    open_window(story, 4, 24.9)
    assert broken(story) == {"I10"}


@pytest.mark.parametrize("job", [1, 2])
def test_checker_window_without_its_job_reports_i10(story, job):
    """Job 1 was enqueued in an earlier transaction than the window, and job 2 does not exist."""
    story.enqueue(1)
    story.transaction()
    story.history.holds = [Hold(5.0, str(story.xid), PLAIN, "a", job, 15.0)]
    assert broken(story) == {"I10"}


# ------------------------------------------------------------------ schedules


def fire(story: Story, job: int | None, tick_at: float, schedule: int = 1) -> None:
    """Record a tick and add its job in one transaction, as one statement does."""
    story.transaction()
    if job is not None:
        story.job(job)
        story.history.events[-1] = story.history.events[-1]._replace(tag="schedule:each")
    story.history.ticks.append(Tick(str(story.xid), schedule, tick_at, job))
    story.history.schedules[schedule] = {
        "expression": "every 5 seconds",
        "missed": "all",
        "next_run_at": tick_at // 5 * 5 + 5,
    }


def test_checker_each_tick_fired_once_passes(story):
    for job, tick_at in enumerate((10.0, 15.0, 20.0), 1):
        fire(story, job, tick_at)
    fire(story, None, 25.0)
    fire(story, 4, 26.123456)  # in addition, an operator ran the schedule
    fire(story, 5, 10.0, schedule=2)
    assert broken(story) == set()


def test_checker_tick_fired_twice_reports_i16(story):
    fire(story, 1, 10.0)
    fire(story, 2, 10.0)
    assert broken(story) == {"I16"}


def test_checker_one_job_for_two_ticks_reports_i16(story):
    fire(story, 1, 10.0)
    story.history.ticks.append(story.history.ticks[0]._replace(tick_at=15.0))
    story.history.schedules[1]["next_run_at"] = 20.0
    assert broken(story) == {"I16"}


@pytest.mark.parametrize("xid", ["9", "gone"])
def test_checker_tick_without_its_job_reports_i16(story, xid):
    fire(story, 1, 10.0)
    [tick] = story.history.ticks
    story.history.ticks = [tick._replace(xid=xid) if xid == "9" else tick._replace(job=2)]
    assert broken(story) == {"I16"}


def test_checker_scheduled_job_without_tick_reports_i16(story):
    fire(story, 1, 10.0)
    story.history.ticks.clear()
    assert broken(story) == {"I16"}


@pytest.mark.parametrize("lost", [1, 2])
def test_checker_tick_left_out_reports_i16(story, lost):
    """The missing tick is in the middle, or it is the last one before the schedule's next run."""
    for job, tick_at in enumerate((10.0, 15.0, 20.0), 1):
        if job != lost + 1:
            fire(story, job, tick_at)
    story.history.schedules[1]["next_run_at"] = 25.0
    assert broken(story) == {"I16"}
    story.history.schedules[1]["missed"] = "skip"
    assert broken(story) == set()


# ------------------------------------------------------------------ jobs that must not start


@pytest.mark.parametrize(("kind", "name"), [("queue", "default"), ("task", PLAIN)])
def test_checker_claim_of_paused_job_reports_i9(story, kind, name):
    story.enqueue(1)
    story.history.pauses = [Pause(story.now, kind, name, paused=True, until=None)]
    story.now += 1.0
    story.claim(1, 1)
    assert broken(story) == set(), "workers have a few seconds to obey a pause"
    assert broken(story, obey_seconds=0.5) == {"I9"}
    story.history.pauses.append(Pause(story.now - 0.5, kind, name, paused=False, until=None))
    assert broken(story, obey_seconds=0.5) == set(), "the pause was resumed before the claim"
    story.history.pauses = [Pause(story.now - 5, kind, name, paused=True, until=story.now - 1)]
    assert broken(story) == set(), "the pause ended by itself before the claim"
    story.history.pauses = [Pause(story.now - 5, kind, "another", paused=True, until=None)]
    assert broken(story) == set()


def test_checker_claim_of_job_to_be_cancelled_reports_i9(story):
    story.enqueue(1, cancel=True)
    story.claim(1, 1)
    assert broken(story) == {"I9"}


@pytest.mark.parametrize("state", ["ready", "dead"])
def test_checker_cancel_request_ignored_at_end_reports_i9(story, state):
    story.enqueue(1)
    story.claim(1, 1)
    story.transaction()
    story.job(1, cancel=True)
    story.close(1, 1, "failed", state, "fail")
    assert broken(story) == {"I9"}


def test_checker_body_of_expired_job_reports_i9(story):
    story.enqueue(1, expires_at=story.now + 0.15)
    story.claim(1, 1)
    story.close(1, 1, "cancelled", "cancelled", "end_cancelled")
    assert broken(story) == set()
    story.begin(1, 1)
    assert broken(story) == {"I9"}


def test_checker_expiry_before_its_time_reports_i9(story):
    story.enqueue(1, expires_at=story.now + 60)
    story.transaction()
    story.execution(1, 1, outcome="cancelled")  # the record of the reason: not an attempt, the job never ran
    story.job(1, state="cancelled", finished_at=story.now)
    assert broken(story) == {"I9"}
    story.now += 60
    story.history.events = [event._replace(at=story.now) for event in story.history.events]
    assert broken(story) == set()
    assert checker.summary(story.history)["expired"] == 1
