"""Run subcommands of `manage.py pgqueue`, and make jobs in every state, inside the test's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import Claimed, Failed
from django_pgqueue.states import Outcome
from tests import helpers


class Answer(NamedTuple):
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Terminal(StringIO):
    """An output, or an input, that is a terminal."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., Answer]


@pytest.fixture
def pgqueue(db: None) -> Run:
    """Return a function that runs a subcommand and returns what it prints."""

    def run(*arguments: object, stdout: StringIO | None = None, **options: Any) -> Answer:
        out, err = stdout or StringIO(), StringIO()
        call_command("pgqueue", *map(str, arguments), stdout=out, stderr=err, **options)
        return Answer(out.getvalue(), err.getvalue())

    return run


def die(*, error: str = "builtins.ValueError", text: str = "no such card", **options: Any) -> int:
    """Add a job that is dead after one attempt, and return its id."""
    job_id = helpers.make_job(connection, **options)
    fail(job_id, error=error, text=text)
    return job_id


def fail(job_id: int, *, delay_seconds: float | None = None, error: str = "builtins.ValueError", text: str = "") -> Any:
    """Let the next attempt at a job fail."""
    key = claim(job_id).key
    failed = Failed(key, Outcome.FAILED, delay_seconds, 1.0, 0.0, error, text, f"Trace\n{text}")
    return completions.fail(connection, [failed])


def claim(job_id: int) -> Claimed:
    claimed = claims.claim_one(connection, job_id, worker_id=1, lease_seconds=60.0)
    assert claimed is not None
    return claimed


def succeed(job_id: int) -> int:
    completions.succeed(connection, helpers.succeeded(claim(job_id).key, result="7"))
    return job_id


@pytest.fixture
def unreachable(db: None, unused_port: int) -> Iterator[str]:
    """Return an alias whose server does not run. Django's guard would refuse to open a connection of a new alias."""
    settings = connection.settings_dict | {"ENGINE": "django.db.backends.postgresql"}
    dead = DatabaseWrapper(settings | {"HOST": "127.0.0.1", "PORT": str(unused_port)}, "unreachable")

    def ensure_connection() -> None:
        with dead.wrap_database_errors:
            dead.connect()

    vars(dead)["ensure_connection"] = ensure_connection
    connections.settings["unreachable"], connections["unreachable"] = dead.settings_dict, dead
    yield "unreachable"
    del connections["unreachable"], connections.settings["unreachable"]
