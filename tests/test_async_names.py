"""Public asynchronous functions have the name of their synchronous form with Django's prefix `a`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import django_pgqueue
from django_pgqueue.backend import PgQueueBackend, PgQueueTask
from django_pgqueue.models import Job, JobQuerySet
from django_pgqueue.task import Task
from django_pgqueue.tasks.context import TaskContext

INTERNAL = (
    "django_pgqueue.worker",
    "django_pgqueue.waiting",
    "django_pgqueue.middleware",
    "django_pgqueue.models.operations_link",
    "django_pgqueue.contrib.remote",
)
"""Modules whose coroutines no application calls. `arun()` of a middleware is written by the application, and Django
calls the views of `contrib.remote`."""
RESERVED = {"await_result": "wait", "await_event": "wait_for_event"}
"""`await` is a reserved word of Python, so the asynchronous form of `wait()` cannot be `await()`."""


def public_coroutines() -> Iterator[tuple[type, str]]:
    for cls in (Task, TaskContext, Job, JobQuerySet, PgQueueBackend, PgQueueTask):
        for base in cls.__mro__:
            if base.__module__.startswith("django_pgqueue"):
                yield from ((cls, name) for name, value in vars(base).items() if is_public_coroutine(name, value))


def is_public_coroutine(name: str, value: object) -> bool:
    return not name.startswith("_") and inspect.isfunction(value) and inspect.iscoroutinefunction(value)


@pytest.mark.parametrize(("cls", "name"), list(public_coroutines()))
def test_public_coroutine_has_the_name_of_its_sync_form(cls, name):
    sync = RESERVED.get(name, name.removeprefix("a"))
    assert name in RESERVED or name.startswith("a")
    assert callable(getattr(cls, sync))
    assert not inspect.iscoroutinefunction(getattr(cls, sync))


def test_public_coroutines_finds_them():
    names = {name for _, name in public_coroutines()}
    assert {
        "aenqueue",
        "aenqueue_on_commit",
        "aget_result",
        "acall",
        "alast_progress",
        "arefresh",
        "await_result",
    } <= names


def test_no_public_module_has_another_coroutine():
    found = []
    for module in pkgutil.walk_packages(django_pgqueue.__path__, "django_pgqueue."):
        if module.name.startswith((*INTERNAL, "django_pgqueue.migrations", "django_pgqueue.testing.pytest_plugin")):
            continue
        members = vars(importlib.import_module(module.name)).items()
        found += [
            name for name, value in members if is_public_coroutine(name, value) and value.__module__ == module.name
        ]
    assert [name for name in found if not name.startswith("a")] == []
