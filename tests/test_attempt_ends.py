"""What the row of an execution says about the end of an attempt: its loss, code that goes on, and its number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgqueue.acts.job_retries import EARLIER, READ, UNRECORDED, JobRetry, retries_before
from django_pgqueue.ground.attempt_ends import (
    ISOLATED_DIED,
    KEPT_RUNNING,
    LEASE_RAN_OUT,
    STACK_OF_RUNNING,
    Loss,
    end_of,
    is_numbered_anew,
    loss_of,
    may_still_run,
)

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def row(outcome: str | None = "crashed", number: int = 1, **columns: Any) -> Any:
    """Return an execution that was claimed at 0 s, has started at 1 s and ended at 60 s."""
    ended = None if outcome is None else at(60)
    values = {"claimed_at": at(0), "started_at": at(1), "finished_at": ended, **columns}
    return SimpleNamespace(attempt=number, outcome=outcome, **values)


@pytest.mark.parametrize(
    ("columns", "heartbeat", "expected"),
    [
        ({}, at(4), Loss(at(1), at(4), at(60))),
        ({}, at(-9), Loss(at(1), at(1), at(60))),
        ({}, at(61), Loss(at(1), None, at(60))),
        ({}, None, Loss(at(1), None, at(60))),
        ({"started_at": at(60)}, at(4), Loss(None, at(4), at(60))),
        ({"started_at": None}, at(-9), Loss(None, at(0), at(60))),
    ],
    ids=["heartbeat", "no heartbeat since", "came back", "no record", "start not recorded", "not started"],
)
def test_loss_says_when_the_attempt_was_last_seen(
    columns: dict[str, Any], heartbeat: datetime | None, expected: Loss
) -> None:
    assert loss_of(row(**columns), LEASE_RAN_OUT, heartbeat) == expected


def test_attempt_whose_end_was_seen_is_not_lost() -> None:
    assert loss_of(row(), f"{ISOLATED_DIED} (signal SIGSEGV)", at(4)) is None
    assert loss_of(row("failed"), LEASE_RAN_OUT, at(4)) is None
    assert loss_of(row(None), "", at(4)) is None


def test_open_attempt_is_lost_when_its_lease_is_over() -> None:
    assert loss_of(row(None), "", at(4), is_expired=True) == Loss(at(1), at(4), None)


@pytest.mark.parametrize(
    ("outcome", "error", "stack", "expected"),
    [
        ("cancelled", f"{KEPT_RUNNING}\nFile …", "", True),
        ("cancelled", "as asked", "", False),
        ("failed", "ran for too long", f"The event loop was blocked. {STACK_OF_RUNNING}\nFile …", True),
        ("failed", "ran for too long", "Traceback …", False),
        ("crashed", LEASE_RAN_OUT, "", True),
        ("crashed", "the worker process died", "", False),
        (None, "", "", True),
        ("succeeded", "", "", False),
    ],
)
def test_code_may_still_run_while_its_worker_runs(outcome: str | None, error: str, stack: str, expected: bool) -> None:
    assert may_still_run(row(outcome), error, stack, at(61)) is expected
    assert not may_still_run(row(outcome), error, stack, None)


@pytest.mark.parametrize(
    ("heartbeat", "stopped", "expected"),
    [(at(61), None, True), (at(59), None, False), (at(60), None, False), (at(61), at(62), False), (None, None, False)],
    ids=["after the loss", "before the loss", "at the loss", "stopped", "no record"],
)
def test_code_runs_on_only_if_its_worker_shows_a_sign_of_life(
    heartbeat: datetime | None, stopped: datetime | None, expected: bool
) -> None:
    for seen, is_recent in ((at(100), True), (at(300), False)):
        end = end_of(
            row(), LEASE_RAN_OUT, "", lease_end=at(60), heartbeat_at=heartbeat, stopped_at=stopped, seen_at=seen,
            lease_seconds=60.0,
        )  # fmt: skip
        assert end.may_still_run is (expected and is_recent)
        assert end.loss is not None and not end.is_expired


@pytest.mark.parametrize(
    ("before", "number", "expected"),
    [
        ("failed", 1, True),
        ("failed", 3, True),
        ("failed", 4, False),
        ("succeeded", 1, True),
        ("released", 3, False),
        ("snoozed", 3, False),
        ("suspended", 3, False),
        (None, 1, False),
    ],
)
def test_number_that_does_not_rise_shows_a_retry(before: str | None, number: int, expected: bool) -> None:
    assert is_numbered_anew(row(None, number), row(before, 3)) is expected


def test_attempts_follow_the_retry_before_them() -> None:
    anna, ben = JobRetry(at(100), "anna"), JobRetry(at(400), "ben")
    numbers = [(1, 0), (2, 50), (1, 110), (2, 150), (1, 300), (1, 410)]
    attempts = [row("failed", number, claimed_at=at(seconds)) for number, seconds in reversed(numbers)]
    assert retries_before(attempts, [anna, ben])[::-1] == [None, None, anna, anna, UNRECORDED, ben]
    assert retries_before(attempts, [])[::-1] == [None, None, UNRECORDED, UNRECORDED, UNRECORDED, UNRECORDED]
    assert retries_before([], [anna]) == []


def test_attempts_before_the_retries_that_were_read_follow_an_earlier_one() -> None:
    read = [JobRetry(at(100 * number), str(number)) for number in range(5, 5 + READ)]
    attempts = [row("failed", 1, claimed_at=at(seconds)) for seconds in (510, 410, 310)]
    assert retries_before(attempts, read)[::-1] == [None, EARLIER, read[0]]
    assert retries_before(attempts, read[:-1])[::-1] == [None, UNRECORDED, read[0]]
