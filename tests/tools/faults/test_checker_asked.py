"""The checker of what was asked for: unique keys, schedules, pauses, cancellations, expiry; see `test_checker`."""

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


def test_two_live_jobs_with_a_key(story):
    story.enqueue(1, **KEYED)
    story.enqueue(2, **KEYED | {"key": "b"})
    story.enqueue(3, **DEBOUNCED)
    assert broken(story) == set()
    story.enqueue(4, **KEYED)
    assert broken(story) == {"I10"}


@pytest.mark.parametrize("state", ["ready", "running"])
def test_a_job_whose_row_has_lost_its_key_keeps_it_all_the_same(story, state):
    """A failure that gives up the key lets another in, and no column tells of it any more."""
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


def test_a_key_is_free_when_its_job_has_ended(story):
    story.enqueue(1, **KEYED)
    story.claim(1, 1)
    story.close(1, 1, "failed", "dead", "fail")
    story.enqueue(2, **KEYED)
    assert broken(story) == set()
    story.say("operator", act="retry", jobs=[1])
    story.transaction()
    story.job(1, state="ready", attempt=0, finished_at=None)
    assert broken(story) == {"I10"}


def test_a_key_that_is_kept_until_the_start_is_free_from_then_on(story):
    story.enqueue(1, **DEBOUNCED)
    story.claim(1, 1)
    story.enqueue(2, **DEBOUNCED)
    story.close(1, 1, "released", "ready", "release", attempt=0, key=None)
    assert broken(story) == set()
    story.enqueue(3, **DEBOUNCED)
    assert broken(story) == {"I10"}


def test_who_was_told_that_there_is_one_already(story):
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


def test_a_call_that_took_the_place_of_another_is_there(story):
    story.enqueue(1, **DEBOUNCED)
    story.say("enqueue-sent", tag="later")
    story.say("enqueue-returned", tag="later", answer="committed", job=1, task=DEBOUNCED["task"], key="a")
    assert broken(story) == {"I8"}
    story.transaction()
    story.event("job", "UPDATE", 1, None, story.rows[1], story.rows[1], "later")
    assert broken(story) == set()


def hold(story: Story, job: int, at: float, key: str = "a") -> None:
    """Make a job that takes a key for ten seconds, as one statement."""
    story.transaction()
    story.job(job)
    story.history.holds.append(Hold(at, str(story.xid), PLAIN, key, job, at + 10))


def test_a_key_that_is_held_for_a_period_is_taken_again_only_after_it(story):
    hold(story, 1, 5.0)
    hold(story, 2, 6.0, key="b")
    hold(story, 3, 15.0)
    assert broken(story) == set()
    story.say("enqueue-sent", tag="again")
    story.say("enqueue-returned", tag="again", answer="duplicate", job=1, task=PLAIN, key="a")
    assert broken(story) == set()
    hold(story, 4, 24.9)
    assert broken(story) == {"I10"}


@pytest.mark.parametrize("job", [1, 2])
def test_a_hold_without_its_job(story, job):
    """There is none, or one that was there before."""
    story.enqueue(1)
    story.transaction()
    story.history.holds = [Hold(5.0, str(story.xid), PLAIN, "a", job, 15.0)]
    assert broken(story) == {"I10"}


# ------------------------------------------------------------------ schedules


def fire(story: Story, job: int | None, tick_at: float, schedule: int = 1) -> None:
    """Make the job of a tick, as one statement."""
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


def test_ticks_that_are_fired_once_each(story):
    for job, tick_at in enumerate((10.0, 15.0, 20.0), 1):
        fire(story, job, tick_at)
    fire(story, None, 25.0)
    fire(story, 4, 26.123456)  # an operator's, besides
    fire(story, 5, 10.0, schedule=2)
    assert broken(story) == set()


def test_a_tick_that_is_fired_twice(story):
    fire(story, 1, 10.0)
    fire(story, 2, 10.0)
    assert broken(story) == {"I16"}


def test_one_job_for_two_ticks(story):
    fire(story, 1, 10.0)
    story.history.ticks.append(story.history.ticks[0]._replace(tick_at=15.0))
    story.history.schedules[1]["next_run_at"] = 20.0
    assert broken(story) == {"I16"}


@pytest.mark.parametrize("xid", ["9", "gone"])
def test_a_tick_without_its_job(story, xid):
    fire(story, 1, 10.0)
    [tick] = story.history.ticks
    story.history.ticks = [tick._replace(xid=xid) if xid == "9" else tick._replace(job=2)]
    assert broken(story) == {"I16"}


def test_a_scheduled_job_without_its_tick(story):
    fire(story, 1, 10.0)
    story.history.ticks.clear()
    assert broken(story) == {"I16"}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_tick_that_is_left_out(story, lost):
    """In the middle, or the last before the next."""
    for job, tick_at in enumerate((10.0, 15.0, 20.0), 1):
        if job != lost + 1:
            fire(story, job, tick_at)
    story.history.schedules[1]["next_run_at"] = 25.0
    assert broken(story) == {"I16"}
    story.history.schedules[1]["missed"] = "skip"
    assert broken(story) == set()


# ------------------------------------------------------------------ what may not begin


@pytest.mark.parametrize(("kind", "name"), [("queue", "default"), ("task", PLAIN)])
def test_a_claim_of_what_is_paused(story, kind, name):
    story.enqueue(1)
    story.history.pauses = [Pause(story.now, kind, name, paused=True, until=None)]
    story.now += 1.0
    story.claim(1, 1)
    assert broken(story) == set(), "a worker obeys within a while"
    assert broken(story, obey_seconds=0.5) == {"I9"}
    story.history.pauses.append(Pause(story.now - 0.5, kind, name, paused=False, until=None))
    assert broken(story, obey_seconds=0.5) == set(), "resumed"
    story.history.pauses = [Pause(story.now - 5, kind, name, paused=True, until=story.now - 1)]
    assert broken(story) == set(), "over by itself"
    story.history.pauses = [Pause(story.now - 5, kind, "another", paused=True, until=None)]
    assert broken(story) == set()


def test_a_claim_of_what_was_to_be_cancelled(story):
    story.enqueue(1, cancel=True)
    story.claim(1, 1)
    assert broken(story) == {"I9"}


@pytest.mark.parametrize("state", ["ready", "dead"])
def test_what_was_to_be_cancelled_comes_back(story, state):
    story.enqueue(1)
    story.claim(1, 1)
    story.transaction()
    story.job(1, cancel=True)
    story.close(1, 1, "failed", state, "fail")
    assert broken(story) == {"I9"}


def test_a_body_that_begins_after_its_job_has_expired(story):
    story.enqueue(1, expires_at=story.now + 0.15)
    story.claim(1, 1)
    story.close(1, 1, "cancelled", "cancelled", "end_cancelled")
    assert broken(story) == set()
    story.begin(1, 1)
    assert broken(story) == {"I9"}


def test_a_job_that_expires_before_its_time(story):
    story.enqueue(1, expires_at=story.now + 60)
    story.transaction()
    story.execution(1, 1, outcome="cancelled")  # the record of the reason; it never ran, and is no attempt
    story.job(1, state="cancelled", finished_at=story.now)
    assert broken(story) == {"I9"}
    story.now += 60
    story.history.events = [event._replace(at=story.now) for event in story.history.events]
    assert broken(story) == set()
    assert checker.summary(story.history)["expired"] == 1
