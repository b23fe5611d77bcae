"""Durable steps in jobs that run in the test's own thread: what is stored, what runs again, and what is refused."""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.utils import timezone
from django.views.debug import ExceptionReporter

from django_pgqueue import EventTimeout, Step, StepError, TaskContext, asend_event, send_event, stats
from django_pgqueue.exceptions import JobCancelled, Snooze, TaskTimeout
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import audit, history, operator, pruning
from django_pgqueue.lifecycle import steps as lifecycle_steps
from django_pgqueue.models import Execution, Job, JobStep, SentEvent
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs, time_travel
from django_pgqueue.worker.foreground_run import run_one
from tests import helpers

from . import tasks
from .tasks import CODE, LOG, calls, note

pytestmark = pytest.mark.django_db


def run(code, **options):
    """Run a job with this code until it ends or is suspended, and return it."""
    CODE["code"] = code
    job = tasks.scripted.enqueue()
    run_jobs(**options)
    job.refresh_from_db()
    return job


def again(job, code=None, **travel):
    """Run a job again, later, and with other code."""
    if code is not None:
        CODE["code"] = code
    with time_travel(**travel):
        run_jobs()
    job.refresh_from_db()
    return job


def last_error(job):
    return Execution.objects.filter(job=job).order_by("-id").values_list("error", flat=True)[0]


def outcomes(job):
    return list(Execution.objects.filter(job=job).order_by("id").values_list("outcome", flat=True))


def steps(job):
    return {step.name: step for step in JobStep.objects.filter(job=job).order_by("position")}


def fails_once_after(name):
    """Return code that calls a step, and then fails in the first attempt."""

    def code(context):
        value = context.step(name, note, name)
        if context.attempt == 1:
            raise LookupError("after the step")
        return value

    return code


# ------------------------------------------------------------------ steps


def test_cancelled_while_asleep_names_no_reason():
    """The step in which it slept is not the reason."""
    job = run(lambda context: context.sleep("nap", 60))
    assert job.cancel()
    assert re.fullmatch(r"It was cancelled at [^:]+:\d\d:\d\d UTC\.", stats.why(job).sentence)
    with pytest.raises(JobCancelled, match=r"was cancelled$") as raised:
        job.wait(0)
    assert raised.value.error == ""


@pytest.mark.promise("step-result-is-stored")
def test_step_stored_value_is_returned_by_the_next_attempt():
    job = again(run(fails_once_after("a")), minutes=2)
    assert (job.state, job.result, calls("a")) == ("succeeded", 1, 1)


def test_step_first_run_returns_what_json_gives_back():
    seen = []

    def code(context):
        seen.append(context.step("a", lambda: {"pair": (1, 2), 3: None}))
        if context.attempt == 1:
            raise LookupError

    again(run(code), minutes=2)
    assert seen == [{"pair": [1, 2], "3": None}] * 2


def test_step_function_that_fails_is_not_stored():
    def code(context):
        return context.step("a", fails_first, context.attempt)

    job = run(code)
    assert steps(job) == {}
    assert again(job, minutes=2).result == "second"


def fails_first(attempt):
    if attempt == 1:
        raise LookupError("first")
    return "second"


def test_step_returned_none_is_stored():
    def code(context):
        context.step("a", lambda: note("a") and None)
        if context.attempt == 1:
            raise LookupError

    again(run(code), minutes=2)
    assert calls("a") == 1


def test_steps_of_operators_retry_resume_at_the_failed_step():
    def code(context):
        context.step("a", note, "a")
        if calls("go") == 0:
            raise LookupError
        context.step("b", note, "b")

    CODE["code"] = code
    job = tasks.scripted.using(max_attempts=1).enqueue()
    run_jobs()
    job.refresh_from_db()
    assert job.state == "dead"
    note("go")
    assert job.retry()
    assert again(job).state == "succeeded"
    assert (calls("a"), calls("b")) == (1, 1)


@pytest.mark.parametrize("value", [object(), "\x00", float("nan"), "x" * 65_536])
def test_step_value_that_cannot_be_stored_ends_the_job(value):
    """Another attempt would repeat work that has already succeeded."""
    job = run(lambda context: context.step("a", lambda: value))
    assert job.state == "dead"
    assert "the step 'a' succeeded, but its result cannot be stored" in last_error(job)
    assert "store_result" not in last_error(job)  # an option of tasks, not of steps


@pytest.mark.promise("defect-step-lost-with-its-connection")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("cut", ["server", "client", "reply"])
def test_step_whose_connection_is_lost_is_stored_on_a_new_one(monkeypatch, watcher, cut):
    """Otherwise the next attempt would call the function again."""

    def work():
        if cut == "server":
            pid = connection.connection.info.backend_pid
            watcher.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        elif cut == "client":
            connection.connection.close()
        LOG.append("work")
        return "done"

    store_step, lost = lifecycle_steps.store_step, ["reply"] if cut == "reply" else []

    def with_lost_reply(*args):
        status = store_step(*args)
        if lost.pop() if lost else None:
            connection.connection.close()
            raise OperationalError("server closed the connection unexpectedly")
        return status

    monkeypatch.setattr(lifecycle_steps, "store_step", with_lost_reply)
    job = run(lambda context: context.step("a", work))
    assert (job.state, job.result, outcomes(job), LOG) == ("succeeded", "done", ["succeeded"], ["work"])


@pytest.mark.django_db(transaction=True)
def test_atomic_step_whose_connection_is_lost_is_repeated(watcher):
    def work():
        count = note("a")
        if not LOG:
            LOG.append("lost")
            watcher.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
        return count

    CODE["code"] = lambda context: context.step(Step("a", atomic=True, retries=1, backoff=0), work)
    job = tasks.scripted.enqueue()
    run_one("default", job.pk)
    connection.close()
    assert again(job).result == 1
    assert (job.attempt, calls("a")) == (1, 1)


def test_step_coroutine_function_in_plain_task_ends_the_job():
    job = run(lambda context: context.step("a", tasks.anote, "a"))
    assert job.state == "dead"
    assert "context.astep()" in last_error(job)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (date(2026, 1, 2), "pass value.isoformat()"),
        (Decimal("1.5"), "pass str(value)"),
        ("x" * 70_000, "store it and pass its id"),
    ],
)
def test_step_value_error_advises_no_annotation(value, advice):
    """The annotations of a step's function convert nothing."""
    job = run(lambda context: context.step("a", lambda: value))
    assert last_error(job).endswith(advice) and "annotate" not in last_error(job)


def test_step_result_of_a_call_as_function_is_refused():
    job = run(lambda context: context.step("a", note("a")))
    assert "the step 'a' needs a function that it can call, not int: pass the function and its" in last_error(job)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("call", "form"),
    [
        (lambda context, function: context.step("a", function), "astep"),
        (lambda context, _: context.sleep("a", 60), "asleep"),
        (lambda context, _: context.wait_for_event("a"), "await_event"),
    ],
    ids=["step", "sleep", "wait"],
)
def test_step_in_coroutine_names_the_form_to_await(call, form):
    called = []

    async def code(context):
        await context.astep("first", tasks.anote, "first")
        call(context, lambda: called.append(1))

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs()
    job.refresh_from_db()
    assert last_error(job).endswith(f"was called in a coroutine: await context.{form}() there")
    assert not called


# ------------------------------------------------------------------ order and changed code


def test_step_name_used_twice_is_refused():
    job = run(lambda context: [context.step("a", note, "a") for _ in range(2)])
    assert "'a' is called twice" in last_error(job)


def test_step_added_by_new_code_gets_a_position_between():
    def old(context):
        context.step("a", note, "a")
        context.step("c", note, "c")
        raise LookupError

    def new(context):
        return [context.step(name, note, name) for name in "zabcd"]

    job = again(run(old), new, minutes=2)
    assert (job.state, list(steps(job))) == ("succeeded", list("zabcd"))
    assert [calls(name) for name in "zabcd"] == [1] * 5


@pytest.mark.promise("defect-no-room-between-steps")
def test_many_steps_before_a_stored_one_keep_their_order():
    """A step of an error handler is stored. The next attempt calls a long loop before it fails in the same way."""

    def code(context):
        try:
            context.step("check", note, "check") if calls("report") else {}["closed"]
            for n in range(200):
                context.step(f"item {n}", int)
            if context.attempt == 2:
                raise LookupError
        except LookupError:
            context.step("report", note, "report")
            raise
        return "done"

    job = again(again(run(code), minutes=2), minutes=20)
    assert (job.state, job.result, calls("report")) == ("succeeded", "done", 1)
    assert list(steps(job)) == ["check", *(f"item {n}" for n in range(200)), "report"]


@pytest.mark.promise("changed-steps-refused")
def test_steps_in_another_order_are_refused_by_name():
    def old(context):
        context.step("a", note, "a")
        context.step("b", note, "b")
        raise LookupError

    def new(context):
        context.step("b", note, "b")
        context.step("a", note, "a")

    job = again(run(old), new, minutes=2)
    assert (job.state, job.attempt, job.unknown_since is None) == ("ready", 1, False)
    assert "the step 'a' is called after the step 'b'" in last_error(job)
    assert (calls("a"), calls("b")) == (1, 1)


@pytest.mark.promise("changed-steps-refused")
@pytest.mark.parametrize("ending", ["return", "raise"])
def test_attempt_that_catches_changed_steps_is_released_all_the_same(ending):
    def old(context):
        context.step("a", note, "a")
        context.step("b", note, "b")
        raise LookupError

    def new(context):
        with suppress(StepError):
            context.step("b", note, "b")
            context.step("a", note, "a")
        if ending == "raise":
            raise ValueError

    job = again(run(old), new, minutes=2)
    assert (job.state, job.attempt, outcomes(job)[-1]) == ("ready", 1, "released")


@pytest.mark.promise("changed-steps-refused")
def test_job_of_changed_steps_is_dead_after_an_hour():
    def old(context):
        context.step("a", note, "a")
        raise LookupError

    def new(context):
        context.sleep("a", 5)

    job = run(old)
    for minutes in range(2, 180, 11):
        job = again(job, new, minutes=minutes)
    assert (job.state, job.attempt) == ("dead", 2)


def test_step_of_another_kind_is_refused():
    def old(context):
        context.step("a", note, "a")
        raise LookupError

    job = again(run(old), lambda context: context.sleep("a", 5), minutes=2)
    assert "stored it as 'step'" in last_error(job)


def test_step_that_is_not_called_any_more_is_kept_and_reported(caplog):
    def old(context):
        context.step("a", note, "a")
        raise LookupError

    with caplog.at_level(logging.WARNING, "django_pgqueue.worker"):
        job = again(run(old), lambda context: context.step("b", note, "b"), minutes=2)
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "steps_not_called"]
    assert (record.steps, record.job_id) == (["a"], job.pk)
    assert (job.state, set(steps(job))) == ("succeeded", {"a", "b"})


# ------------------------------------------------------------------ transactions


def test_step_inside_a_transaction_is_refused():
    job = tasks.in_transaction.enqueue()
    run_jobs()
    assert "inside a transaction" in last_error(job)
    assert calls("a") == 0


def test_step_in_atomic_task_is_refused():
    job = tasks.atomic.enqueue()
    run_jobs()
    assert "Step(…, atomic=True)" in last_error(job)
    assert calls("a") == 0


@pytest.mark.promise("atomic-step-once")
def test_atomic_step_that_fails_undoes_its_writes():
    def code(context):
        return context.step(Step("a", atomic=True), write_then_fail, context.attempt)

    job = run(code)
    assert calls("write") == 0
    assert again(job, minutes=2).result == 1


def write_then_fail(attempt):
    count = note("write")
    if attempt == 1:
        raise LookupError
    return count


@pytest.mark.promise("defect-on-commit-swallows-stop")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("stop", [TaskTimeout, LookupError], ids=["stop", "error"])
def test_atomic_step_stop_in_its_on_commit_function_ends_the_attempt(stop):
    """The worker raises the stop once. If the step dropped it, the task would run on without a limit."""

    def hook():
        raise stop

    def code(context):
        value = context.step(Step("a", atomic=True, retries=3), lambda: transaction.on_commit(hook) or note("a"))
        return [value, note("went on")]

    job = run(code)
    assert (outcomes(job), steps(job)["a"].state) == (["failed" if stop is TaskTimeout else "succeeded"], "finished")
    assert again(job, minutes=2).result == [1, 1]


def test_step_immediate_mode_runs_in_the_callers_transaction():
    CODE["code"] = lambda context: context.step("a", note, "a")
    with override_settings(PGQUEUE={"IMMEDIATE": True, "TASK_MODULES": [tasks.__name__]}), transaction.atomic():
        job = tasks.scripted.enqueue()
    job.refresh_from_db()
    assert (job.state, job.result, set(steps(job))) == ("succeeded", 1, {"a"})


def test_sleep_immediate_mode_leaves_the_job_to_a_worker():
    CODE["code"] = lambda context: context.sleep("nap", 60)
    with override_settings(PGQUEUE={"IMMEDIATE": True, "TASK_MODULES": [tasks.__name__]}):
        job = tasks.scripted.enqueue()
    job.refresh_from_db()
    assert job.state == "ready"
    assert again(job, minutes=2).state == "succeeded"


# ------------------------------------------------------------------ sleeps


@pytest.mark.promise("suspended-holds-no-slot")
def test_sleep_suspends_until_its_end_and_counts_no_attempt():
    job = run(lambda context: [context.sleep("nap", timedelta(hours=24)), context.attempt])
    assert (job.state, job.attempt, outcomes(job)) == ("ready", 0, ["suspended"])
    assert timedelta(hours=23) < job.run_after - job.enqueued_at < timedelta(hours=25)
    assert again(job, hours=23).state == "ready"
    assert again(job, hours=25).state == "succeeded"
    assert job.result == [None, 1]


def test_sleep_until_an_instant():
    wake = datetime.now(UTC) + timedelta(days=2)
    job = run(lambda context: context.sleep("nap", wake))
    assert abs(job.run_after - wake) < timedelta(minutes=1)


def test_sleep_that_an_operator_wakes_sleeps_on():
    job = run(lambda context: context.sleep("nap", 3600))
    before = job.run_after
    job.run_now()
    assert again(job).state == "ready"
    assert abs(job.run_after - before) < timedelta(minutes=1)
    assert again(job, hours=2).state == "succeeded"


@pytest.mark.parametrize("code", ["swallows", "raises another"])
def test_sleep_exception_that_the_task_catches_still_suspends(code):
    def swallows(context):
        try:
            context.sleep("nap", 60)
        except BaseException:  # noqa: BLE001 -- what the test is about
            if code == "raises another":
                raise LookupError from None
        return "too early"

    job = run(swallows)
    assert (job.state, job.result, outcomes(job)) == ("ready", None, ["suspended"])
    assert again(job, minutes=2).result == "too early"


def test_sleep_keeps_what_other_directives_mean():
    def code(context):
        context.step("a", note, "a")
        if calls("snooze") == 0:
            note("snooze")
            raise Snooze(60)
        return context.step("b", note, "b")

    job = run(code)
    assert outcomes(job) == ["snoozed"]
    assert again(job, minutes=2).state == "succeeded"
    assert calls("a") == 1


# ------------------------------------------------------------------ events


def waiting_for(key=7, timeout=None, **options):
    def code(context):
        return context.wait_for_event("approved", key, timeout=timeout, **options)

    return code


def test_wait_event_sent_early_is_received_without_suspension():
    send_event("approved", 7, {"by": "anna"})
    job = run(waiting_for())
    assert (job.state, job.result, outcomes(job)) == ("succeeded", {"by": "anna"}, ["succeeded"])


def test_wait_event_sent_later_resumes_the_job():
    job = run(waiting_for())
    assert (job.state, outcomes(job)) == ("ready", ["suspended"])
    assert "waits for the event approved" in last_error(job)
    send_event("approved", "7", "yes")
    assert again(job).result == "yes"


def test_wait_other_key_or_name_is_not_received():
    job = run(waiting_for())
    send_event("approved", 8)
    send_event("refused", 7)
    assert again(job).state == "ready"


def test_wait_two_jobs_receive_the_same_event():
    jobs = [run(waiting_for()) for _ in range(2)]
    send_event("approved", 7, "yes")
    assert [again(job).result for job in jobs] == ["yes", "yes"]


def test_wait_twice_receives_the_first_event_and_then_the_second():
    for number in (1, 2):
        send_event("approved", 7, number)

    def code(context):
        return [context.wait_for_event("approved", 7, name=f"wait {n}") for n in (1, 2)]

    assert run(code).result == [1, 2]


@pytest.mark.promise("defect-event-ends-backoff")
def test_wait_whose_event_has_come_keeps_the_backoff_of_a_failure():
    """The attempt that the event has woken fails before it reaches the wait."""

    def code(context):
        if calls("fetch") or SentEvent.objects.exists():
            note("fetch")
            raise LookupError("the server does not answer")
        return context.wait_for_event("approved", 7)

    job = run(code)
    send_event("approved", 7)
    assert again(job).attempt == 1
    assert (job.state, calls("fetch")) == ("ready", 1)
    assert again(job, waiting_for(), minutes=2).state == "succeeded"


def test_wait_timeout_raises_also_in_later_attempts():
    def code(context):
        try:
            return context.wait_for_event("approved", 7, timeout=60)
        except EventTimeout:
            if context.attempt == 1:
                raise
            return "too late"

    job = again(run(code), minutes=2)
    assert (job.state, job.attempt) == ("ready", 1)
    send_event("approved", 7)
    assert again(job, hours=1).result == "too late"
    assert steps(job)["approved"].state == "timed out"


@pytest.mark.promise("event-rolls-back")
def test_wait_event_in_rolled_back_transaction_is_not_sent():
    job = run(waiting_for())
    with pytest.raises(LookupError), transaction.atomic():
        send_event("approved", 7)
        raise LookupError
    assert again(job).state == "ready"
    assert not SentEvent.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "is empty"),
        ((7,), "must be a string"),
        (("a" * 101,), "101 characters"),
        (("a", True), "must be a string, a whole number or a UUID"),
        (("a", 1.5), "must be a string, a whole number or a UUID"),
        (("a", "k" * 201), "201 characters"),
        (("a", "\n"), "cannot be printed"),
        (("a", 1, object()), "the payload of the event is of type object, which JSON cannot represent"),
        (("a", 1, "x" * 65_536), "the payload of the event is 65,538 bytes of JSON, .*: store it and pass its id$"),
        (
            ("a", 1, {"day": date(2026, 1, 2)}),
            r"the payload of the event\['day'\] is .* represent: pass value.isoformat",
        ),
    ],
)
def test_send_event_bad_argument_is_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        send_event(*arguments)


@pytest.mark.django_db(transaction=True)
def test_send_event_in_coroutine_names_the_form_to_await():
    async def view():
        send_event("a", 1)

    with pytest.raises(SynchronousOnlyOperation, match=r"the event 'a' was sent from a coroutine: use .await asend"):
        async_to_sync(view)()


class Text(str, Enum):  # noqa: UP042 -- older code has such enums
    KEY = "7"


class Number(int, Enum):
    KEY = 7


@pytest.mark.parametrize("key", [7, "7", Text.KEY, Number.KEY])
def test_send_event_key_is_stored_as_its_value(key):
    send_event("approved", key)
    assert SentEvent.objects.get().key == "7"


# ------------------------------------------------------------------ a step's own retries


def failing(times, **options):
    def code(context):
        return context.step(Step("a", **options), fail_first, times), context.attempt

    return code


def fail_first(times):
    count = note("try")
    if count <= times:
        raise LookupError(f"try {count}")
    return count


def test_step_retries_count_no_attempt_of_the_job():
    job = run(failing(2, retries=3, backoff=0))
    assert (job.state, job.result, job.attempt) == ("succeeded", [3, 1], 1)
    assert outcomes(job) == ["suspended", "suspended", "succeeded"]
    assert steps(job)["a"].tries == 3


def test_step_retries_wait_for_their_backoff():
    job = run(failing(1, retries=1, backoff=timedelta(hours=1)))
    assert steps(job)["a"].state == "retrying"
    assert steps(job)["a"].error == "builtins.LookupError: try 1"
    assert again(job, minutes=50).state == "ready"
    assert again(job, hours=2).state == "succeeded"


def test_step_retries_used_up_fail_the_attempt():
    job = run(failing(2, retries=1, backoff=0))
    assert (job.state, job.attempt, outcomes(job)) == ("ready", 1, ["suspended", "failed"])
    assert again(job, minutes=2).result == [3, 2]


@pytest.mark.parametrize("options", [{"retries": -1}, {"retries": True}, {"retries": "1"}, {"backoff": "soon"}])
def test_step_bad_option_is_refused(options):
    with pytest.raises((TypeError, ValueError)):
        Step("a", **options)


# ------------------------------------------------------------------ without a job, and coroutines


def test_steps_without_a_job_are_plain_calls():
    context = TaskContext()
    assert context.step(Step("a"), note, "a") == 1
    context.sleep("nap", 3600)
    with pytest.raises(StepError, match="run_jobs"):
        context.wait_for_event("approved", 7)


@pytest.mark.parametrize("task", [tasks.fulfil, tasks.fulfil_async], ids=["plain", "coroutine"])
@pytest.mark.parametrize("answer", ["yes", None])
@pytest.mark.django_db(transaction=True)
def test_fulfil_runs_each_step_once(task, answer):
    job = task.enqueue(7)
    assert run_jobs() == 1
    assert again(job, hours=25).state == "ready"
    if answer:
        send_event("approved", 7, answer)
    assert again(job, days=5).result == [1, answer, 1]
    assert [step.kind for step in steps(job).values()] == ["step", "sleep", "event", "step"]
    assert (job.attempt, calls("charge"), calls("ship")) == (1, 1, 1)


@pytest.mark.django_db(transaction=True)
def test_coroutine_may_gather_steps():
    import asyncio

    async def code(context):
        values = await asyncio.gather(*(context.astep(name, tasks.anote, name) for name in "abc"))
        if context.attempt == 1:
            raise LookupError
        return values

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs()
    assert again(job, hours=1).result == [1, 1, 1]
    assert list(steps(job)) == ["a", "b", "c"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "function"])
def test_gathered_sleep_waits_until_the_steps_beside_it_are_stored(is_plain):
    """Otherwise their functions would run again after the sleep."""
    import asyncio

    async def slow(name):
        for _ in range(3):
            await asyncio.sleep(0.02)
        return await tasks.anote(name)

    async def code(context):
        first = context.astep("a", *((tasks.note, "a") if is_plain else (slow, "a")))
        values = await asyncio.gather(first, context.asleep("nap", 60), context.asleep("rest", 60))
        return [*values, await context.astep("b", slow, "b")]

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs()
    job.refresh_from_db()
    assert (job.state, steps(job)["a"].state) == ("ready", "finished")
    assert list(Execution.objects.values_list("outcome", flat=True)) == ["suspended"]
    run_jobs(until=600)
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", [1, None, None, 1])
    assert (calls("a"), calls("b")) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_sleep_in_a_task_group_cancels_no_step_beside_it():
    """A task group cancels the other coroutines as soon as one of them ends with an exception."""
    import asyncio

    async def slow(name):
        await asyncio.sleep(0.1)
        return await tasks.anote(name)

    async def code(context):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(context.astep("a", slow, "a"))
            group.create_task(context.asleep("nap", 60))
        return first.result()

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs()
    assert (outcomes(job), steps(job)["a"].state) == (["suspended"], "finished")
    assert again(job, minutes=2).result == 1


@pytest.mark.django_db(transaction=True)
def test_gathered_steps_that_fail_are_each_tried_again():
    import asyncio

    async def fails_once(name):
        if await tasks.anote(name) == 1:
            raise LookupError(name)
        return name

    async def code(context):
        return await asyncio.gather(
            *(context.astep(Step(name, retries=3, backoff=1), fails_once, name) for name in ("a", "b"))
        )

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs(until=600)
    job.refresh_from_db()
    assert (job.state, job.result, job.attempt) == ("succeeded", ["a", "b"], 1)


# ------------------------------------------------------------------ what an operator sees


def test_why_says_what_a_suspended_job_waits_for():
    found = stats.why(run(waiting_for(4711)))
    assert found.reason is stats.Reason.SUSPENDED
    waiting = r"It is suspended since 20[-0-9]+ [:0-9]+ UTC: step "
    assert re.fullmatch(rf"{waiting}'approved' waits for the event approved\.", found.sentence)
    found = stats.why(run(waiting_for(4711, timeout=3600, name="answer")))
    assert re.match(rf"{waiting}'answer' waits for the event approved, until 20", found.sentence)
    sleeping = stats.why(run(lambda context: context.sleep("nap", 60))).sentence
    assert re.match(rf"{waiting}'nap' sleeps, until 20", sleeping)


# ------------------------------------------------------------------ when the job goes


@pytest.mark.parametrize("way", ["delete", "prune", "Django"])
def test_steps_go_with_their_job(way):
    kept = run(lambda context: context.step("a", note, "a"))
    job = run(lambda context: context.step("b", note, "b"))
    if way == "delete":
        assert operator.delete(connection, [job.pk])
    elif way == "prune":
        Job.objects.filter(pk=job.pk).update(finished_at=job.finished_at - timedelta(days=400))
        pruning.prune(connection, State.SUCCEEDED, 86400.0)
    else:
        job.delete()
    assert set(JobStep.objects.values_list("job_id", flat=True)) == {kept.pk}


def test_steps_of_discarded_job_go_with_it():
    CODE["code"] = lambda context: context.step("a", note, "a")
    tasks.discarded.enqueue()
    run_jobs()
    assert (calls("a"), JobStep.objects.count(), Job.objects.count()) == (1, 0, 0)


def test_retry_of_succeeded_job_starts_again_from_the_beginning():
    job = run(lambda context: context.step("a", note, "a"))
    assert job.retry()
    assert again(job).result == 2


def test_erase_leaves_no_value_of_a_step():
    job = run(lambda context: [context.step("a", lambda: "secret"), context.wait_for_event("e", "secret", timeout=0.0)])
    job.refresh_from_db()
    audit_id = audit.begin_audit(connection, "erase", {})
    kinds = {"arguments": True, "results": True, "errors": True, "logs": True}
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    job.refresh_from_db()
    assert history.erase(connection, {job.pk: job.finished_at}, audit_id=audit_id, **kinds) == [job.pk]
    with connection.cursor() as cursor:
        cursor.execute("SELECT json_agg(step)::text FROM pgqueue_step AS step")
        assert "secret" not in cursor.fetchone()[0]


@pytest.mark.parametrize("by_name", [False, True])
def test_error_report_hides_sensitive_argument_of_a_step(by_name):
    CODE["by_name"] = by_name
    tasks.with_token.enqueue("s3cr3t")
    with pytest.raises(ValueError, match="no") as caught:
        run_jobs(raising=True)
    reporter = ExceptionReporter(None, caught.type, caught.value, caught.tb)
    shown = {frame["function"]: str(frame["vars"]) for frame in reporter.get_traceback_frames()}
    assert shown.keys() >= {"with_token", "step", "charge_token"}
    assert [name for name, variables in shown.items() if "s3cr3t" in variables] == []


def test_archive_has_the_steps():
    job = run(lambda context: context.step("a", note, "a"))
    [(_, _, document)] = history.read_for_archive(connection, {job.pk: job.finished_at})
    text = document if isinstance(document, str) else json.dumps(document)
    assert [step["name"] for step in json.loads(text)["steps"]] == ["a"]


@pytest.mark.django_db(transaction=True)
def test_pgqueue_run_in_the_foreground_suspends_and_continues():
    def code(context):
        context.step("a", note, "a")
        context.sleep("nap", 0.1)
        return context.step(Step("b", atomic=True), note, "b")

    CODE["code"] = code
    job = tasks.scripted.enqueue()
    assert run_one("default", job.pk).report.ending is Ending.SUSPENDED
    job.refresh_from_db()
    assert (job.state, outcomes(job)) == ("ready", ["suspended"])
    helpers.wait_until(lambda: run_one("default", job.pk).report.ending is Ending.SUCCEEDED)
    assert (calls("a"), calls("b")) == (1, 1)


# ------------------------------------------------------------------ steps inside and beside steps


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    "inner",
    [
        lambda context: context.step("inner", note, "inner"),
        lambda context: context.sleep("inner", 60),
        lambda context: context.wait_for_event("inner"),
    ],
    ids=["step", "sleep", "wait"],
)
def test_step_inside_a_step_is_refused(inner, atomic):
    job = run(lambda context: context.step(Step("outer", atomic=atomic, retries=3), inner, context))
    assert "'inner' is called inside the function of the step 'outer'" in last_error(job)
    assert (outcomes(job), steps(job), calls("inner")) == (["failed"], {}, 0)


@pytest.mark.promise("defect-nested-steps-wait-for-each-other")
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_beside", [False, True])
def test_coroutine_step_inside_a_step_is_refused(is_beside):
    """An inner sleep waited until the outer step was stored, which waited for the sleep."""
    import asyncio

    async def outer(context):
        await asyncio.sleep(0.05)
        await context.asleep("inner", 60)

    async def code(context):
        await asyncio.gather(
            context.astep("outer", outer, context), *[context.asleep("nap", 60) for _ in range(is_beside)]
        )

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs(max_jobs=1)
    assert outcomes(job) == ["suspended" if is_beside else "failed"]
    if not is_beside:
        assert "'inner' is called inside the function of the step 'outer'" in last_error(job)


def test_step_that_runs_another_job_lets_it_use_steps():
    CODE["inner"] = lambda context: context.step("b", note, "b")
    CODE["code"] = lambda context: context.step("a", lambda: tasks.scripted.enqueue("inner").pk)
    with override_settings(PGQUEUE={"IMMEDIATE": True, "TASK_MODULES": [tasks.__name__]}):
        job = tasks.scripted.enqueue()
    job.refresh_from_db()
    assert (job.state, Job.objects.get(pk=job.result).result) == ("succeeded", 1)


@pytest.mark.promise("defect-gathered-steps-left-behind")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [True, False], ids=["failure", "success"])
def test_attempt_ends_when_the_steps_that_it_has_begun_are_stored(fails):
    """Otherwise the next attempt would call the function again while the first call still runs."""
    import asyncio

    later, refused = [], []

    async def slow(name):
        await asyncio.sleep(0.1)
        return await tasks.anote(name)

    async def slow_and_more(context):
        await context.astep("slow", slow, "slow")
        try:
            await context.astep("more", slow, "more")
        except StepError as error:
            refused.append(str(error))

    async def code(context):
        if context.attempt == 1:
            later.append(asyncio.ensure_future(slow_and_more(context)))
            await asyncio.sleep(0.05)
            if fails:
                raise LookupError("beside it")

    CODE["code"] = code
    job = tasks.scripted_async.enqueue()
    run_jobs()
    assert outcomes(job) == ["failed" if fails else "succeeded"]
    assert ([*steps(job)], calls("slow"), calls("more")) == (["slow"], 1, 0)
    assert "'more' is called after the function of the task has ended" in refused[0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("send", [send_event, async_to_sync(asend_event)], ids=["sync", "async"])
def test_send_event_returns_how_many_jobs_it_woke(send):
    assert send("nobody", 1) == 0
    for _ in range(2):
        run(waiting_for())
    assert send("approved", 7) == 2
    with transaction.atomic():
        assert send_event("approved", 8) is None, "they are woken after the commit"
