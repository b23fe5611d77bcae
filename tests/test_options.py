"""Every option of a task is declared once, and every place that needs the option has it.

These tests fail if an option is added to `options.TaskFields`, but not to a signature, a statement or a column.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import get_overloads

import pytest

from django_pgqueue import InvalidTask, Limit, task
from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend import task as backend_task
from django_pgqueue.declared.limits import CallLimit
from django_pgqueue.ground.batch_reference import BatchReference
from django_pgqueue.models import Job, Schedule
from django_pgqueue.options import task_options
from django_pgqueue.options import task_options as options
from django_pgqueue.options.task_options import CARRIED, JobOptions, SharedFields, TaskFields, TaskOptions, UsingOptions
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks
from tests.framework import tasks as framework_tasks
from tests.statements import STATEMENTS

OPTIONS = {each.name for each in fields(TaskFields)}
ONLY_USING = {"run_after", "headers", "batch"}
SET_BY_EACH_CALL = {
    *CARRIED,
    *dict(options.IN_HEADERS),
    "headers",
    "unique_key",
    "unique_while",
    "on_conflict",
    "limit",
}
"""The options that are written into a job's row, or that decide whether a job is added."""
PARAMETERS = {"headers", *(parameter for parameters in CARRIED.values() for parameter in parameters)}
LIMIT_COLUMNS = set(CallLimit._fields)
"""The columns of a limit, which depend on the arguments of each call."""
STORED = JobOptions._fields
"""The columns of a schedule's row that contain options of its jobs."""
BATCH = BatchReference(7, "default")
LIMIT = Limit("options", concurrency=3, weight=2)
JOB_COLUMNS = {field.name for field in Job._meta.concrete_fields}


@pytest.fixture(autouse=True)
def _declared_limit(monkeypatch):
    monkeypatch.setattr(registry, "_limits", {LIMIT.name: LIMIT})


def keywords(function) -> set[str]:
    """Return the options in a signature, without those that it unpacks."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def inserts() -> list[str]:
    return [name for name, text in STATEMENTS.items() if re.search(r"INSERT INTO pgqueue_job\s", text)]


def placeholders(name: str) -> set[str]:
    return set(re.findall(r"%\((\w+)\)s", STATEMENTS[name]))


# ------------------------------------------------------------------ signatures


@pytest.mark.parametrize("overload", get_overloads(task)[1:])
def test_task_decorator_accepts_every_option(overload):
    left_out = {"takes_context"} if "chunk" in keywords(overload) else {"chunk", "chunk_wait"}
    assert keywords(overload) | TaskOptions.__optional_keys__ == OPTIONS - ONLY_USING - left_out | {"schedule"}


@pytest.mark.parametrize("overload", get_overloads(backend_task)[1:])
def test_backend_decorator_accepts_every_shared_option(overload):
    of_backend = {"backend", "schedule", "takes_context", "queue_name", "priority"}
    shared = {each.name for each in fields(SharedFields)} - ONLY_USING
    assert keywords(overload) | TaskOptions.__optional_keys__ == shared | of_backend


@pytest.mark.parametrize(("cls", "own"), [(Task, {"database"}), (PgQueueTask, {"backend"})])
def test_using_accepts_every_option_of_a_call(cls, own):
    assert keywords(cls.using) | UsingOptions.__optional_keys__ == SET_BY_EACH_CALL | own


def test_both_task_classes_have_every_option_with_its_default():
    declared = {each.name: each.default for each in fields(SharedFields)}
    for cls in (Task, PgQueueTask):
        assert {each.name: each.default for each in fields(cls) if each.name in declared} == declared


@pytest.mark.parametrize("unknown", ["atomic", "prioritty"])
def test_using_unknown_option_raises_type_error(unknown):
    for made in (tasks.noop, framework_tasks.noop):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            made.using(**{unknown: 1})


SET = {
    "max_attempts": 3,
    "unique_key": "k",
    "limit": LIMIT,
    "batch": BATCH,
    "expires": 60,
    "headers": {"a": 1},
    "on_conflict": "replace",
    "priority": 5,
    "queue_name": "mail",
    "run_after": timedelta(seconds=30),
    "unique_while": "ready",
}


@pytest.mark.parametrize("made", [tasks.noop, framework_tasks.noop], ids=["own", "framework"])
@pytest.mark.parametrize("name", sorted({*UsingOptions.__optional_keys__, "run_after"}))
def test_using_none_resets_only_options_with_that_value(made, name):
    changed = made.using(**SET)
    reset = changed.using(**{name: None})
    assert getattr(changed, name, None) != getattr(made, name, None) or name == "run_after"
    if name not in task_options.RESET_BY_NONE:
        assert reset == changed
        return
    assert getattr(reset, name) is None
    gone = {"unique_key", "unique_while", "on_conflict"} if name == "unique_key" else {name}
    for other in {each.name for each in fields(SharedFields)} - {name}:
        assert getattr(reset, other) == getattr(made if other in gone else changed, other), other


def test_using_none_database_leaves_the_choice_to_the_routers():
    other = tasks.noop.using(database="other")
    assert (other.using(priority=1).database, other.using(database=None).database) == ("other", None)


def test_using_none_key_with_options_of_a_key_is_refused():
    with pytest.raises(InvalidTask, match="need a unique_key"):
        tasks.noop.using(unique_key=None, on_conflict="raise")


@pytest.mark.django_db
@pytest.mark.parametrize("made", [tasks.noop, framework_tasks.noop], ids=["own", "framework"])
def test_using_none_expires_clears_the_expiry_of_the_job(made):
    made.using(expires=60).using(expires=None).enqueue()
    assert Job.objects.get().expires_at is None


def test_options_for_users_all_have_a_description():
    """Editors with a type checker show the text below the key."""
    tree = ast.parse(Path(inspect.getfile(options)).read_text())
    for name in ("CallOptions", "TaskOptions"):
        [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        for key, text in zip(body[1::2], body[2::2], strict=True):
            assert isinstance(key, ast.AnnAssign), ast.unparse(key)
            assert isinstance(text, ast.Expr), f"{ast.unparse(key)} has no description"


# ------------------------------------------------------------------ statements and columns


def test_inserts_finds_statements_that_insert_jobs():
    assert {"ENQUEUE", "ENQUEUE_MANY", "ENQUEUE_EACH", "ENQUEUE_UNIQUE"} <= set(inserts())


def test_transitions_that_add_jobs_leave_the_insert_to_others():
    """A schedule, a batch or a job with compensations decides. ENQUEUE_EACH_UNIQUE and ENQUEUE_FOR_PERIOD insert."""
    assert not {"FIRE", "RUN_SCHEDULE", "END_BATCHES", "COMPENSATE"} & set(inserts())


@pytest.mark.parametrize("name", inserts())
def test_insert_statement_writes_every_option(name):
    recordset = re.search(r"json_to_recordset\(%\(options\)s::json\) AS (\w+) \(([^)]+)\)", STATEMENTS[name])
    given = placeholders(name) if recordset is None else set(re.findall(r"(\w+) \w+", recordset[2]))
    assert given >= PARAMETERS
    assert recordset is None or set(re.findall(rf"\b{recordset[1]}\.(\w+)", STATEMENTS[name])) >= PARAMETERS
    [columns] = re.findall(r"INSERT INTO pgqueue_job\s+\(([^)]+)\)", STATEMENTS[name])
    assert not (PARAMETERS & JOB_COLUMNS | LIMIT_COLUMNS) - set(re.split(r",\s+", columns))


@pytest.mark.parametrize("name", [name for name in STATEMENTS if "_OR_REPLACE" in name or "REPLACE_" in name])
def test_replaced_job_has_every_option_but_its_queue(name):
    assignments = STATEMENTS[name].rpartition("\nSET ")[2]
    assert not (PARAMETERS & JOB_COLUMNS | LIMIT_COLUMNS) - {"queue_name"} - set(re.findall(r"(\w+) =", assignments))


def test_parameters_are_columns_or_seconds_until_a_column():
    assert {each for each in PARAMETERS - JOB_COLUMNS if not each.endswith("_seconds")} == set()


@pytest.mark.parametrize("name", CARRIED)
def test_values_of_an_option_have_the_declared_parameters(name):
    values = options.OPTIONS[name].values
    assert CARRIED[name] == ((name,) if values is None else tuple(values(None)))


# ------------------------------------------------------------------ schedules


def test_scheduled_job_has_every_option():
    without = {name for name, parameters in CARRIED.items() if not set(parameters) & set(STORED)}
    assert without == {"run_after", "batch"}, "the tick determines when the job runs, and has no batch"


def test_schedule_stores_every_option():
    assert set(STORED) <= {field.name for field in Schedule._meta.concrete_fields}
    assert set(STORED) <= placeholders("ADD_SCHEDULE") & placeholders("CHANGE_SCHEDULE")


def test_schedules_are_read_with_the_options_last_and_in_order():
    columns = STATEMENTS["SCHEDULES"].partition("\nFROM ")[0]
    assert re.findall(r"schedule\.(\w+)", columns)[-len(STORED) :] == list(STORED)
    assert JobOptions._fields[: len(STORED)] == STORED


# ------------------------------------------------------------------ jobs


@pytest.mark.django_db
def test_enqueued_job_equals_its_row():
    changed = tasks.noop.using(priority=3, queue_name="mail", max_attempts=2, expires=60, headers={"a": 1})
    changed = changed.using(limit=LIMIT)
    job = changed.using(run_after=timedelta(seconds=5), unique_key="k").enqueue()
    row = Job.objects.get()
    for column in JOB_COLUMNS - {"finished_at", "progress_at"}:
        assert getattr(job, column) == getattr(row, column), column


# ------------------------------------------------------------------ options in the headers


@pytest.mark.django_db
def test_option_in_the_headers_is_stored_without_a_column(monkeypatch):
    monkeypatch.setattr(options, "IN_HEADERS", (("isolation", "pgqueue_isolation"),))
    isolated = tasks.noop.using(headers={"a": 1, "pgqueue_isolation": "forged"})
    object.__setattr__(isolated, "isolation", "process")
    isolated.enqueue()
    isolated.enqueue_many([(), ()])
    assert list(Job.objects.values_list("headers", flat=True)) == [{"a": 1, "pgqueue_isolation": "process"}] * 3


@pytest.mark.django_db
def test_option_in_the_headers_with_none_is_not_stored(monkeypatch):
    monkeypatch.setattr(options, "IN_HEADERS", (("isolation", "pgqueue_isolation"),))
    assert Job.objects.get(pk=tasks.noop.enqueue().pk).headers is None
