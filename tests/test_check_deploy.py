"""`pgqueue check-deploy`: whether the stored calls of jobs and schedules fit the code of a new release."""

from __future__ import annotations

import inspect
import json
from datetime import date
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from django_pgqueue.deploys import call_shapes, stored
from django_pgqueue.deploys.call_shapes import call_problems
from django_pgqueue.lifecycle import claims, stored_calls
from django_pgqueue.models import JobBatch, JobStep
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import TaskContext
from django_pgqueue.tasks.definition import TaskDefinition
from tests import helpers
from tests.test_sql import explain, nodes, rows_read


def charge(order_id: int, currency: str) -> None: ...
def notify(context: TaskContext, user_id: int, *, text: str = "") -> None: ...
def bill(day: date) -> None: ...
def greet(group: Group) -> None: ...
def collect(*args: int, **kwargs: int) -> None: ...


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have the tasks of a new release only."""
    tasks = [
        TaskDefinition(func=charge, name="shop.charge", aliases=("shop.pay",)),
        TaskDefinition(func=notify, name="shop.notify", takes_context=True),
        TaskDefinition(func=bill, name="shop.bill"),
        TaskDefinition(func=greet, name="shop.greet"),
        TaskDefinition(func=collect, name="shop.collect"),
    ]
    monkeypatch.setattr(registry, "_tasks", {name: task for task in tasks for name in (task.name, *task.aliases)})


def add(on: Any, task_name: str, *args: Any, count: int = 1, **kwargs: Any) -> list[int]:
    call = json.dumps({"args": args, "kwargs": kwargs})
    return helpers.make_jobs(on, count, task_name=task_name, arguments=[call] * count)


def raw(on: Any, arguments: str, task_name: str = "shop.collect") -> int:
    return helpers.make_jobs(on, task_name=task_name, arguments=[arguments])[0]


def kill(on: Any, *job_ids: int) -> None:
    with on.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET state = 'dead', finished_at = statement_timestamp() WHERE id = ANY (%s)",
            [list(job_ids)],
        )


def found(limit: int = 1000) -> list[str]:
    return [str(finding) for finding in stored.check(connection, limit).findings.sorted()]


def test_jobs_that_fit_have_no_finding(db):
    add(connection, "shop.charge", 1, "EUR")
    add(connection, "shop.pay", 1, currency="EUR")
    add(connection, "shop.notify", 7, text="hello")
    add(connection, "shop.bill", day="2026-11-01")
    add(connection, "shop.collect", 1, 2, 3, anything=4)
    assert found() == []


def test_jobs_that_lack_an_argument_are_counted(db):
    first, *_ = add(connection, "shop.charge", 1, count=3)
    add(connection, "shop.charge", order_id=1, count=2)
    assert found() == [f"5 jobs of shop.charge lack `currency` (for example job {first})"]


def test_jobs_with_arguments_too_many_are_named(db):
    add(connection, "shop.charge", 1, "EUR", 3)
    add(connection, "shop.charge", 1, "EUR", discount=1)
    add(connection, "shop.charge", 1, "EUR", order_id=1)
    add(connection, "shop.notify", 1, "hello")
    assert [text.partition(" (")[0] for text in found()] == [
        "1 job of shop.charge passes `order_id` twice: by its place and by its name",
        "1 job of shop.charge passes 3 positional arguments, but the task takes 2",
        "1 job of shop.charge passes `discount`, which the task does not take",
        "1 job of shop.notify passes 2 positional arguments, but the task takes 1",
    ]


def test_job_of_renamed_task_is_checked_with_new_signature(db):
    add(connection, "shop.pay", 1)
    [text] = found()
    assert text.startswith("1 job of shop.pay lacks `currency`")


def test_jobs_of_unknown_task_are_found_in_each_state(db):
    add(connection, "shop.gone")
    helpers.make_job(connection, task_name="shop.gone", delay_seconds=3600.0)
    running = helpers.make_job(connection, task_name="shop.gone", queue_name="other")
    claims.claim_one(connection, running, worker_id=1, lease_seconds=60.0)
    retrying = helpers.make_job(connection, task_name="shop.gone")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET attempt = 1 WHERE id = %s", [retrying])
    kill(connection, *add(connection, "shop.gone", count=2))
    waiting, dead = stored.check(connection, 1000).findings.sorted()
    assert dict(waiting.kinds) == {"due": 1, "scheduled": 1, "running": 1, "retrying": 1}
    assert not waiting.is_warning
    assert dead.is_warning
    assert str(dead).startswith("2 dead jobs of shop.gone name a task that is gone")


def test_finished_jobs_are_not_looked_at(db):
    kill(connection, job_id := add(connection, "shop.gone")[0])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET state = 'succeeded' WHERE id = %s", [job_id])
    assert found() == []


def test_value_that_annotation_cannot_read_is_found_once_per_shape(db):
    first, _ = add(connection, "shop.bill", "yesterday", count=2)
    [text] = found()
    assert text.startswith("2 jobs of shop.bill have stored arguments that the annotations cannot read: argument 'day'")
    assert text.endswith(f"(tried on job {first})")
    assert "yesterday" not in text


def test_sample_that_has_ended_since_does_not_count_as_tried(db, monkeypatch):
    monkeypatch.setattr(stored, "BATCH", 1)
    add(connection, "shop.bill", "yesterday", count=2)
    read, gone = stored_calls.read_calls, [True]
    monkeypatch.setattr(stored_calls, "read_calls", lambda *args: [] if gone and gone.pop() else read(*args))
    [text] = found()
    assert text.startswith("1 job of shop.bill has stored arguments that the annotations cannot read")


def test_values_of_models_are_checked_without_loading_rows(db, django_assert_num_queries):
    add(connection, "shop.greet", 123456)
    with django_assert_num_queries(13) as queries:
        assert found() == []
    assert not any("auth_group" in query["sql"] for query in queries.captured_queries)


def test_encoded_arguments_are_read_in_python(db):
    with override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]}):
        from django_pgqueue.encoding.serialization import encode_arguments

        job_id = raw(connection, encode_arguments([1], {}), "shop.charge")
        assert found() == [f"1 job of shop.charge lacks `currency` (for example job {job_id})"]
    [text] = found()
    assert "has stored arguments that this code cannot read" in text
    assert "a codec that this process does not have" in text


@pytest.mark.parametrize("arguments", ["[]", "7", '{"args": {}, "kwargs": {}}', '{"args": []}'])
def test_arguments_that_are_no_call_are_found(db, arguments):
    raw(connection, arguments)
    [text] = found()
    assert text.startswith("1 job of shop.collect has stored arguments that this code cannot read")


def test_row_that_postgresql_cannot_read_hides_no_other(db):
    """PostgreSQL raises an error for this escape sequence, and with it for the whole batch."""
    raw(connection, '{"args": ["\\u0000"], "kwargs": {"\\u0000": 1}}')
    add(connection, "shop.charge", 1)
    [text] = found()
    assert text.startswith("1 job of shop.charge lacks `currency`")


def test_limit_is_shared_by_lanes_and_reported(db, monkeypatch):
    monkeypatch.setattr(stored, "BATCH", 2)
    helpers.make_jobs(connection, 9, task_name="shop.gone", queue_name="a")
    helpers.make_jobs(connection, 1, task_name="shop.lost", queue_name="b")
    checked = stored.check(connection, 5)
    assert (checked.jobs, checked.is_complete, checked.is_complete_dead) == (5, False, True)
    assert [(each.task_name, each.count) for each in checked.findings.sorted()] == [("shop.gone", 4), ("shop.lost", 1)]
    assert stored.check(connection, 10).is_complete


def test_dead_jobs_newest_are_read_first_and_each_once(db, monkeypatch):
    monkeypatch.setattr(stored, "BATCH", 2)
    kill(connection, *add(connection, "shop.lost", count=3))
    kill(connection, *add(connection, "shop.gone", count=5))  # these ended at one instant
    checked = stored.check(connection, 5)
    assert [(each.task_name, each.count) for each in checked.findings.sorted()] == [("shop.gone", 5)]
    assert (checked.dead_jobs, checked.is_complete_dead, checked.is_complete) == (5, False, True)
    assert stored.check(connection, 100).dead_jobs == 8


def test_dead_jobs_are_read_along_the_index(engine):
    with engine.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) "
            "SELECT 'noop', '{}', 'dead', '2026-11-01'::timestamptz + n * interval '1 s' "
            "FROM generate_series(1, 5000) AS n"
        )
        cursor.execute("ANALYZE pgqueue_job")
    page = next(stored_calls.dead_calls(engine, 2000))
    [(before,)] = engine.execute("SELECT finished_at FROM pgqueue_job WHERE id = %s", [page[-1]])
    params = {"before_at": before, "before_id": page[-1], "limit": 100}
    found = list(nodes(explain(engine, "DEAD_CALLS", params, "generic")))
    assert {node.get("Index Name") for node in found} - {None} == {"pgqueue_job_dead"}
    assert all(rows_read(node) <= 300 for node in found)
    assert page == sorted(page, reverse=True)


def schedule(on: Any, name: str, task_name: str, **columns: Any) -> None:
    values = {"origin": "admin", "enabled": True, "arguments": helpers.NO_ARGUMENTS, **columns}
    with on.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_schedule (name, origin, task_name, arguments, expression, enabled, next_run_at) "
            "VALUES (%s, %s, %s, %s, 'every 1 hour', %s, statement_timestamp())",
            [name, values["origin"], task_name, values["arguments"], values["enabled"]],
        )


def test_schedules_are_checked_and_paused_ones_only_warn(db, monkeypatch):
    for number in range(3):
        schedule(connection, f"night {number}", "shop.gone")
    schedule(connection, "paused", "shop.charge", enabled=False)
    schedule(connection, "of old code", "shop.gone", origin="code")
    schedule(connection, "declared", "shop.gone", origin="code")
    schedule(connection, "right", "shop.collect")
    monkeypatch.setattr(stored.declarations, "definitions", lambda alias: {"declared": None})
    findings = stored.check(connection, 10).findings.sorted()
    assert [(str(each).partition(" (")[0], each.is_warning) for each in findings] == [
        ("3 schedules of shop.gone name a task that is gone", False),
        ("1 paused schedule of shop.charge lacks `currency`", True),
        ("1 paused schedule of shop.charge lacks `order_id`", True),
        ("1 undeclared schedule of shop.gone names a task that is gone", True),
    ]


NAMES = st.sampled_from("abcd")


@st.composite
def functions(draw: st.DrawFn) -> Any:
    kinds = sorted(draw(st.lists(st.sampled_from(list(call_shapes.Kind)), max_size=4)))
    parameters: list[inspect.Parameter] = []
    has_default = False
    for number, kind in enumerate(kinds):
        if kind in (call_shapes.Kind.VAR_POSITIONAL, call_shapes.Kind.VAR_KEYWORD):
            if kind in {each.kind for each in parameters}:
                continue
            default: Any = inspect.Parameter.empty
        else:
            wants_default = draw(st.booleans()) or (has_default and kind in call_shapes.POSITIONAL)
            has_default = wants_default
            default = None if wants_default else inspect.Parameter.empty
        parameters.append(inspect.Parameter("abcd"[number], kind, default=default))
    return inspect.Signature(parameters)


@settings(max_examples=100)
@given(signature=functions(), positional=st.integers(0, 4), names=st.frozensets(NAMES))
def test_call_problems_agree_with_python(signature, positional, names):
    """The rules that name each problem refuse exactly the calls that Python refuses."""
    namespace: dict[str, Any] = {}
    exec(f"def function{signature}: pass", namespace)  # noqa: S102 -- our own text
    try:
        namespace["function"](*(None,) * positional, **dict.fromkeys(names))
        fits = True
    except TypeError:
        fits = False
    problems = list(call_shapes.binding_problems(list(signature.parameters.values()), positional, names))
    assert (problems == []) == fits


def test_call_problems_never_name_the_context():
    task = registry.get("shop.notify")
    assert task is not None
    assert call_problems(task, 1, ()) == []
    [problem] = call_problems(task, 0, ())
    assert problem.rest == "`user_id`"


def run(*options: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("pgqueue", "check-deploy", *options, stdout=out)
    except SystemExit as exited:
        return int(exited.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_command_exit_code_follows_errors_and_strict(engine):
    code, text = run()
    assert (code, text.splitlines()[-1]) == (0, "The new code fits.")
    kill(engine, *add(engine, "shop.gone"))
    assert run()[0] == 0
    code, text = run("--strict")
    assert code == 1
    assert text.startswith("warning: 1 dead job of shop.gone names a task that is gone")
    add(engine, "shop.charge", 1, count=2)
    code, text = run("--limit", "1")
    assert code == 1
    assert "error: 1 job of shop.charge lacks `currency`" in text
    assert (
        "Looked at the first 1 waiting or running job, all 1 dead job, 0 schedules, 0 callbacks and 0 compensations"
        in text
    )
    assert text.splitlines()[-1] == "1 error, 1 warning."


def test_command_json_has_documented_keys(engine):
    [job_id] = add(engine, "shop.charge", 1)
    code, text = run("--json")
    document = json.loads(text)
    assert code == 1
    assert document == {
        "ok": False,
        "database": "default",
        "looked_at": {
            "jobs": 1,
            "jobs_complete": True,
            "dead_jobs": 0,
            "dead_jobs_complete": True,
            "schedules": 0,
            "callbacks": 0,
            "compensations": 0,
        },
        "findings": [
            {
                "level": "error",
                "code": "missing_argument",
                "task": "shop.charge",
                "of": "jobs",
                "count": 1,
                "kinds": {"due": 1},
                "example": job_id,
                "text": f"1 job of shop.charge lacks `currency` (for example job {job_id})",
            }
        ],
    }


def test_compensations_that_can_still_be_enqueued_are_checked(db):
    [job_id] = add(connection, "shop.collect", 1)
    common = {"job_id": job_id, "kind": "step", "attempt": 1, "started_at": timezone.now()}
    for place, (task_name, args) in enumerate([("shop.gone", [1]), ("shop.charge", [1]), ("shop.collect", [1])]):
        arguments = {"args": args, "kwargs": {}}
        options = {"compensation": {"task_name": task_name}, "compensation_arguments": arguments}
        JobStep.objects.create(name=f"step {place}", position=place, **options, **common)
    JobStep.objects.create(name="done", position=9, compensation_id=7, **common)
    checked = stored.check(connection, 10)
    assert checked.compensations == 3
    assert [str(each) for each in checked.findings.sorted()] == [
        f"1 compensation of shop.charge lacks `currency` (for example job {job_id})",
        f"1 compensation of shop.gone names a task that is gone (for example job {job_id})",
    ]


def callback(task_name: str, *args: Any) -> dict[str, Any]:
    return {"task_name": task_name, "queue_name": "default", "arguments": {"args": args, "kwargs": {}}}


def test_callbacks_that_batches_can_still_call_are_checked(db):
    now = timezone.now()
    gone, right = callback("shop.gone"), callback("shop.collect", 1, "text")
    first = JobBatch.objects.create(on_success=gone, on_complete=right, on_failure=gone)
    JobBatch.objects.create(on_success=callback("shop.charge", 1))
    complete = {"completed_at": now, "on_success": gone, "on_complete": gone, "on_failure": gone}
    failed = JobBatch.objects.create(failed_at=now, **complete)
    JobBatch.objects.create(succeeded_at=now, **complete)
    JobBatch.objects.create()
    checked = stored.check(connection, 10)
    assert checked.callbacks == 5
    assert [str(each) for each in checked.findings.sorted()] == [
        f"3 callbacks of shop.gone name a task that is gone (for example batch {first.pk})",
        f"1 callback of shop.charge lacks `currency` (for example batch {first.pk + 1})",
    ]
    assert failed.pk > first.pk
    [of_gone, _] = checked.findings.sorted()
    assert {key: of_gone.as_json()[key] for key in ("of", "kinds", "level")} == {
        "of": "batches",
        "kinds": {"callback": 3},
        "level": "error",
    }


@pytest.mark.parametrize(
    ("old_name", "kwargs", "new_name"),
    [
        ("billing.charge", {"order_id": 1, "currency": "EUR"}, "shop.charge"),
        ("shop.notifiy", {"user_id": 1}, "shop.notify"),
        ("shop.entirely_new", {"order_id": 1, "currency": "EUR"}, "shop.charge"),
        ("shop.entirely_new", {"order": 1}, None),
        ("shop.entirely_new", {}, None),
    ],
    ids=["moved", "similar", "alike", "other", "none"],
)
def test_gone_task_that_seems_renamed_gets_an_alias_proposed(db, old_name, kwargs, new_name):
    add(connection, old_name, **kwargs)
    [text] = found()
    assert text.startswith(f"1 job of {old_name} names a task that is gone")
    proposal = f": if it is {new_name} now, add @task(aliases=[{old_name!r}]) there"
    assert (proposal in text) is (new_name is not None)
    assert new_name or "aliases" not in text
