"""`@task`: the functions and options that it accepts, how a task is called, and how it is found by name."""

import asyncio
import functools
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_pgqueue import InvalidTask, Task, TaskContext, cron, enqueue_many, every, fixed, task
from django_pgqueue.models import Job
from django_pgqueue.options.task_options import JobOptions
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import tasks


def plain(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def another() -> None:
    """Do nothing."""


def with_context(context: TaskContext, a: int = 1) -> tuple[int | None, int, int]:
    """Return what the context says."""
    return context.job_id, context.attempt, a


async def coroutine(a: int) -> int:
    """Return twice."""
    return 2 * a


def with_bare_context(context, a):
    return a


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Remove the tasks of a test at its end."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    monkeypatch.setattr(declarations, "_declared", {**declarations._declared})


def test_task_call_runs_the_function():
    assert tasks.add(2, b=3) == tasks.add.call(2, 3) == 5
    assert asyncio.run(tasks.add.acall(2, 3)) == 5


def test_task_coroutine_can_be_called_sync_and_async():
    made = task(coroutine)
    assert made.is_async
    assert made.call(2) == 4
    assert asyncio.run(made.acall(2)) == 4
    assert asyncio.run(made(2)) == 4


def test_task_direct_call_gets_context_without_job():
    made = task(takes_context=True)(with_context)
    assert made(5) == made.call(5) == asyncio.run(made.acall(5)) == (None, 1, 5)


def test_task_default_name_is_its_path():
    assert task(plain).name == f"{__name__}.plain"
    made = task(priority=5, queue_name="mail")(plain)
    assert (made.priority, made.queue_name) == (5, "mail")
    assert registry.get(made.name) is made


def test_task_name_and_aliases_are_registered():
    made = task(name="sum", aliases=["old.sum", "older"])(plain)
    assert [registry.get(name) for name in ("sum", "old.sum", "older")] == [made] * 3
    assert registry.get(f"{__name__}.plain") is None
    assert registry.all_tasks().count(made) == 1


@pytest.mark.parametrize("options", [{"name": "taken"}, {"aliases": ["taken"]}])
def test_task_duplicate_name_is_refused(options):
    task(name="taken")(plain)
    with pytest.raises(InvalidTask, match="both named 'taken'"):
        task(**options)(another)
    assert registry.get(f"{__name__}.another") is None, "a refused task must not be registered"


def test_task_of_reloaded_module_replaces_the_first():
    first, again = task(plain), task(plain)
    assert registry.get(first.name) is again


def test_registry_has_the_tasks_of_the_app():
    assert registry.get("tests.app.tasks.noop") is tasks.noop


def test_registry_get_unknown_name_returns_none():
    assert registry.get("os.system") is None
    assert registry.get("this.s") is None


def test_using_returns_a_changed_copy():
    at = datetime(2030, 1, 1, tzinfo=UTC)
    changed = tasks.add.using(priority=7, queue_name="other", run_after=at, max_attempts=3, database="default")
    assert (changed.priority, changed.queue_name, changed.run_after, changed.max_attempts) == (7, "other", at, 3)
    assert (tasks.add.priority, tasks.add.queue_name, tasks.add.run_after) == (0, "default", None)
    assert changed.using(priority=0).queue_name == "other"
    assert changed.name == tasks.add.name
    with pytest.raises(FrozenInstanceError):
        changed.priority = 1


def test_task_call_without_its_context_says_what_to_write():
    made: Any = task(with_bare_context)
    with pytest.raises(TypeError, match=r"argument: 'a'\. If 'context' is the TaskContext, write @task\(takes_con"):
        made.enqueue(1)


@pytest.mark.parametrize(
    ("function", "options", "wanted"),
    [
        (lambda: None, {}, "module-level"),
        (generator, {}, "generator"),
        (async_generator, {}, "generator"),
        (print, {}, "module-level"),
        (coroutine, {"atomic": True}, "atomic"),
        (plain, {"takes_context": True}, "argument named context"),
        (another, {"takes_context": True}, "argument named context"),
        (with_context, {}, "'context' is a TaskContext, which workers pass only with takes_context=True"),
        (plain, {"name": "a b"}, "characters"),
        (plain, {"name": "x" * 101}, "100"),
        (plain, {"queue_name": "'; DROP TABLE job; --"}, "queue_name"),
        (plain, {"queue_name": ""}, "queue_name"),
        (plain, {"aliases": ["a b"]}, "alias"),
        (plain, {"priority": 101}, "-100 to 100"),
        (plain, {"priority": -101}, "-100 to 100"),
        (plain, {"priority": "high"}, "-100 to 100"),
        (plain, {"max_attempts": 0}, "1 to 1000"),
        (plain, {"max_attempts": 1001}, "1 to 1000"),
        (plain, {"max_attempts": "5"}, "1 to 1000"),
        (plain, {"retry_for": [int]}, "exception classes"),
        (plain, {"no_retry_for": ["ValueError"]}, "exception classes"),
        (plain, {"run_after": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 -- deliberately naive
        (plain, {"run_after": datetime(1999, 1, 1, tzinfo=UTC)}, "2000 and 9000"),
        (plain, {"run_after": datetime(9500, 1, 1, tzinfo=UTC)}, "2000 and 9000"),
        (plain, {"run_after": -1}, "duration"),
        (plain, {"run_after": "tomorrow"}, "duration"),
        (plain, {"backoff": "slow"}, "duration"),
        (plain, {"backoff": lambda exception: 5}, r"backoff: the parameters of a backoff must be"),
        (plain, {"retention": -5}, "duration"),
        (plain, {"retention": {"dead": "never"}}, "duration"),
        (plain, {"retention": {"ready": 5}}, "ready"),
        (plain, {"prioritty": 5}, "prioritty"),
        (plain, {"schedule": "0 9 * * *"}, "must be cron"),
        (plain, {"schedule": ["@daily"]}, "must be cron"),
        (plain, {"schedule": None}, "must be cron"),
        (plain, {"schedule": every(minutes=5)}, "cannot call the task: missing a required argument: 'a'"),
        (plain, {"schedule": cron("@daily", args=[1, 2, 3])}, "too many positional"),
        (plain, {"schedule": [every(hours=1, args=[1]), every(hours=1, kwargs={"c": 1})]}, "cannot call the task"),
        (plain, {"schedule": every(hours=1, args=[datetime(2030, 1, 1, tzinfo=UTC)])}, "must be int, not datetime"),
    ],
)
def test_task_invalid_function_or_options_are_refused(function, options, wanted):
    before = dict(registry._tasks)
    with pytest.raises(InvalidTask, match=wanted):
        task(**options)(function)
    assert registry._tasks == before


def test_task_method_or_inner_function_is_refused():
    def inner():
        pass

    for function in (inner, Task.call, InvalidTask):
        with pytest.raises(InvalidTask, match="module-level"):
            task(function)


@pytest.mark.parametrize("function", [functools.partial(plain, 1), Task(func=plain)])
def test_task_callable_object_is_refused(function):
    with pytest.raises(InvalidTask, match="module-level"):
        task(function)


@pytest.mark.parametrize("option", [{"priority": 1000}, {"queue_name": "a b"}, {"max_attempts": 0}, {"run_after": -5}])
def test_using_invalid_option_is_refused(option):
    with pytest.raises(InvalidTask):
        tasks.add.using(**option)


def test_delay_after_follows_retry_for_and_no_retry_for():
    made = task(backoff=fixed(5), retry_for=(OSError, ValueError), no_retry_for=FileNotFoundError)(plain)
    assert made.delay_after(1, OSError()) == 5
    assert made.delay_after(1, UnicodeError()) == 5
    assert made.delay_after(1, FileNotFoundError()) is None
    assert made.delay_after(1, KeyError()) is None
    assert made.delay_after(1, None) == 5


def test_delay_after_custom_backoff_can_end_the_retries():
    made = task(backoff=lambda attempt, exception: None if attempt > 2 else timedelta(minutes=attempt))(plain)
    assert [made.delay_after(attempt, KeyError()) for attempt in (1, 2, 3)] == [60, 120, None]


def test_retention_for_all_states_or_by_state():
    assert Task(func=plain).retention_for("dead") == (False, None)
    assert Task(func=plain, retention=0).retention_for("succeeded") == (True, 0)
    assert Task(func=plain, retention="forever").retention_for("dead") == (True, None)
    by_state = task(retention={"dead": timedelta(days=1)})(plain)
    assert by_state.retention_for("dead") == (True, 86400)
    assert by_state.retention_for("succeeded") == (False, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "mail"}, "did you mean 'queue_name'"),
        ({"xyzzy": 1}, "the options are aliases"),
        ({"backend": "default"}, "pass database= .* or use django_pgqueue.backend.task"),
        ({"bind": True}, "pass takes_context=True"),
        ({"aliases": "old.name"}, "not the string 'old.name'"),
        ({"max_attempts": True}, "max_attempts True must be a whole number"),
        ({"atomic": "yes"}, "atomic must be True or False"),
        ({"store_result": None}, "store_result must be True or False"),
        ({"backoff": -5}, "backoff: invalid duration"),
    ],
)
def test_task_invalid_option_is_named_with_its_remedy(options, says):
    with pytest.raises(InvalidTask, match=says):
        task(**options)(plain)


# ------------------------------------------------------------------ schedules


def test_task_schedules_have_the_options_of_the_task():
    made = task(
        queue_name="mail",
        priority=3,
        schedule=[
            cron("0  9 * * 1-5", tz="Europe/Paris", args=[1], kwargs={"b": 2}, missed="all", if_running="skip"),
            every(minutes=5, args=[1], jitter=timedelta(seconds=30)),
            every(days=1, args=[1], name="by hand"),
        ],
    )(plain)
    found = declarations.definitions("default")
    assert [name for name in found if found[name].task_name == made.name] == [made.name, f"{made.name}:2", "by hand"]
    first, second = found[made.name], found[f"{made.name}:2"]
    assert first.arguments == '{"args":[1],"kwargs":{"b":2}}'
    assert (first.expression, first.time_zone, first.missed, first.if_running) == (
        *("0 9 * * 1-5", "Europe/Paris"),
        *("all", "skip"),
    )
    assert first.options == JobOptions("mail", 3, 10)
    assert (second.expression, second.jitter_seconds, second.missed, second.if_running) == (
        *("every 5 minutes", 30.0),
        *("latest", "overlap"),
    )
    assert first.digest != second.digest == declarations.definitions("default")[second.name].digest


def test_schedules_can_have_a_queue_and_a_priority_of_their_own():
    nightly = cron("@daily", args=[1], queue_name="reports", priority=-10)
    hourly = every(hours=1, args=[1], priority=0)
    made = task(queue_name="mail", priority=3, schedule=[nightly, hourly, cron("@daily", args=[1], name="own")])(plain)
    found = declarations.definitions("default")
    first, second, third = found[made.name], found[f"{made.name}:2"], found["own"]
    assert first.options == JobOptions("reports", -10, 10)
    assert second.options == JobOptions("mail", 0, 10)
    assert third.options == JobOptions("mail", 3, 10)
    same = first._replace(options=third.options)
    assert same.digest == third._replace(name=first.name).digest != first.digest
    assert (made.queue_name, made.priority) == ("mail", 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"priority": 101}, "priority 101 must be a whole number from -100 to 100"),
        ({"priority": "high"}, "priority 'high' must be a whole number"),
        ({"priority": True}, "priority True must be a whole number"),
        ({"queue_name": "no spaces"}, "queue_name 'no spaces' must be"),
        ({"queue_name": ""}, "queue_name '' must be"),
    ],
)
@pytest.mark.parametrize("make", [lambda **given: cron("@daily", **given), lambda **given: every(hours=1, **given)])
def test_schedule_invalid_queue_or_priority_is_refused(make, given, words):
    with pytest.raises(InvalidTask, match=f"another: schedule '(@daily|every 1 hour)': .*{words}"):
        task(schedule=make(**given))(another)


def test_cron_without_time_zone_uses_that_of_the_project(settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    task(schedule=[cron("@daily"), cron("@daily", tz=ZoneInfo("Europe/Paris"))])(another)
    found = declarations.definitions("default")
    name = f"{__name__}.another"
    assert (found[name].time_zone, found[f"{name}:2"].time_zone) == ("Asia/Tokyo", "Europe/Paris")


def test_task_defined_again_replaces_its_schedules():
    task(schedule=every(hours=1))(another)
    task(schedule=every(hours=2))(another)
    name = f"{__name__}.another"
    assert declarations.definitions("default")[name].expression == "every 2 hours"
    task(another)
    assert name not in declarations.definitions("default")


def test_task_schedules_are_of_the_database_of_the_task():
    task(database="elsewhere", schedule=every(hours=1))(another)
    assert f"{__name__}.another" not in declarations.definitions("default")
    assert list(declarations.definitions("elsewhere")) == [f"{__name__}.another"]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        (lambda: cron("61 * * * *"), "Bad minute"),
        (lambda: cron("* * * * * *"), "five fields"),
        (lambda: cron("0 9 * * *", tz="Mars"), "time zone"),
        (lambda: every(), "whole seconds"),
        (lambda: every(seconds=0.5), "whole seconds"),
        (lambda: every(hours=1, missed="never"), "missed must be one of"),  # type: ignore[arg-type]  # deliberately invalid
        (lambda: every(hours=1, if_running="wait"), "if_running must be one of"),  # type: ignore[arg-type]  # as above
        (lambda: every(hours=1, jitter=-1), "duration"),
        (lambda: every(hours=1, jitter=timedelta(days=2)), "at most a day"),
        (lambda: every(hours=1, name=""), "printable"),
        (lambda: every(hours=1, name=" x"), "printable"),
        (lambda: every(hours=1, name="x" * 201), "printable"),
    ],
)
def test_schedule_invalid_options_are_refused(times, wanted):
    with pytest.raises(ValueError, match=wanted):
        times()


@pytest.mark.django_db
def test_argument_named_self_is_passed_by_every_method():
    named = {"self": 1, "func": 2, "place": 3}
    assert tasks.with_odd_names(**named) == tasks.with_odd_names.call(**named) == [1, 2, 3]
    jobs = [tasks.with_odd_names.enqueue(**named), tasks.with_odd_names.enqueue_on_commit(**named)]
    enqueue_many([tasks.with_odd_names.s(**named)])
    tasks.with_odd_names.enqueue_many([named])
    run_jobs()
    assert [job.result for job in Job.objects.all()] == [[1, 2, 3]] * 4
    assert len(jobs) == 2
    with pytest.raises(TypeError, match=r"using\(\) got an unexpected keyword argument 'self'"):
        tasks.with_odd_names.using(self=1)


def test_argument_named_self_is_passed_by_asynchronous_methods(committing):
    named = {"self": 1, "func": 2, "place": 3}

    async def enqueue():
        try:
            await tasks.with_odd_names.aenqueue(**named)
            await tasks.with_odd_names.aenqueue_on_commit(**named)
            return await tasks.with_odd_names.acall(**named)
        finally:
            await sync_to_async(connections.close_all)()

    assert asyncio.run(enqueue()) == [1, 2, 3]
    assert [job.arguments["kwargs"] for job in Job.objects.all()] == [named, named]
