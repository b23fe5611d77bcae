"""The steps over time on the page of a job: the kinds of bars, their places, and what a running job does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from django_pgqueue.admin.job.steps import ROWS, WIDTH, step_timeline
from django_pgqueue.ground.attempt_ends import Loss
from django_pgqueue.models import Job, JobStep

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def step(name: str, kind: str, starts: float, ends: float | None = None, **columns: Any) -> JobStep:
    finished_at = None if ends is None else at(ends)
    values = {"tries": 1, "event_name": "e" if kind == "event" else None, **columns}
    return JobStep(name=name, kind=kind, started_at=at(starts), finished_at=finished_at, **values)


def execution(starts: float, ends: float | None, outcome: str | None = "suspended") -> dict[str, Any]:
    finished_at = None if ends is None else at(ends)
    return {
        "execution": SimpleNamespace(
            claimed_at=at(starts), started_at=at(starts), finished_at=finished_at, outcome=outcome
        ),
        "loss": None,
    }


def drawn(steps: list[JobStep], *attempts: dict[str, Any], state: str = "ready", now: float = 100) -> dict[str, Any]:
    """Return the timeline of a job that was read at this minute. The attempts are in their order."""
    job = Job(state=state, finished_at=at(now) if state == "succeeded" else None)
    vars(job)["seen_at"] = at(now)
    found = step_timeline(job, steps, list(reversed(attempts)))
    assert found is not None
    return found


def bars(found: dict[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """Return the kind, the start and the width of the bars of each row, in percent."""
    scale = WIDTH / 100
    return {
        row["name"]: [(bar["kind"], float(bar["x"]) / scale, float(bar["width"]) / scale) for bar in row["bars"]]
        for row in found["rows"]
    }


def test_bars_show_when_each_step_ran_slept_and_waited() -> None:
    steps = [
        step("charge", "step", 0, 10),
        step("pay", "step", 10, 30, tries=3),
        step("rest", "sleep", 30, wake_at=at(70)),
        step("wait", "event", 70),
    ]
    found = drawn(steps, execution(0, 30), execution(70, 72))
    assert bars(found) == {
        "in a worker": [("attempt", 0, 30), ("attempt", 70, 2)],
        "charge": [("ran", 0, 10)],
        "pay": [("retried", 10, 20)],
        "rest": [("slept", 30, 40)],
        "wait": [("waited", 70, 30)],
    }
    texts = {row["name"]: row["text"] for row in found["rows"]}
    assert texts["pay"] == "3 tries in 20 min" and texts["wait"] == "has waited 30 min"
    assert [kind for kind, _ in found["legend"]] == ["attempt", "ran", "retried", "slept", "waited"]
    assert found["is_now"] and not found["is_cut"]


def test_text_of_one_attempt_and_of_one_try_is_singular() -> None:
    found = drawn([step("pay", "step", 10)], execution(0, 30))
    assert [row["text"] for row in found["rows"]] == ["1 time, 30 min in all", "1 try in 1 h 30 min"]


def test_sleep_that_goes_on_ends_at_the_reading() -> None:
    found = drawn([step("rest", "sleep", 0, wake_at=at(1000))], execution(0, 1))
    assert bars(found)["rest"] == [("slept", 0, 100)]
    assert found["rows"][1]["text"] == "asleep until 2026-11-23 04:40:00"


def test_running_job_shows_what_is_not_stored_yet() -> None:
    attempts = execution(0, 20, "failed"), execution(60, None, None)
    found = drawn([step("charge", "step", 0, 10)], *attempts, state="running")
    assert bars(found)["not stored yet"] == [("running", 60, 40)]
    assert bars(found)["in a worker"] == [("failed", 0, 20), ("running", 60, 40)]


def test_lost_attempt_ends_where_its_worker_was_last_seen() -> None:
    lost = {**execution(0, 50, "crashed"), "loss": Loss(at(0), at(20), at(50))}
    open_one = {**execution(60, None, None), "loss": Loss(at(60), None, None)}
    found = drawn([step("charge", "step", 0, 10)], lost, execution(55, 60), open_one, state="running")
    assert bars(found)["in a worker"] == [("failed", 0, 20), ("attempt", 55, 5), ("failed", 60, 0.4)]
    assert found["rows"][0]["text"] == "3 times, 2 lost, the others 5 min in all"
    assert "not stored yet" not in bars(found)
    assert drawn([step("charge", "step", 0, 10)], lost)["rows"][0]["text"] == "1 time, lost"
    assert drawn([step("charge", "step", 0, 10)], lost, lost)["rows"][0]["text"] == "2 times, all lost"


def test_step_of_a_moment_is_visible_at_both_ends() -> None:
    steps = [step("first", "step", 0, 0), step("last", "step", 100, 100)]
    found = bars(drawn(steps, execution(0, 100, "succeeded"), state="succeeded"))
    assert found["first"] == [("ran", 0, 0.4)] and found["last"] == [("ran", 99.6, 0.4)]


def test_job_of_one_moment_has_a_timeline() -> None:
    found = drawn([step("only", "step", 0, 0)], execution(0, 0), state="succeeded", now=0)
    assert len(found["rows"]) == 2 and not found["is_now"]


def test_many_steps_show_the_latest() -> None:
    steps = [step(f"s{number}", "step", number, number + 1) for number in range(ROWS + 5)]
    found = drawn(steps, execution(0, 100))
    assert found["is_cut"] and found["rows"][1]["name"] == "s5"


def test_job_without_steps_has_no_timeline() -> None:
    assert step_timeline(Job(state="ready"), [], []) is None
