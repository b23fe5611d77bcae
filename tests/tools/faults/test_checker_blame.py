"""The checker of the fault suite finds jobs that were blamed for a fault that hits everything (I28)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.tools.faults import invariants_blame
from tests.tools.faults.story import Story
from tests.tools.faults.story import broken as broken_by

broken = partial(broken_by, blames_rightly=True)


@pytest.fixture
def story() -> Story:
    return Story()


def crash(story: Story) -> None:
    """Claim and begin a job, and record that its process was lost."""
    story.enqueue(1)
    story.claim(1, 1)
    story.begin(1, 1)
    story.close(1, 1, "crashed", "dead", "rescue", crashes=1)


def test_checker_dead_after_failed_attempt_passes(story):
    story.enqueue(1)
    story.finish(1, "dead")
    assert broken(story) == set()


def test_checker_dead_without_an_execution_reports_i28(story):
    story.enqueue(1)
    story.move(1, "dead")
    assert broken(story) == {"I28"}
    assert broken_by(story) == set(), "only runs without bad rows promise this"


def test_checker_dead_with_a_record_only_reports_i28(story):
    """A job that is set aside gets an execution that records why. No attempt was made."""
    story.enqueue(1)
    story.transaction()
    story.execution(1, 1, outcome="failed", started=False)
    story.job(1, state="dead", finished_at=story.now)
    assert "I28" in broken(story)


def test_checker_dead_after_a_release_reports_i28(story):
    story.enqueue(1)
    story.claim(1, 1)
    story.close(1, 1, "released", "dead", attempt=0)
    assert "I28" in broken(story)


def test_checker_dead_after_a_retry_needs_new_failure(story):
    story.enqueue(1)
    story.finish(1, "dead")
    story.say("operator", act="retry", jobs=[1])
    story.transaction()
    story.job(1, state="ready", finished_at=None, attempt=0)
    story.move(1, "dead")
    assert broken(story) == {"I28"}


def test_checker_crash_of_an_ended_process_passes(story):
    crash(story)
    assert broken(story) == set()


def test_checker_crash_of_a_living_process_reports_i28(story):
    crash(story)
    story.now += 10
    story.say("claim", worker=7, parent=5, limit=4, executions=[])
    assert broken(story) == {"I28"}


def test_checker_number_of_a_lost_process_used_again_passes(story):
    crash(story)
    story.now += 10
    story.say("claim", worker=8, parent=6, limit=4, executions=[])
    assert broken(story) == set()


def test_checker_crash_of_a_frozen_process_passes(story):
    """It lost its lease while it was stopped, and its job ran elsewhere."""
    story.say(invariants_blame.FROZEN, pids=[5])
    crash(story)
    story.now += 10
    story.say("claim", worker=7, parent=5, limit=4, executions=[])
    assert broken(story) == set()


def test_checker_crash_long_after_a_freeze_reports_i28(story):
    story.say(invariants_blame.FROZEN, pids=[5])
    story.now += invariants_blame.FROZEN_SECONDS
    crash(story)
    story.now += 10
    story.say("claim", worker=7, parent=5, limit=4, executions=[])
    assert broken(story) == {"I28"}


def test_checker_crash_of_an_isolated_process_passes(story):
    """Its worker process lives, and has not run the job itself."""
    story.enqueue(1)
    story.claim(1, 1)
    story.say("start", job=1, execution=1, kind="alone", pid=2)
    story.close(1, 1, "crashed", "ready", "rescue", crashes=1)
    story.now += 10
    story.say("claim", worker=7, parent=5, limit=4, executions=[])
    assert broken(story) == set()
