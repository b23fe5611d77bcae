"""Typed arguments from `enqueue()` to the task: every way to make a job, old rows, and tasks without a plan."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any, TypedDict, Unpack
from unittest import mock
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.safestring import mark_safe

from django_pgqueue import InvalidTask, chain, checks, enqueue_many, group
from django_pgqueue.arguments import plan as plans
from django_pgqueue.enqueue import new_job
from django_pgqueue.lifecycle import claims
from django_pgqueue.models import Execution, Job, Schedule
from django_pgqueue.schedules import declarations
from django_pgqueue.schedules.cron_and_every import cron, every
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import assert_enqueued, run_jobs
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from tests.app import tasks as app_tasks
from tests.framework import tasks as framework_tasks

from . import tasks
from .types import Kind, Line

ORDER = UUID(int=7)
AT = datetime(2026, 7, 1, 12, tzinfo=UTC)
LINES = [Line("a", Decimal("1.50"))]
CALL = (ORDER, Decimal("9.90"), AT, LINES)
STORED = [
    str(ORDER),
    "9.90",
    "2026-07-01T12:00:00+00:00",
    [{"sku": "a", "price": "1.50", "kind": "card", "children": [], "total": "0"}],
]

original = new_job.key_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def received():
    tasks.received.clear()
    return tasks.received


def store(task, args, **kwargs):
    """Insert a job with these stored arguments, as earlier code or another program would."""
    arguments = json.dumps({"args": args, "kwargs": kwargs})
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, arguments) VALUES (%s, %s) RETURNING id", [task.name, arguments]
        )
        return Job.objects.get(pk=cursor.fetchone()[0])


# ------------------------------------------------------------------ every way to make a job


def test_enqueue_typed_call_is_readable_json_and_comes_back(received):
    job = tasks.charge.enqueue(*CALL, kind=Kind.CASH)
    assert job.arguments == {"args": STORED, "kwargs": {"kind": 7}}
    assert Job.objects.get().arguments == job.arguments
    assert run_jobs(raising=True) == 1
    assert received == [(*CALL, Kind.CASH, None)]


def test_aenqueue_typed_call_comes_back_in_coroutine(received):
    async_to_sync(tasks.charge_async.aenqueue)(ORDER, at=None)
    assert run_jobs(raising=True) == 1
    assert received == [(ORDER, None)]


def test_enqueue_many_typed_calls_come_back(received):
    tasks.charge.enqueue_many([(CALL, {}), ((), dict(zip(("order_id", "amount", "at", "lines"), CALL, strict=True)))])
    run_jobs(raising=True)
    assert received == [(*CALL, Kind.CARD, None)] * 2


def test_enqueue_many_of_several_tasks_converts_each(received):
    enqueue_many([tasks.charge.s(*CALL), tasks.daily.s(date(2026, 7, 1), wait=timedelta(1))])
    run_jobs(raising=True)
    assert received == [(*CALL, Kind.CARD, None), (date(2026, 7, 1), timedelta(1))]
    with pytest.raises(TypeError, match="'day' must be date, not str"):
        enqueue_many([tasks.daily.s("2026-07-01", timedelta(1))])


def test_immediate_typed_call_comes_back(received):
    with override_settings(PGQUEUE={"IMMEDIATE": True, "TASK_MODULES": ["tests.arguments.tasks"]}):
        job = tasks.charge.enqueue(*CALL)
    assert job.state == "succeeded"
    assert received == [(*CALL, Kind.CARD, None)]


def test_call_variable_arguments_are_converted(received):
    day, until = date(2026, 7, 1), date(2026, 8, 1)
    job = tasks.collect.enqueue(day, day, day, until=until, label="x")
    assert job.arguments["args"] == ["2026-07-01"] * 3
    tasks.keywords.enqueue(start=AT)
    run_jobs(raising=True)
    assert received == [(job.pk, day, (day, day), {"until": until, "label": "x"}), {"start": AT}]


def test_direct_call_passes_values_unchanged(received):
    lines, at = tuple(LINES), "no datetime"
    tasks.charge.call(ORDER, Decimal(1), at, lines)  # no job: nothing is checked
    assert received[0][2] is at
    assert received[0][3] is lines


def test_unique_key_function_gets_typed_values(tables):
    parcel = tasks.Parcel.objects.create()
    first = tasks.unique.enqueue(AT, parcel)
    assert first.unique_key == f"2026-07-01-{parcel.pk.hex}"
    assert tasks.unique.enqueue(AT, parcel.pk).is_duplicate, "an instance and its key are the same argument"
    ids = tasks.unique.enqueue_many([((AT, parcel), {}), ((AT + timedelta(days=1), str(parcel.pk)), {})])
    assert ids[0] == first.pk
    assert Job.objects.count() == 2


@pytest.fixture
def schedules(monkeypatch):
    """Keep the schedules of a test to itself."""
    monkeypatch.setattr(declarations, "_declared", {})


def test_schedule_typed_arguments_come_back(schedules, received):
    times = cron("0 9 * * *", args=[date(2026, 7, 1)], kwargs={"wait": timedelta(hours=1)})
    declarations.declare(tasks.daily, times)
    schedule = declarations.definitions("default")["tests.arguments.tasks.daily"]
    assert json.loads(schedule.arguments) == {"args": ["2026-07-01"], "kwargs": {"wait": "P0DT01H00M00S"}}
    run_jobs(schedules=True, until=timedelta(days=1), raising=True)
    assert received[0] == (date(2026, 7, 1), timedelta(hours=1))
    assert Schedule.objects.filter(name="tests.arguments.tasks.daily").exists()


def test_schedule_unique_key_gets_typed_values(tables, schedules, received):
    parcel = tasks.Parcel.objects.create()
    declarations.declare(tasks.unique, every(minutes=1, args=[AT, parcel.pk]))
    keys = []
    with mock.patch.object(new_job, "key_of", side_effect=lambda *call: keys.append(original(*call)) or keys[-1]):
        run_jobs(schedules=True, until=timedelta(minutes=2), max_jobs=1, raising=True)
    assert received == [(AT, parcel)]
    assert set(keys) == {f"2026-07-01-{parcel.pk.hex}"}


def test_schedule_wrong_argument_is_refused_at_import():
    with pytest.raises(InvalidTask, match="'day' must be date, not str"):
        declarations.check_schedule(tasks.daily, every(minutes=1, args=["2026", timedelta(1)]))


def test_schedule_form_checks_that_json_fits_the_annotations():
    declarations.check_arguments(tasks.daily, ["2026-07-01", "P1D"], {})
    with pytest.raises(ValueError, match="'day' is stored as a value that is not date"):
        declarations.check_arguments(tasks.daily, ["tomorrow", "P1D"], {})


def test_assert_enqueued_compares_typed_arguments():
    tasks.charge.enqueue(*CALL)
    assert_enqueued(tasks.charge, args=CALL)
    assert_enqueued(tasks.charge.name, args=CALL)
    with pytest.raises(AssertionError):
        assert_enqueued(tasks.charge, args=(UUID(int=8), *CALL[1:]))


# ------------------------------------------------------------------ what is refused


@pytest.mark.promise("typed-misfit-refused")
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("secret", *CALL[1:]), {}, "argument 'order_id' must be UUID, not str"),
        (CALL, {"kind": "secret"}, "argument 'kind' must be Kind, not str"),
        (CALL, {"note": 7}, "argument 'note' must be str | None, not int"),
        ((*CALL[:3], [Line("a", 1)]), {}, "argument 'lines'[0].price must be Decimal, not int"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("way", ["enqueue", "enqueue_many"])
def test_enqueue_wrong_type_is_refused_before_any_query(django_assert_num_queries, way, args, kwargs, message):
    with pytest.raises(TypeError) as refused:  # noqa: SIM117 -- the queries are those inside
        with django_assert_num_queries(0) if way == "enqueue" else mock.MagicMock():
            if way == "enqueue":
                tasks.charge.enqueue(*args, **kwargs)
            else:
                tasks.charge.enqueue_many([(args, kwargs)])
    assert str(refused.value) == ("" if way == "enqueue" else "enqueue_many(): call 0: ") + message
    assert not Job.objects.exists()


def test_enqueue_variable_argument_of_wrong_type_is_named():
    day = date(2026, 7, 1)
    with pytest.raises(TypeError, match=r"^argument 3 must be date, not int$"):
        tasks.collect.enqueue(day, day, 7)
    with pytest.raises(TypeError, match=r"^argument 'until' must be date, not int$"):
        tasks.collect.enqueue(day, until=7)


def test_enqueue_value_that_contains_itself_is_refused():
    children: list[Line] = []
    line = Line("a", Decimal(1), Kind.CARD, children)  # a list can contain itself
    children.append(line)
    with pytest.raises(ValueError, match="argument 'lines' is nested too deeply"):
        tasks.charge.enqueue(*CALL[:3], [line])


def test_stored_value_nested_too_deeply_is_refused():
    line = {"sku": "a", "price": "1"}
    for _ in range(5000):
        line = {"sku": "a", "price": "1", "children": [line]}
    with pytest.raises(ValueError, match="argument 'lines' is nested too deeply"):
        tasks.charge.decoded_call([*STORED[:3], [line]], {})


# ------------------------------------------------------------------ rows of earlier code


def test_job_of_earlier_code_runs_with_new_annotations(received):
    store(tasks.charge, [str(ORDER), 9.9, "2026-07-01T12:00:00Z", []], kind="CARD")
    assert run_jobs(raising=True) == 1
    assert received == [(ORDER, Decimal("9.9"), AT, [], Kind.CARD, None)]


def test_plain_annotation_of_old_job_is_not_checked(received):
    store(tasks.charge, [*STORED], note=7)
    run_jobs(raising=True)
    assert received[0][-1] == 7


@pytest.mark.promise("typed-stored-misfit-waits")
@pytest.mark.parametrize("args", [["secret", *STORED[1:]], [*STORED[:3], [{"sku": "secret"}]], [*STORED[:3], {}]])
def test_job_that_does_not_fit_waits_and_then_is_dead(args, received):
    job = store(tasks.charge, args)
    assert run_jobs() == 1
    job.refresh_from_db()
    execution = Execution.objects.get(job=job)
    assert (job.state, job.attempt, execution.outcome) == ("ready", 0, "released")
    assert execution.error.startswith("the job's arguments do not fit tests.arguments.tasks.charge(): argument '")
    assert "secret" not in execution.error
    run_jobs(until=timedelta(hours=3))
    job.refresh_from_db()
    assert job.state == "dead"
    assert received == []


def test_job_with_unknown_keyword_does_not_fit():
    job = store(tasks.charge, STORED, other=1)
    run_jobs()
    assert "do not fit" in Execution.objects.get(job=job).error


# ------------------------------------------------------------------ tasks without a plan


@pytest.mark.promise("plain-tasks-unchanged")
def test_task_of_plain_annotations_has_no_plan():
    assert tasks.plain.plan is None
    assert tasks.plain.using(priority=3).plan is None
    for task in (app_tasks.add, app_tasks.noop, app_tasks.attempt_number, app_tasks.async_add):
        assert task.plan is None, task.name


def test_plan_is_compiled_once_for_all_copies(monkeypatch):
    assert tasks.charge.plan is tasks.charge.using(priority=1).plan is not None
    monkeypatch.setattr(plans, "new_plan", mock.Mock(side_effect=AssertionError("compiled again")))
    assert replace(tasks.charge).plan is tasks.charge.plan


@pytest.mark.promise("plain-tasks-unchanged")
def test_plan_of_plain_task_leaves_a_call_as_it_is():
    args, kwargs = (7,), {"names": ("a",)}
    assert tasks.plain.encoded_call(args, kwargs) == (args, kwargs)
    assert tasks.plain.encoded_call(args, kwargs)[0] is args
    job = tasks.plain.enqueue(7, ("a",), other={"any": [None]})
    assert job.arguments == {"args": [7, ["a"]], "kwargs": {"other": {"any": [None]}}}


class Size(IntEnum):
    """A subclass of `int`."""

    SMALL = 1


MISFITS: list[tuple[Any, list[Any], dict[str, Any], str]] = [
    (tasks.plain, ["7"], {}, "argument 'number' must be int, not str"),
    (tasks.plain, [None], {}, "argument 'number' must be int, not NoneType"),
    (tasks.plain, [7.0], {}, "argument 'number' must be int, not float"),
    (tasks.plain, [], {"number": "7"}, "argument 'number' must be int, not str"),
    (tasks.plain, [7, "a"], {}, "argument 'names' must be list[str] | None, not str"),
    (tasks.plain, [7, ["a", 7]], {}, r"argument 'names'[1] must be str, not int"),
    (tasks.plain, [7], {"names": ["a", None]}, r"argument 'names'[1] must be str, not NoneType"),
    (tasks.scalars, [1, 1.5, 1, "x"], {}, "argument 'yes' must be bool, not int"),
    (tasks.scalars, [1, "1.5", True, "x"], {}, "argument 'ratio' must be float, not str"),
    (tasks.scalars, [1, 1.5, True, b"x"], {}, "argument 'name' must be str, not bytes"),
    (tasks.scalars, [1, 1.5, True, "x", 1, "2"], {}, "argument 6 must be int, not str"),
    (tasks.scalars, [1, 1.5, True, "x"], {"level": 2}, "argument 'level' must be str, not int"),
    (tasks.result_of, [7], {}, "argument 'kind' must be str, not int"),
]


def callers(task: Any, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield each way to make a job of a call."""
    yield lambda: task.enqueue(*args, **kwargs)
    yield lambda: async_to_sync(task.aenqueue)(*args, **kwargs)
    yield lambda: task.enqueue_many([(tuple(args), kwargs)])
    yield lambda: enqueue_many([tasks.daily.s(date(2026, 7, 1), timedelta(1)), task.s(*args, **kwargs)])
    yield lambda: chain(task.s(*args, **kwargs)).enqueue()
    yield lambda: group(task.s(*args, **kwargs)).enqueue()
    yield lambda: task.enqueue_on_commit(*args, **kwargs)


@pytest.mark.promise("plain-arguments-checked")
@pytest.mark.parametrize(("task", "args", "kwargs", "problem"), MISFITS, ids=lambda value: str(value)[:40])
def test_argument_of_a_plain_type_is_checked_before_any_query(task, args, kwargs, problem):
    for call in callers(task, args, kwargs):
        with CaptureQueriesContext(connection) as queries, pytest.raises(TypeError, match=re.escape(problem)):
            call()
        assert not [query for query in queries if "INSERT" in query["sql"]]
    with pytest.raises(InvalidTask, match=re.escape(problem)):
        declarations.check_schedule(task, every(hours=1, args=args, kwargs=kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([1, 2, True, "x"], {}),  # an int is a float
        ([True, 1.5, False, "x"], {}),  # a bool is an int
        ([True, True, False, "x", True], {"level": "high"}),
        ([Size.SMALL, 1.5, True, mark_safe("x")], {}),  # subclasses
    ],
)
def test_argument_that_a_type_checker_accepts_is_stored_as_it_is(args, kwargs):
    job = tasks.scalars.enqueue(*args, **kwargs)
    assert job.arguments == {"args": args, "kwargs": kwargs}
    assert [type(value) for value in job.arguments["args"][:3]] == [
        type(value) if type(value) in (int, float, bool) else int for value in args[:3]
    ]
    tasks.scalars.enqueue_many([(tuple(args), kwargs)])
    assert Job.objects.latest("pk").arguments["args"] == args


def test_default_none_is_accepted_for_any_annotation():
    assert tasks.optional_by_default.enqueue(None).arguments["args"] == [None]
    with pytest.raises(TypeError, match=r"'note' must be str \| None, not int"):
        tasks.optional_by_default.enqueue(1)


def test_function_without_annotations_takes_any_value():
    values = ["7", 7, None, [1], {"a": 1}]
    for value in values:
        assert app_tasks.noop.enqueue(value).arguments["args"] == [value]


def test_result_of_another_job_takes_the_place_of_a_checked_argument():
    workflow = chain(app_tasks.add.s(1, 2)).then(app_tasks.add, b=4)
    workflow.enqueue()
    assert run_jobs(raising=True) == 2


def test_task_of_the_framework_has_no_plan():
    """Its tasks are portable to other backends, which convert nothing."""
    name = framework_tasks.noop.module_path
    known = registry.get(name)
    assert known is not None
    typed = replace(known, func=tasks.charge.func)
    assert typed.plan is None
    assert typed.encoded_call(CALL, {}) == (CALL, {})


def test_import_loads_no_optional_library():
    code = (
        "import sys, django; from django.conf import settings; settings.configure(); "
        "import django_pgqueue.arguments.plan as plan; "
        "from uuid import UUID; import dataclasses; line = dataclasses.make_dataclass('Line', [('a', UUID)]); "
        "exec('def f(a: line): ...'); f.__annotations__['a'] = line; assert plan.call_plan(f, 0); "
        "assert not {'pydantic', 'msgspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------ annotations


def test_annotation_not_defined_at_run_time_stays_plain(received):
    tasks.later.enqueue(3, date(2026, 7, 1))  # stays plain JSON
    run_jobs(raising=True)
    assert received == [(3, date(2026, 7, 1))]
    [warning] = [each for each in checks.check_annotations(None) if "tasks.later" in each.msg]
    assert warning.id == "pgqueue.W003"
    assert "'price'" in warning.msg
    with pytest.raises(TypeError, match="annotate it with Decimal"):
        tasks.later.enqueue(Decimal(3), date(2026, 7, 1))


def ambiguous(at: UUID | str) -> None: ...


def ambiguous_result() -> UUID | str:
    return ""


def test_ambiguous_annotation_is_refused_by_check_and_enqueue(monkeypatch):
    ambiguous.__qualname__ = "ambiguous"
    task = Task(func=ambiguous)
    monkeypatch.setattr(registry, "_tasks", {task.name: task})
    [error] = checks.check_annotations(None)
    assert error.id == "pgqueue.E008"
    with pytest.raises(InvalidTask, match="ambiguous: the annotation of 'at' cannot be used: the members of"):
        task.enqueue(ORDER)


def with_list(number: [int] = None) -> None: ...  # type: ignore[valid-type]  # what is tested


def with_dict(options: {1: int}) -> None: ...  # type: ignore[valid-type]  # what is tested


@dataclass
class Misspelled:
    """A dataclass with an annotation that cannot be evaluated."""

    at: "date.foo"  # type: ignore[name-defined]  # what is tested


def with_misspelled(number: Misspelled) -> None: ...


class MisspelledOptions(TypedDict):
    """The same as keywords."""

    at: "date.foo"  # type: ignore[name-defined]  # what is tested


def with_options(**number: Unpack[MisspelledOptions]) -> None: ...


ODD = [(with_list, "number"), (with_dict, "options"), (with_misspelled, "number"), (with_options, "number")]


@pytest.mark.parametrize(("function", "argument"), ODD)
def test_odd_annotation_is_reported_by_check_and_enqueue(monkeypatch, function, argument):
    task = Task(func=function)
    monkeypatch.setattr(registry, "_tasks", {task.name: task})
    [error] = checks.check_annotations(None)
    assert error.id == "pgqueue.E008"
    with pytest.raises(
        InvalidTask, match=rf"{function.__name__}: the annotation of '{argument}' cannot be used: .*Error"
    ):
        task.enqueue(**{argument: 1})


def test_schedule_that_cannot_be_defined_is_logged_once_and_omitted(monkeypatch, schedules, caplog):
    broken, good = replace(tasks.plain, name="broken"), replace(tasks.daily, name="good")
    for task in (broken, good):
        monkeypatch.setitem(registry._tasks, task.name, task)
    monkeypatch.setattr(declarations, "_logged_problems", set())
    declarations.declare(broken, every(hours=1, args=[1]))
    declarations.declare(good, every(hours=1, args=[AT.date(), timedelta(1)]))
    encoded_call = type(broken).encoded_call

    def fail(self, *call):
        return encoded_call(self, *call) if self.name == "good" else object().missing

    monkeypatch.setattr(type(broken), "encoded_call", fail)
    for _ in range(2):
        found = declarations.definitions("default")
        assert "good" in found and "broken" not in found
    assert [each.getMessage() for each in caplog.records] == [
        "schedule broken is omitted, because its definition is invalid: 'object' object has no attribute 'missing'"
    ]
    assert ["broken" in each for each in declarations.problems()] == [True]


def test_ambiguous_result_annotation_is_only_a_warning(monkeypatch):
    task = Task(func=ambiguous_result)
    monkeypatch.setattr(registry, "_tasks", {task.name: task})
    assert task.plan is None
    assert [each.id for each in checks.check_annotations(None)] == ["pgqueue.W003"]


def test_async_attempt_on_event_loop_converts(received):
    job = tasks.charge_async.enqueue(ORDER, at=date(2026, 7, 1))
    claimed = claims.claim_one(connection, job.pk, worker_id=0, lease_seconds=60)
    report = copy_context().run(async_to_sync(attempt_of(claimed, "default", mock.Mock()).run_async))
    assert report.result == f'"{ORDER}"', report.error
    assert received == [(ORDER, date(2026, 7, 1))]
