"""The checker on limits: histories, written by hand, that break each rule of a limit, and histories that just keep it.

`test_checker` tests the other invariants. Their numbers are those in docs/internals/reliability.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.faults import checker
from tests.tools.faults.history import Stop
from tests.tools.faults.story import Story, broken

PAIRS = {"limit_key": "slots:a"}
RATED = {"limit_key": "tokens:a"}
ORDERED = {"limit_key": "order:a", "order": 1}
BLOCKED = {"limit_key": "blocked:a", "order": 2}
HELD = {"limit_key": "held:a"}


@pytest.fixture
def story() -> Story:
    return Story()


def enqueue(story: Story, count: int, **changes: Any) -> None:
    for job in range(1, count + 1):
        story.enqueue(job, **changes)


def succeed(story: Story, job: int, execution: int) -> None:
    story.run(job, execution)
    story.close(job, execution, "succeeded", "succeeded", "succeed")


# ------------------------------------------------------------------ slots


def test_checker_open_weight_up_to_the_limit_passes(story):
    enqueue(story, 4, **PAIRS)
    story.enqueue(5, limit_key="slots:b", weight=3)
    for job in (1, 2, 3, 5):
        story.claim(job, job)
    succeed(story, 1, 1)
    story.claim(4, 4)
    assert broken(story) == set()
    assert checker.summary(story.history)["limited"] == {"slots": 5}


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (2, 2), (1, 3), (9, 1)])
def test_checker_more_open_than_the_limit_reports_i11(story, weights):
    for job, weight in enumerate(weights, 1):
        story.enqueue(job, weight=weight, **PAIRS)
        assert broken(story) == set()
        story.claim(job, job)
    assert broken(story) == {"I11"}


def test_checker_lost_execution_is_open_until_its_rescue(story):
    enqueue(story, 2, **ORDERED | {"limit_key": "slots:a", "weight": 3})
    story.claim(1, 1)
    story.executions[1]["lease"] = 0.0
    before = list(story.history.events)
    story.claim(2, 2)
    assert broken(story) == {"I11"}
    story.history.events = before
    story.rows[2] |= {"state": "ready", "attempt": 0}
    story.close(1, 1, "crashed", "ready", "rescue", crashes=1)
    story.claim(2, 3)
    assert broken(story) == set()


def test_checker_slot_of_deleted_execution_is_free(story):
    enqueue(story, 2, weight=3, **PAIRS)
    story.claim(1, 1)
    story.say("operator", act="delete", jobs=[1])
    story.transaction()
    story.event("job", "DELETE", 1, None, story.history.jobs.pop(1), None)
    story.event("execution", "DELETE", 1, 1, story.executions[1], None)
    story.claim(2, 2)
    assert broken(story) == set()


def test_checker_overlap_by_the_executions_own_times_reports_i11(story):
    """The events are in the right order. The executions say that the first ended only after the second was claimed."""
    enqueue(story, 2, weight=3, **PAIRS)
    story.claim(1, 1)
    story.run(1, 1)
    story.close(1, 1, "succeeded", "succeeded", "succeed")
    end = story.history.events[-2].new
    assert end is not None
    end["finished_at"] = story.now + 5.0
    assert broken(story) == set()
    story.claim(2, 2)
    assert broken(story) == {"I11"}


# ------------------------------------------------------------------ rates


def start_all(story: Story, times: list[float], weight: int = 1) -> None:
    for number, at in enumerate(times, 1):
        story.enqueue(number, weight=weight, **RATED)
        story.now = 5000.0 + at - 0.1
        story.claim(number, number)
        row = story.history.events[-1].new
        assert row is not None
        row["claimed_at"] = 5000.0 + at


def test_checker_starts_up_to_rate_and_burst_pass(story):
    """A burst of 5, and then a token each half second."""
    start_all(story, [*[0.0] * 5, *(0.5 * number for number in range(1, 9))])
    assert broken(story) == set()


def test_checker_one_start_more_in_a_period_reports_i11(story):
    start_all(story, [*[0.0] * 5, 0.5, 0.999])
    assert broken(story) == {"I11"}


@pytest.mark.parametrize(("times", "violations"), [([0.0, 0.1, 0.3], {"I11"}), ([0.0, 1.0, 2.0], set())])
def test_checker_weights_count_in_a_period(story, times, violations):
    start_all(story, times, weight=3)
    assert broken(story) == violations


# ------------------------------------------------------------------ order


def test_checker_ordered_key_with_retry_passes(story):
    enqueue(story, 2, **ORDERED)
    story.claim(1, 1)
    story.close(1, 1, "failed", "ready", "fail")
    story.now += 9.0
    story.claim(1, 2)
    succeed(story, 1, 2)
    story.claim(2, 3)
    assert broken(story) == set()


def test_checker_later_job_before_a_retry_reports_i11(story):
    enqueue(story, 2, **ORDERED)
    story.claim(1, 1)
    story.close(1, 1, "failed", "ready", "fail")
    story.now += 9.0
    story.claim(2, 2)
    assert broken(story) == {"I11"}


def test_checker_two_open_executions_of_an_ordered_key_report_i11(story):
    enqueue(story, 2, **ORDERED)
    story.claim(1, 1)
    story.claim(2, 2)
    assert broken(story) == {"I11"}


@pytest.mark.parametrize(("options", "violations"), [(ORDERED, set()), (BLOCKED, {"I11"})])
def test_checker_start_behind_a_dead_job(story, options, violations):
    enqueue(story, 2, **options)
    story.claim(1, 1)
    story.close(1, 1, "failed", "dead", "fail")
    story.now += 9.0
    story.claim(2, 2)
    assert broken(story) == violations


def test_checker_earlier_job_that_just_committed_may_be_unknown(story):
    """Ids are assigned before the commit: job 2 can be there before job 1."""
    story.enqueue(2, **ORDERED)
    story.now += 9.0
    story.enqueue(1, **ORDERED)
    story.claim(2, 1)
    assert broken(story) == set()
    assert broken(story, obey_seconds=0.1) == {"I11"}


# ------------------------------------------------------------------ holds


def test_checker_claim_of_a_held_key_reports_i11(story):
    enqueue(story, 2, **HELD)
    story.history.stops.append(Stop(story.now, "held:a", True, story.now + 60.0))
    story.now += 1.0
    story.claim(1, 1)
    assert broken(story) == set()
    story.now += 5.0
    story.claim(2, 2)
    assert broken(story) == {"I11"}


@pytest.mark.parametrize("stop", [("held:b", True), ("held:a", False)])
def test_checker_claim_of_another_or_ended_hold_passes(story, stop):
    key, begins = stop
    enqueue(story, 1, **HELD)
    until = story.now + 60.0
    story.history.stops += [Stop(story.now, key, True, until), Stop(story.now + 1.0, key, begins, until)]
    story.now += 9.0
    story.claim(1, 1)
    assert broken(story) == set()


# ------------------------------------------------------------------ turns


def pass_over(story: Story, seconds: int = 7, first: int = 100) -> None:
    """Let a worker claim a job without a limit each second."""
    for number in range(first, first + seconds):
        story.enqueue(number)
        story.now += 1.0
        story.claim(number, number)
        succeed(story, number, number)


def test_checker_key_that_is_passed_over_reports_i21(story):
    enqueue(story, 1, **PAIRS)
    pass_over(story)
    assert broken(story) == {"I21"}
    assert broken(story, passed_over_seconds=10.0) == set()


def test_checker_long_time_without_any_claim_is_no_starvation(story):
    enqueue(story, 1, **PAIRS)
    pass_over(story, 1)
    story.now += 3600.0
    pass_over(story, 2, first=200)
    assert broken(story) == set()


@pytest.mark.parametrize(
    "options",
    [
        {**PAIRS, "run_after": 9999.0},
        {**PAIRS, "queue": "other"},
        {**PAIRS, "priority": -1},
        {**PAIRS, "weight": 3},
        {"limit_key": "order:b", "order": 1},
        {"limit_key": "blocked:b", "order": 2},
        {"limit_key": "held:b"},
        {"limit_key": "tokens:b", "weight": 5},
    ],
)
def test_checker_key_whose_limit_admits_nothing_may_wait(story, options):
    """In turn: the job is not due, or elsewhere; slots are in use, an earlier job, a dead job, a hold, no tokens."""
    story.enqueue(50, limit_key=options["limit_key"], order=options.get("order"), weight=1)
    story.claim(50, 50)
    if "blocked" in options["limit_key"]:
        story.close(50, 50, "failed", "dead", "fail")
    if "held" in options["limit_key"]:
        story.history.stops.append(Stop(story.now, "held:b", True, story.now + 3600.0))
    if "tokens" in options["limit_key"]:
        story.history.events[-1].new["claimed_at"] = story.now + 3600.0
    story.enqueue(60, **options)
    pass_over(story)
    assert broken(story) == set()
    if options.get("weight") == 3:
        succeed(story, 50, 50)
        pass_over(story, first=200)
        assert broken(story) == {"I21"}
