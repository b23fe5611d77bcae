"""The ranked list of what keeps jobs from running: each kind of cause, its jobs, its sentence, and its cost."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue import Breaker, Limit, control, stats
from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.doctor import examine
from django_pgqueue.lifecycle import rollups
from django_pgqueue.metrics import collect
from django_pgqueue.models import Execution, Installation, Job, OpenBreaker, Schedule, ScheduleRun
from django_pgqueue.states import FailurePolicy
from django_pgqueue.stats import CauseKind, Count, queries
from django_pgqueue.stats.causes import current, facts
from django_pgqueue.stats.causes import queries as cause_queries
from django_pgqueue.stats.limits import ready
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests import helpers
from tests.stats.conftest import add_worker as add_worker
from tests.stats.conftest import connection as connection_fixture  # noqa: F401 -- of `add_worker`
from tests.stats.limited_jobs import LIMITS, add, claim, die, throttle

pytestmark = pytest.mark.django_db
LATE = -61.0
"""Seconds after which jobs wait long enough for a full limit to be a cause."""


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def kinds(**options: Any) -> list[str]:
    return [cause.kind.value for cause in stats.causes(**options)]


def the_cause(kind: CauseKind, **options: Any) -> stats.Cause:
    [found] = [cause for cause in stats.causes(**options) if cause.kind is kind]
    return found


def died(task: str, dead: int, seconds_ago: float = 60.0, succeeded: int = 0) -> None:
    """Write counts as a worker does."""
    tally = Tally(Counter(dead=dead, succeeded=succeeded))
    names = {"queue_name": "default", "task_name": task, "exception_class": "E" if dead else ""}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], seconds_ago)


def add_schedule(name: str, *states: str | None, **changes: Any) -> Schedule:
    """Add a schedule with runs in these states, the latest first. None: the job was removed."""
    values = {"task_name": helpers.NOOP, "arguments": {}, "expression": "@daily", "next_run_at": timezone.now()}
    schedule = Schedule.objects.create(name=name, **values | changes)
    for number, state in enumerate(states):
        job_id = 10**9 + number
        if state is not None:
            job_id = helpers.make_job(connection, delay_seconds=3600.0)
            finished_at = timezone.now() if state in ("dead", "succeeded", "cancelled") else None
            Job.objects.filter(pk=job_id).update(state=state, finished_at=finished_at)
        tick_at = timezone.now() - timedelta(hours=number)
        ScheduleRun.objects.create(schedule_id=schedule.pk, tick_at=tick_at, job_id=job_id)
    return schedule


# ------------------------------------------------------------------ workers, queues and tasks


def test_healthy_queue_has_no_cause(add_worker):
    add_worker()
    helpers.make_jobs(connection, 3)
    helpers.make_job(connection, delay_seconds=60.0)
    add("two:a", 3)
    assert stats.causes() == ()


def test_no_worker_is_one_cause_for_all_queues():
    helpers.make_jobs(connection, 2)
    helpers.make_job(connection, queue_name="mail")
    [cause] = stats.causes()
    assert (cause.kind, cause.jobs, cause.is_urgent) == (CauseKind.NO_WORKER, Count(3), True)
    assert cause.sentence == "3 jobs wait: no worker is running: start `manage.py runworker`."


def test_each_unserved_queue_is_a_cause(add_worker):
    add_worker("pdf")
    helpers.make_job(connection, queue_name="mail")
    helpers.make_jobs(connection, 2)
    assert [(cause.kind, cause.name, cause.jobs) for cause in stats.causes()] == [
        (CauseKind.QUEUE_NOT_SERVED, "default", Count(2)),
        (CauseKind.QUEUE_NOT_SERVED, "mail", Count(1)),
    ]
    assert stats.causes()[1].sentence == ("1 job waits: 1 worker process runs, and none of them serves the queue mail.")


def test_paused_queue_says_who_and_why_and_counts_its_jobs(add_worker):
    add_worker()
    control.pause("mail", by="anna", reason="a wrong link")
    assert stats.causes() == (), "a pause that holds no job is no cause"
    helpers.make_jobs(connection, 2, queue_name="mail")
    cause = the_cause(CauseKind.QUEUE_PAUSED, time_text=lambda at: "noon")
    assert (cause.name, cause.jobs, cause.pause.by, cause.is_urgent) == ("mail", Count(2), "anna", False)
    assert cause.sentence == ("2 jobs wait: an operator has paused the queue mail: a wrong link (by anna, since noon).")


def test_paused_task_counts_jobs_of_queues_that_are_not_paused(add_worker):
    add_worker()
    control.pause(task=helpers.NOOP, by="bob")
    control.pause("mail")
    helpers.make_jobs(connection, 3)
    helpers.make_jobs(connection, 2, queue_name="mail")
    add("two:a", 1)
    found = {cause.kind: (cause.name, cause.jobs) for cause in stats.causes()}
    assert found == {
        CauseKind.TASK_PAUSED: (helpers.NOOP, Count(4)),
        CauseKind.QUEUE_PAUSED: ("mail", Count(2)),
    }


@pytest.mark.parametrize("pause", [None, helpers.NOOP])
def test_jobs_that_workers_release_are_counted_by_task(add_worker, pause):
    """Also if a paused task makes the figures of the queues be read by task."""
    add_worker()
    if pause:
        control.pause(task=pause)
    for task, count in (("shop.gone", 3), (helpers.NOOP, 1)):
        ids = helpers.make_jobs(connection, count, task_name=task, delay_seconds=15.0)
        Job.objects.filter(pk__in=ids).update(unknown_since=timezone.now())
    gone, known = stats.causes()
    assert (gone.kind, gone.name, gone.jobs, gone.is_urgent) == (CauseKind.UNKNOWN_TASK, "shop.gone", Count(3), True)
    assert gone.sentence.startswith("3 jobs of shop.gone wait: no live worker knows this task")
    assert known.sentence.startswith(f"1 job of {helpers.NOOP} waits: workers release it")


def test_busy_slots_are_a_cause_after_a_minute(add_worker):
    worker_id = add_worker("default", concurrency=2)
    helpers.make_jobs(connection, 2, task_name="shop.import")
    claimed = helpers.claim_all(connection, limit=2, worker_id=worker_id)
    Execution.objects.update(started_at=timezone.now() - timedelta(hours=3))
    assert len(claimed) == 2
    job_id = helpers.make_job(connection)
    assert kinds() == []
    Job.objects.filter(pk=job_id).update(run_after=timezone.now() + timedelta(seconds=LATE))
    cause = the_cause(CauseKind.SLOTS_BUSY)
    assert cause.sentence == (
        "1 job waits: all 2 slots for the queue default are busy (2 × shop.import for up to 3 h)."
    )


# ------------------------------------------------------------------ limits


def test_full_limit_is_a_cause_after_a_minute(add_worker):
    add_worker()
    add("two:a", 2, delay=LATE)
    claim("two:a")
    add("two:a", 3)
    assert kinds() == []
    add("two:a", delay=LATE)
    add("two:b", 3, delay=LATE)
    cause = the_cause(CauseKind.LIMIT_SLOTS)
    assert (cause.name, cause.limit_key, cause.jobs) == ("two", None, Count(4 + 1))
    assert cause.sentence == "5 jobs wait: the slots of 2 keys of the limit two are in use."


@pytest.mark.parametrize(
    ("key", "prepare", "kind", "reason"),
    [
        ("rate:a", lambda: claim("rate:a", 2), CauseKind.LIMIT_RATE, "the rate of {} does not admit them yet."),
        (
            "fair:a",
            lambda: throttle(claim("fair:a", 1)[0], 60.0),
            CauseKind.KEY_HELD,
            "{} is held, because a task raised Throttled.",
        ),
        (
            "block:a",
            lambda: die(claim("block:a", 1)[0]),
            CauseKind.BLOCKED_BY_DEAD,
            "{} is blocked by the dead job {job}: retry, acknowledge or delete it.",
        ),
    ],
)
def test_limit_key_is_named_only_if_keys_are_asked_for(add_worker, key, prepare, kind, reason):
    add_worker()
    job_ids = add(key, 5, delay=LATE)
    prepare()
    hidden, named = the_cause(kind), the_cause(kind, with_keys=True)
    name = key.partition(":")[0]
    assert (hidden.name, hidden.limit_key, named.limit_key) == (name, None, key)
    for cause, what in ((hidden, f"one key of the limit {name}"), (named, f"the limit key {key}")):
        assert cause.sentence == f"{cause.jobs} jobs wait: {reason.format(what, job=job_ids[0])}"
    assert named.job_id == (job_ids[0] if kind is CauseKind.BLOCKED_BY_DEAD else None)
    assert named.is_urgent is (kind is CauseKind.BLOCKED_BY_DEAD)


def test_ordered_key_whose_jobs_start_in_turn_is_no_cause(add_worker):
    add_worker()
    add("one:a", 3, delay=LATE)
    assert kinds() == [], "a worker claims the first job"
    claim("one:a")
    assert kinds() == []


def test_limit_that_no_task_declares_is_urgent(add_worker):
    add_worker()
    add("nobody:a", 2)
    add("nobody:b", 1)
    cause = the_cause(CauseKind.LIMIT_UNDECLARED)
    assert (cause.name, cause.jobs, cause.is_urgent) == ("nobody", Count(3), True)
    assert "no task of this process declares the limit nobody" in cause.sentence


def test_pause_of_a_limit_and_of_one_key_are_two_causes(add_worker):
    add_worker()
    control.pause(limit_key="two", by="anna", reason="their server is down")
    control.pause(limit_key="fair:a", by="bob", reason="globex asked for it")
    add("two:a", 2)
    add("two:b", 3)
    add("fair:a", 1)
    limit, key = stats.causes(with_keys=True)
    assert (limit.limit_key, limit.jobs, limit.pause.name) == ("two", Count(5), "two")
    assert "an operator has paused the limit two: their server is down (by anna" in limit.sentence
    assert (key.limit_key, key.jobs, key.pause.name) == ("fair:a", Count(1), "fair:a")
    hidden = stats.causes()[1]
    assert (hidden.limit_key, hidden.pause) == (None, None)
    assert hidden.sentence == "1 job waits: one key of the limit fair is paused."


@pytest.mark.parametrize("is_paused", [True, False])
def test_open_breaker_is_a_cause_paused_or_probing(add_worker, monkeypatch, is_paused):
    limit = Limit("api", concurrency=5, breaker=Breaker())
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"api": limit}))
    monkeypatch.setitem(LIMITS, "api", limit)
    add_worker()
    add("api", 2)
    OpenBreaker.objects.create(limit_key="api", after_execution_id=0, probes_failed=3)
    if is_paused:
        control.pause(limit_key="api", by=PAUSED_BY, reason="5 attempts failed")
    else:
        assert len(claim("api", 1)) == 1
    cause = the_cause(CauseKind.BREAKER_OPEN)
    expected = (
        "a circuit breaker has paused the limit api: 5 attempts"
        if is_paused
        else "the circuit breaker of the limit api"
    )
    assert expected in cause.sentence
    assert "The breaker has been open since 20" in cause.sentence
    assert cause.sentence.endswith(" UTC, and 3 probes have failed since then.")


def test_key_with_nearly_all_jobs_of_its_limit_comes_last(add_worker):
    add_worker("mail")
    add("fair:globex", 120, delay=LATE)
    add("fair:acme", 20)
    found = stats.causes(with_keys=True)
    assert [cause.kind for cause in found] == [CauseKind.QUEUE_NOT_SERVED, CauseKind.ONE_KEY]
    assert found[1].sentence == "120 of 140 due jobs of the limit fair belong to globex."
    assert found[1].limit_key == "fair:globex"
    assert stats.causes()[1].sentence == "120 of 140 due jobs of the limit fair have one key."
    add("fair:acme", 20)
    assert CauseKind.ONE_KEY not in [cause.kind for cause in stats.causes()]


def test_only_key_of_a_limit_or_a_few_jobs_are_no_cause(add_worker):
    add_worker()
    add("fair:globex", 200, delay=LATE)
    assert kinds() == []
    add("two:a", 50, delay=LATE)
    add("two:b", 1)
    assert kinds() == ["limit slots"]


def test_key_is_named_for_its_share_only_if_all_jobs_were_counted(add_worker, monkeypatch):
    """Counting goes through the keys in their order, so it sees only the jobs of the first keys."""
    add_worker()
    add("fair:acme", 120, delay=LATE)
    add("fair:bolt", 5, delay=LATE)
    assert CauseKind.ONE_KEY in [cause.kind for cause in stats.causes()]
    for name, value in (("ROWS_LIMIT", 122), ("NAMED_KEYS_TOTAL", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(ready, name, value)
            add("fair:zeta", 1, delay=LATE)
            assert CauseKind.ONE_KEY not in [cause.kind for cause in stats.causes()], name


def test_rate_that_holds_jobs_is_not_called_full_slots(add_worker, monkeypatch):
    """The limit has free slots and one token, and then tokens and no free slot."""
    add_worker()
    monkeypatch.setitem(LIMITS, "both", Limit("both", concurrency=9, rate="1/m", burst=2))
    add("both", 6, delay=LATE)
    claim("both", 1)
    cause = the_cause(CauseKind.LIMIT_RATE)
    assert cause.sentence == "4 jobs wait: the rate of the limit both does not admit them yet."
    monkeypatch.setitem(LIMITS, "both", Limit("both", concurrency=1, rate="60/m", burst=50))
    assert the_cause(CauseKind.LIMIT_SLOTS).name == "both"


def test_ordered_key_whose_first_job_is_due_later_is_a_cause(add_worker):
    add_worker()
    [first] = add("one:a", 1, delay=3600.0)
    add("one:a", 3, delay=LATE)
    cause = the_cause(CauseKind.KEY_ORDER)
    assert (cause.job_id, cause.jobs) == (first, Count(3))
    assert cause.sentence == (
        f"3 jobs wait: the first job of one key of the limit one is due later ({first}), and the others wait for it."
    )


def test_unknown_chunk_key_is_no_undeclared_limit(add_worker):
    add_worker()
    add("+app.store", 2, delay=LATE)
    assert kinds() == []


# ------------------------------------------------------------------ failures


def test_lost_jobs_name_the_silent_worker(add_worker):
    worker_id = add_worker(silent_seconds=600.0)
    add_worker()
    helpers.make_job(connection)
    claimed = helpers.claim_one(connection, worker_id=worker_id)
    past = timezone.now() - timedelta(minutes=9)
    Execution.objects.filter(pk=claimed.execution_id).update(lease_expires_at=past)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_worker SET lease_expires_at = %s WHERE id = %s", [past, worker_id])
    cause = the_cause(CauseKind.LOST)
    assert cause.sentence == (
        "1 running job is lost (worker vm:7, silent for 10 min): no heartbeat came for a lease, "
        "and no worker has rescued it yet."
    )


def test_dead_job_that_blocks_jobs_of_workflows_is_urgent(add_worker):
    add_worker()
    [dead_id] = helpers.make_nodes(connection)
    helpers.make_nodes(connection, 3, needs=[dead_id], policy=FailurePolicy.BLOCK)
    helpers.make_nodes(connection, 2, needs=[dead_id], policy=FailurePolicy.IGNORE)
    assert kinds() == []
    Job.objects.filter(pk=dead_id).update(state="dead", finished_at=timezone.now())
    cause = the_cause(CauseKind.DEPENDENCY_FAILED)
    assert (cause.job_id, cause.jobs, cause.is_urgent) == (dead_id, Count(3), True)
    assert cause.sentence == f"3 jobs of workflows wait for a dead job of {helpers.NOOP}: retry it."


def test_acknowledged_job_that_still_blocks_jobs_is_a_cause(add_worker):
    add_worker()
    [dead_id, other_id] = helpers.make_nodes(connection, 2)
    helpers.make_nodes(connection, 3, needs=[dead_id, other_id], policy=FailurePolicy.BLOCK)
    helpers.make_nodes(connection, 2, needs=[dead_id], policy=FailurePolicy.IGNORE)
    now = timezone.now()
    Job.objects.filter(pk=dead_id).update(state="dead", finished_at=now, acknowledged_at=now)
    [cause] = stats.causes()
    assert (cause.kind, cause.job_id, cause.jobs) == (CauseKind.DEPENDENCY_ACKNOWLEDGED, dead_id, Count(3))
    assert cause.is_urgent
    assert cause.sentence == (
        f"3 jobs of workflows wait for the dead job {dead_id} of {helpers.NOOP}, which somebody has acknowledged: "
        "that does not end the wait. Retry the dead job, or cancel what waits for it."
    )
    assert any(cause.sentence in found.what for found in examine("default")), "the doctor reports it too"


@pytest.mark.parametrize(("name", "limit"), [("WAITING_READ", 2), ("EDGES_READ", 2)])
def test_acknowledged_jobs_are_searched_with_a_bound(add_worker, monkeypatch, name, limit):
    add_worker()
    [dead_id] = helpers.make_nodes(connection)
    helpers.make_nodes(connection, 3, needs=[dead_id], policy=FailurePolicy.BLOCK)
    now = timezone.now()
    Job.objects.filter(pk=dead_id).update(state="dead", finished_at=now, acknowledged_at=now)
    monkeypatch.setattr(facts, name, limit)
    [cause] = stats.causes()
    assert str(cause.jobs) == "2+"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(3, 60, 0)], 3),
        ([(2, 60, 0)], None),
        ([(5, 600, 0), (0, 300, 1)], None),
        ([(9, 900, 2), (4, 60, 0)], 4),
        ([(20, 7200, 0)], None),
    ],
)
def test_task_that_died_in_a_row_is_a_cause(counts, expected):
    """Within the last hour, and since its last success."""
    for dead, seconds_ago, succeeded in counts:
        died("shop.refresh_rates", dead, seconds_ago, succeeded)
    died("shop.other", 0, 60, 5)
    found = [cause for cause in stats.causes() if cause.kind is CauseKind.TASK_FAILING]
    assert [cause.jobs for cause in found] == ([] if expected is None else [Count(expected)])
    if expected:
        assert found[0].sentence == f"shop.refresh_rates died {expected} times in a row within the last hour."


def test_without_statistics_no_task_counts_as_failing(settings):
    died("shop.refresh_rates", 9)
    settings.PGQUEUE = {"STATS": False}
    assert kinds() == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["dead"] * 3, Count(3)),
        (["dead"] * 2, None),
        (["dead", "dead", "succeeded", "dead"], None),
        (["ready", "dead", "cancelled", "dead", "dead", "succeeded", "dead"], Count(3)),
        (["dead", "dead", "dead", None, "dead"], Count(3, is_exact=False)),
        (["dead"] * 25, Count(20, is_exact=False)),
    ],
)
def test_schedule_whose_latest_jobs_died_is_a_cause(add_worker, states, expected):
    add_worker()
    schedule = add_schedule("nightly", *states)
    found = [cause for cause in stats.causes() if cause.kind is CauseKind.SCHEDULE_FAILING]
    assert [cause.jobs for cause in found] == ([] if expected is None else [expected])
    if expected:
        assert (found[0].schedule_id, found[0].name) == (schedule.pk, "nightly")
        assert (
            found[0].sentence == f"The latest {expected} jobs of the schedule nightly died, and none succeeded since."
        )
    Schedule.objects.update(enabled=False)
    assert set(kinds()) <= {"jobs died"}, "they are those of no schedule that is on"


@pytest.mark.parametrize(
    ("runs", "dead", "kind", "jobs"),
    [
        (5, 5, CauseKind.SCHEDULE_FAILING, Count(5)),
        (25, 12, CauseKind.SCHEDULE_FAILING, Count(20, is_exact=False)),
        (5, 9, CauseKind.TASK_FAILING, Count(9)),
    ],
)
def test_failing_schedule_and_its_task_are_one_cause(add_worker, runs, dead, kind, jobs):
    """Also if so many of its jobs died that jobs of no cause would be one too."""
    add_worker()
    schedule = add_schedule("hourly", *["dead"] * runs)
    died(helpers.NOOP, dead)
    [cause] = stats.causes()
    assert (cause.kind, cause.jobs, cause.schedule_id) == (kind, jobs, schedule.pk)
    if kind is CauseKind.TASK_FAILING:
        assert cause.sentence.endswith("The latest jobs of the schedule hourly are among these.")
    samples = {gauge.name: dict(samples) for gauge, samples in collect()}["pgqueue_causes"]
    assert [kinds for kinds, count in samples.items() if count] == [(kind.value,)]


def test_failing_schedule_does_not_hide_dead_jobs_of_other_tasks(add_worker):
    add_worker()
    add_schedule("hourly", *["dead"] * 12)
    for _ in range(10):
        job_id = helpers.make_job(connection, task_name="shop.other")
        Job.objects.filter(pk=job_id).update(state="dead", finished_at=timezone.now())
    assert sorted(kinds()) == ["jobs died", "schedule failing"]


def test_problem_of_a_schedule_is_shown_only_with_keys():
    """It is the text of an error, which can contain an argument."""
    add_schedule("broken", problem="no customer 'globex'", next_run_at=timezone.now() - timedelta(hours=1))
    [hidden], [shown] = stats.causes(), stats.causes(with_keys=True)
    assert hidden.sentence == "The schedule broken could not be fired: its page in the admin says why."
    assert shown.sentence == "The schedule broken could not be fired: no customer 'globex'."


def test_many_late_schedules_are_one_cause(add_worker):
    add_worker()
    for number in range(7):
        add_schedule(f"s{number}", next_run_at=timezone.now() - timedelta(minutes=10 + number))
    [cause] = stats.causes()
    assert cause.schedule_id is None
    assert cause.sentence == "7 schedules are late, the schedule s6 by 16 min: does a worker fire schedules?"


def test_schedule_paused_with_an_end_is_not_late(add_worker):
    add_worker()
    now = timezone.now()
    add_schedule("paused", next_run_at=now - timedelta(days=1), paused_until=now + timedelta(hours=1), problem="why")
    add_schedule("over", next_run_at=now - timedelta(days=1), paused_until=now - timedelta(seconds=10))
    assert not stats.causes()
    Schedule.objects.filter(name="over").update(paused_until=now - timedelta(minutes=10))
    assert [cause.sentence for cause in stats.causes()] == [
        "The schedule over is 10 min late: does a worker fire schedules?"
    ]


def test_many_jobs_that_died_are_a_cause(add_worker):
    """Also if other jobs of their tasks succeed."""
    add_worker()
    ids = [helpers.make_job(connection) for _ in range(10)]
    Job.objects.filter(pk__in=ids[1:]).update(state="dead", finished_at=timezone.now())
    Job.objects.filter(pk=ids[0]).update(state="dead", finished_at=timezone.now() - timedelta(hours=25))
    assert not stats.causes()
    ids.append(helpers.make_job(connection))
    Job.objects.filter(pk=ids[-1]).update(state="dead", finished_at=timezone.now())
    current.forget()
    [cause] = stats.causes()
    assert (cause.kind, cause.jobs, cause.is_urgent) == (CauseKind.JOBS_DIED, stats.Count(10), False)
    assert cause.sentence.startswith("10 jobs died in the last 24 hours, and nobody has retried")


def test_schedule_that_waits_for_its_last_job_says_so(add_worker):
    add_worker()
    at = timezone.now() - timedelta(minutes=10)
    waits = add_schedule("waits", "ready", "succeeded", next_run_at=at, if_running="queue")
    add_schedule("ended", "succeeded", "ready", next_run_at=at, if_running="queue")
    add_schedule("beside", "ready", next_run_at=at)
    job_id = ScheduleRun.objects.filter(schedule_id=waits.pk).latest("tick_at").job_id
    found = {cause.name: cause for cause in stats.causes() if cause.kind is CauseKind.SCHEDULE_LATE}
    assert (
        f"waits is 10 min late: its next run waits for the job {job_id} of the run before." in found["waits"].sentence
    )
    assert found["waits"].job_id == job_id
    assert all("does a worker fire schedules?" in found[name].sentence for name in ("ended", "beside"))


def test_late_schedule_and_problem_are_causes(add_worker):
    add_worker()
    now = timezone.now()
    add_schedule("late", next_run_at=now - timedelta(minutes=10))
    add_schedule("jitter", next_run_at=now - timedelta(minutes=10), jitter_seconds=900.0)
    add_schedule("broken", problem="no such task", next_run_at=now + timedelta(hours=1))
    assert [(cause.kind, cause.sentence) for cause in stats.causes()] == [
        (CauseKind.SCHEDULE_FAILED, "The schedule broken could not be fired: its page in the admin says why."),
        (CauseKind.SCHEDULE_LATE, "The schedule late is 10 min late: does a worker fire schedules?"),
    ]


# ------------------------------------------------------------------ order, cost and the cache


def test_causes_urgent_ones_first_then_by_number_of_jobs(add_worker):
    add_worker("mail,pdf")
    control.pause("mail")
    control.pause("pdf")
    helpers.make_jobs(connection, 50, queue_name="mail")
    helpers.make_jobs(connection, 60, queue_name="pdf")
    helpers.make_jobs(connection, 2)
    assert [cause.name for cause in stats.causes()] == ["default", "pdf", "mail"]


def test_sentences_escape_names_from_rows():
    """A row that was written by SQL can have any name. It must not forge lines on a terminal."""
    helpers.make_job(connection, queue_name="a\nb", task_name="x\x1b[31m", delay_seconds=15.0)
    Job.objects.update(unknown_since=timezone.now())
    helpers.make_job(connection, queue_name="mail")
    control.pause("mail", by="an\u202ena\n", reason=f"x\n\x1b[31m{'y' * 100_000}")
    add_schedule("a\nb", problem="z\nz")
    found = stats.causes(with_keys=True)
    assert {cause.kind.value for cause in found} == {"unknown task", "queue paused", "schedule failed"}
    for cause in found:
        assert cause.sentence.isprintable() and len(cause.sentence) < 2000


def test_reading_costs_few_statements_more_than_the_overview(add_worker, django_assert_max_num_queries):
    """Two in a healthy queue; five if workers release jobs and dead jobs block workflows, however many there are."""
    add_worker()
    helpers.make_job(connection)
    current.current()  # the role's privileges are read once for a process

    def statements(read: Any) -> int:
        with django_assert_max_num_queries(60) as captured:
            read()
        return len(captured)

    assert statements(current.current) - statements(stats.overview) <= 2
    for number in range(5):
        [dead_id] = helpers.make_nodes(connection)
        helpers.make_nodes(connection, 3, needs=[dead_id], policy=FailurePolicy.BLOCK)
        Job.objects.filter(pk=dead_id).update(state="dead", finished_at=timezone.now())
        released = helpers.make_job(connection, task_name=f"shop.gone{number}", delay_seconds=15.0)
        Job.objects.filter(pk=released).update(unknown_since=timezone.now())
        add_schedule(f"s{number}", *["dead"] * 3)
        died(f"shop.task{number}", 5)
        add(f"two:{number}", 4, delay=LATE)
    assert statements(current.current) - statements(stats.overview) <= 5


def test_reading_is_kept_for_five_seconds_and_forgotten_by_acts(monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(current, "AGE_LIMIT_SECONDS", 5.0)
    clock = helpers.Clock(monkeypatch, current)
    helpers.make_job(connection)
    assert kinds() == ["no worker"]
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    with django_assert_num_queries(0):
        assert kinds() == ["no worker"]
        clock.pass_by(4.9)
        assert kinds() == ["no worker"]
    clock.pass_by(0.2)
    assert kinds() == []
    helpers.make_job(connection)
    assert kinds() == []
    current.forget()
    assert kinds() == ["no worker"]


def test_reading_that_an_act_has_overtaken_is_not_kept(monkeypatch):
    """It began before the act, and would show the old state to the page that follows the act."""
    monkeypatch.setattr(current, "AGE_LIMIT_SECONDS", 5.0)
    read = current.read_facts

    def slow_read(*args):
        found = read(*args)
        helpers.make_job(connection)
        current.forget()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(current, "read_facts", slow_read)
        assert kinds() == []
    assert kinds() == ["no worker"]


def test_no_worker_of_a_foreign_database_names_the_adoption(settings):
    settings.PGQUEUE = {"ENVIRONMENT": "production"}
    Installation.objects.create(system_identifier="", database_oid=1, environment="staging")
    helpers.make_job(connection)
    assert "so workers wait for `manage.py pgqueue adopt`" in the_cause(CauseKind.NO_WORKER).sentence


def test_role_without_access_to_schedules_reads_the_other_causes(monkeypatch):
    monkeypatch.setattr(cause_queries, "MAY_READ_SCHEDULES", "/* pgqueue:may_read_schedules */ SELECT false")
    add_schedule("late", next_run_at=datetime(2026, 1, 1, tzinfo=UTC))
    helpers.make_job(connection)
    assert kinds() == ["no worker"]
    kinds_of_schedules = {CauseKind.SCHEDULE_FAILED, CauseKind.SCHEDULE_LATE, CauseKind.SCHEDULE_FAILING}
    assert current.current().unread_kinds == kinds_of_schedules
    samples = {gauge.name: dict(samples) for gauge, samples in collect()}["pgqueue_causes"]
    assert samples["no worker",] == 1
    assert {kind for (kind,) in samples} == set(CauseKind) - kinds_of_schedules


@pytest.mark.parametrize("name", ["READY_BY_LANE", "OPEN_EXECUTIONS_BY_TASK"])
def test_unreadable_counts_give_no_samples_and_a_warning(monkeypatch, name):
    """A 0, or an OK of the doctor, would end an alert."""
    overflow = "/* pgqueue:overflow */ SELECT 9223372036854775807 + 1 + count(*) FROM pgqueue_job"
    monkeypatch.setattr(queries, name, overflow)
    assert {gauge.name: samples for gauge, samples in collect()}["pgqueue_causes"] == ()
    [finding] = [each for each in examine() if each.id == "causes"]
    assert finding.level == "warning" and "cannot be read" in finding.what


def test_figure_that_cannot_be_read_is_named_and_hides_no_other_cause(monkeypatch):
    helpers.make_job(connection)
    overflow = "/* pgqueue:overflow */ SELECT 9223372036854775807 + 1 + count(*) FROM pgqueue_job"
    monkeypatch.setattr(cause_queries, "DEAD_IN_A_ROW", overflow)
    found = current.current()
    assert list(found.overview.unread) == ["failing tasks"]
    assert kinds() == ["no worker"]
