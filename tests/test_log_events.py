"""Each log record about a job or a worker has an event: its name, its level and its fields are declared and in use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import django_pgqueue
from django_pgqueue.ground.log_events import EVENTS, JOB_FIELDS, event, job_event
from tests.documents import PAGES
from tests.tools import log_events_page

TOP = Path(django_pgqueue.__file__).parent
LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
CALLS = {*LEVELS, "log", "log_exception"}
DIRECTORIES = ("worker/**", "lifecycle", "schedules", "contrib/remote", "ends", "admin")
FILES = sorted([*(path for name in DIRECTORIES for path in TOP.glob(f"{name}/*.py")), TOP / "log.py"])
MAKERS = {"event", "job_event", "_extra"}


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_log_call(call: ast.Call) -> bool:
    if name_of(call) == "log_exception":
        return True
    of_logger = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "logger"
    return of_logger and name_of(call) in CALLS


def made_in(function: ast.AST) -> list[ast.Call]:
    """Return the calls that make an event with a literal name."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and name_of(node) in MAKERS]
    return [call for call in calls if call.args and isinstance(call.args[0], ast.Constant)]


@cache
def records() -> list[tuple[str, str, ast.Call | None]]:
    """Return each log call: where it is, the name of its function, and the call that makes its event."""
    found: list[tuple[str, str, ast.Call | None]] = []
    for path in FILES:
        for function in functions(ast.parse(path.read_text())):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if not is_log_call(call) or function.name == "log_exception":
                    continue
                extra = [word.value for word in call.keywords if word.arg == "extra"]
                made = made_in(extra[0] if isinstance(extra[0], ast.Call) else function) if extra else []
                before = [each for each in made if each.lineno <= (call.end_lineno or 0)]
                where = f"{path.relative_to(TOP)}:{call.lineno}"
                found.append((where, name_of(call), before[-1] if before else None))
    return found


def test_each_log_call_has_an_event():
    assert len(records()) > 60
    without = [where for where, _, made in records() if made is None]
    assert without == [], "add extra=event(…) or extra=job_event(…), and declare the event in log_events.py"


def test_each_event_is_declared_with_its_level_and_fields():
    for where, function, made in records():
        declared = EVENTS[made.args[0].value]
        if function in LEVELS:
            assert LEVELS[function] in declared.level.split(" or "), where
        known = {*declared.fields, *(JOB_FIELDS if name_of(made) == "job_event" else ())}
        assert known == set(declared.fields), where
        if name_of(made) != "_extra":
            assert {word.arg for word in made.keywords} <= set(declared.fields), where


def test_each_declared_event_is_used():
    used = {made.args[0].value for path in FILES for made in made_in(ast.parse(path.read_text()))}
    assert used == set(EVENTS)


def test_page_has_every_event():
    page = PAGES["docs/reference/logging.md"]
    assert log_events_page.written(page) == page, "run python -m tests.tools.log_events_page --write"


@pytest.mark.parametrize("name", ["message", "asctime", "args", "name", "msg", "levelname", "process", "thread"])
def test_no_field_replaces_an_attribute_of_records(name):
    """`logging` refuses an `extra` with such a name."""
    assert not [each for each, about in EVENTS.items() if name in about.fields]


def test_job_event_has_the_fields_of_a_job():
    class Job:
        job_id, execution_id, task_name, queue_name, attempt = 1, 2, "task", "queue", 3

    made = job_event("job_dead", Job(), state="dead")
    assert made == {**event("job_dead", state="dead"), **dict(zip(JOB_FIELDS, (1, 2, "task", "queue", 3), strict=True))}
