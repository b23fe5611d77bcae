"""`NewJob`: everything that is written for one job; and the functions that add jobs without a unique key.

`enqueue.new_job()` makes it from the call of a task. The functions run on the caller's connection and in the caller's
transaction. `Task.enqueue()` and `enqueue_many()` call them. `unique` has the ones for jobs with a key, and
`add_jobs()` for the transitions that add jobs themselves. `row` is the name of the task, the headers, and what
`options.columns_of()` returns. For one job, it includes the columns of the limit, if the job has one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import psycopg

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.limits import NO_LIMIT, CallLimit
from django_pgqueue.options.task_options import UNSET

from .types import Enqueued

Row = dict[str, Any]
"""The name, the headers and the options of a job, as the insert statements take them. Jobs can share a row."""
SearchKeys = Mapping[str, str]
"""Texts by the names of the arguments."""
Limits = Sequence[CallLimit | None]
"""The limits of the calls of one statement, or nothing if no call has a limit."""
UNSET_OF_ONE: Final = {**UNSET, **NO_LIMIT}
"""The parameters of ENQUEUE that a job need not have, all None."""


class Uniqueness(NamedTuple):
    """How the jobs of a task keep their unique keys, and what a call does whose key another job has."""

    ready_only: bool
    """Whether a job has its key until it is claimed for the first time. Otherwise it has it until it has ended."""
    period_seconds: float | None
    """Length of the uniqueness window. None: the key depends on the state of the job that has it."""
    on_conflict: str
    has_steps: bool
    """Whether the jobs can have durable steps, which a replacement removes."""

    def columns(self) -> Row:
        """Return the column of a row that says how long a job keeps its key."""
        return {"unique_ready_only": self.ready_only or None}

    @property
    def can_share_statement(self) -> bool:
        """Whether one statement can add jobs of this task and other such jobs, with any tasks and options."""
        return self.on_conflict != "replace" and self.period_seconds is None


class NewJob(NamedTuple):
    """A job to add. `arguments` is the text to store."""

    row: Row
    arguments: str
    search_keys: SearchKeys | None = None
    """None: its task has no search keys."""
    limit: CallLimit | None = None
    uniqueness: Uniqueness | None = None
    """None: its task has no unique key."""
    key: str | None = None
    """None: the job is not unique."""

    @property
    def task_name(self) -> str:
        name: str = self.row["task_name"]
        return name

    @property
    def queue_name(self) -> str:
        name: str = self.row["queue_name"]
        return name

    @property
    def rule(self) -> Uniqueness:
        """How the job keeps its unique key. Its task has one."""
        assert self.uniqueness is not None, "its task has a unique key"  # noqa: S101 -- for the type checker
        return self.uniqueness

    def columns(self) -> Row:
        """Return the values that the statement which adds this job alone needs, apart from the arguments."""
        return self.row if self.limit is None else {**self.row, **self.limit._asdict()}

    def stored(self, headers: Mapping[str, Any]) -> str:
        """Return the job without its arguments as JSON text, for `stored_job()`. `headers` are added."""
        row = {**self.columns(), "search_keys": self.search_keys or {}}
        row["headers"] = {**json.loads(row["headers"] or "{}"), **headers} or None
        return json.dumps(row, default=datetime.isoformat)


def stored_job(stored: str, arguments: str | None) -> NewJob:
    """Return the job that was stored for a callback of a batch or a compensation.

    Raise `psycopg.DataError`, as for a row that the database refuses, if no code of this package stored it.
    """
    try:
        row = json.loads(stored)
        # Without this check, two values in the text could shift the arguments of other jobs of the same statement.
        is_call = isinstance(json.loads(arguments or "null", parse_int=str), dict)
    except (ValueError, RecursionError) as error:
        raise psycopg.DataError(f"the stored call cannot be read: {type(error).__name__}") from None
    row.pop("arguments", None)  # of a callback. They are used as text, so that numbers keep their digits.
    search_keys = row.pop("search_keys", None) or {}
    limit = [row.pop(name, None) for name in CallLimit._fields]
    if not (is_call and isinstance(search_keys, dict)):
        raise psycopg.DataError("the stored call has no arguments, or search keys that are no object")
    texts = (row.get("task_name"), row.get("queue_name"), limit[0] or "", *search_keys.values())
    if not all(isinstance(text, str) for text in texts):
        raise psycopg.DataError("the stored call has no task or no queue, or a key that is no text")
    return NewJob(row, cast("str", arguments), search_keys, CallLimit(*limit) if limit[0] else None)


def enqueue(connection: Connection, job: NewJob) -> Enqueued:
    """Add one ready job. Its unique key and its search keys are not written."""
    params = {**UNSET_OF_ONE, **job.columns(), "arguments": job.arguments}
    [added] = execute(connection, sql.enqueueing.ENQUEUE, params)
    return Enqueued._make(added)


def enqueue_many(connection: Connection, *, arguments: str, limits: Limits = (), **row: Any) -> list[int]:
    """Add a ready job for each element of the JSON array `arguments`, in one statement; return the ids in order."""
    params = {"arguments": arguments, "limits": limits_as_json(limits), **UNSET, **row}
    rows = execute(connection, sql.enqueueing.ENQUEUE_MANY, params)
    return [row[0] for row in rows]


def enqueue_each(
    connection: Connection,
    *,
    arguments: str,
    numbers: Sequence[int],
    rows: Sequence[dict[str, Any]],
    limits: Limits = (),
) -> list[int]:
    """Add a ready job for each element of the JSON array `arguments`, in one statement; return the ids in order.

    The job of the element at a place has the row `rows[numbers[place]]`.
    """
    given = {"arguments": arguments, "limits": limits_as_json(limits)}
    params = {**given, "numbers": statements.numbers(numbers), "options": numbered(rows)}
    return [row[0] for row in execute(connection, sql.enqueueing.ENQUEUE_EACH, params)]


def params_of(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """Return jobs, each with a row of its own, as the statements take them. A row that jobs share is sent once."""
    places: dict[int, int] = {}
    rows: list[Row] = []
    for job in jobs:
        if id(job.row) not in places:
            places[id(job.row)] = len(rows)
            rows.append(job.row if job.uniqueness is None else {**job.row, **job.uniqueness.columns()})
    return {
        "arguments": f"[{','.join(job.arguments for job in jobs)}]",
        "numbers": statements.numbers(places[id(job.row)] for job in jobs),
        "options": numbered(rows),
        "limits": limits_as_json([job.limit for job in jobs]),
    }


def limits_as_json(limits: Limits) -> str | None:
    """Return the limits of calls as JSON text, or None if no call has a limit."""
    if not any(limits):
        return None
    return json.dumps([{} if limit is None else limit._asdict() for limit in limits])


def numbered(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as JSON text, each with its number from 0."""
    return json.dumps([{"number": number, **row} for number, row in enumerate(rows)], default=datetime.isoformat)
