"""A run's history as the checker reads it: the database's events, and what the processes wrote themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.tools.faults import journal

Record = dict[str, Any]
"""One line of a process's journal."""


class Event(NamedTuple):
    """One change of a row. `old` and `new` are what `schema` kept of it; instants in them are seconds of the epoch."""

    id: int
    at: float
    xid: str
    place: str
    op: str
    job: int
    execution: int | None
    tag: str | None
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class Tick(NamedTuple):
    """A schedule's tick was noted as dealt with; `tick_at` in seconds of the epoch."""

    xid: str
    schedule: int
    tick_at: float
    job: int | None


class Hold(NamedTuple):
    """A key of a task was taken for a job, until an instant."""

    at: float
    xid: str
    task: str
    key: str
    job: int
    until: float


class Pause(NamedTuple):
    """A queue, a task or a limit key was paused, until an instant if one was given, or resumed."""

    at: float
    kind: str
    name: str
    paused: bool
    until: float | None
    by: str = ""
    xid: str = ""


class Stop(NamedTuple):
    """A limit key was held until an instant, or is held no more."""

    at: float
    key: str
    begins: bool
    until: float


class Override(NamedTuple):
    """A limit, or one of its keys, got other values until an instant, or its own again (`given` is None)."""

    at: float
    key: str
    until: float | None
    given: dict[str, Any] | None


class Breaking(NamedTuple):
    """The circuit breaker of a key opened, opened again, or closed. Later executions than `after` may decide."""

    at: float
    xid: str
    key: str
    is_open: bool
    after: int


class Effect(NamedTuple):
    """A row that a task wrote, `kind` "plain" in a transaction of its own, "atomic" in the job's."""

    job: int
    execution: int
    kind: str


class Edge(NamedTuple):
    """A job of a workflow waits for another one."""

    job: int
    needs: int
    policy: str


class BatchChange(NamedTuple):
    """A batch was created or changed. `new` is what `schema` keeps of it."""

    id: int
    at: float
    xid: str
    batch: int
    new: dict[str, Any]


class StepChange(NamedTuple):
    """A durable step was stored, changed or removed (`new` is None)."""

    id: int
    at: float
    xid: str
    job: int
    name: str
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class Sent(NamedTuple):
    """An event that was sent to the jobs that wait for it."""

    at: float
    name: str
    key: str


class Complaint(NamedTuple):
    """A service of a worker met an error, and goes on after a pause."""

    source: str
    at: float


@dataclass
class History:
    """Everything that is known of one run."""

    events: list[Event] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the table says at the end, by job: state, attempt, crashes, …"""
    orders: set[str] = field(default_factory=set)
    """Tags of the rows that producers wrote in the transactions of their enqueues."""
    open: dict[int, int] = field(default_factory=dict)
    """Open executions at the end, and their jobs."""
    complaints: list[Complaint] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    schedules: dict[int, dict[str, Any]] = field(default_factory=dict)
    """At the end: expression, rule for missed ticks, next tick."""
    holds: list[Hold] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    breakings: list[Breaking] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    batches: list[BatchChange] = field(default_factory=list)
    steps: list[StepChange] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def said(self, *events: str) -> list[Record]:
        """The journals' lines of these kinds, in order of time."""
        return [record for record in self.records if record["event"] in events]


EVENTS: Final = """
SELECT id, extract(epoch FROM at)::float8, xid::text, place, op, job_id, execution_id, tag, old, new
FROM fault_event ORDER BY id
"""
TICKS: Final = """
SELECT xid::text, schedule_id, extract(epoch FROM tick_at)::float8, job_id FROM fault_tick ORDER BY id
"""
SCHEDULES: Final = """
SELECT id, jsonb_build_object(
    'expression', expression, 'missed', missed, 'next_run_at', extract(epoch FROM next_run_at)::float8
) FROM pgqueue_schedule
"""
HOLDS: Final = """
SELECT extract(epoch FROM at)::float8, xid::text, task, key, job_id, extract(epoch FROM held_until)::float8
FROM fault_hold ORDER BY id
"""
PAUSES: Final = """
SELECT extract(epoch FROM at)::float8, kind, name, paused, extract(epoch FROM paused_until)::float8, paused_by,
       xid::text
FROM fault_pause ORDER BY id
"""
STOPS: Final = """
SELECT extract(epoch FROM at)::float8, limit_key, begins, extract(epoch FROM held_until)::float8
FROM fault_stop ORDER BY id
"""
OVERRIDES: Final = """
SELECT extract(epoch FROM at)::float8, limit_key, extract(epoch FROM valid_until)::float8, given
FROM fault_override ORDER BY id
"""
BREAKINGS: Final = """
SELECT extract(epoch FROM at)::float8, xid::text, limit_key, is_open, after_execution_id FROM fault_breaker ORDER BY id
"""

BATCHES: Final = "SELECT id, extract(epoch FROM at)::float8, xid::text, batch_id, new FROM fault_batch ORDER BY id"
STEPS: Final = """
SELECT id, extract(epoch FROM at)::float8, xid::text, job_id, name, old, new FROM fault_step ORDER BY id
"""
SENT: Final = "SELECT extract(epoch FROM sent_at)::float8, name, key FROM pgqueue_event ORDER BY id"


def collect(connection: psycopg.Connection[Any], where: Path) -> History:
    """Read it all: from the run's database, from its journals, and from its workers' logs."""
    jobs = connection.execute("SELECT id, fault_job(job) FROM pgqueue_job AS job").fetchall()
    opened = connection.execute("SELECT id, job_id FROM pgqueue_execution WHERE outcome IS NULL").fetchall()
    effects = connection.execute("SELECT job_id, execution_id, kind FROM fault_effect ORDER BY id").fetchall()
    records = journal.read(where)
    return History(
        events=[Event(*row) for row in connection.execute(EVENTS).fetchall()],
        records=records,
        effects=[Effect(*row) for row in effects],
        jobs=dict(jobs),
        orders={tag for (tag,) in connection.execute("SELECT tag FROM fault_order").fetchall()},
        open=dict(opened),
        ticks=[Tick(*row) for row in connection.execute(TICKS).fetchall()],
        schedules=dict(connection.execute(SCHEDULES).fetchall()),
        holds=[Hold(*row) for row in connection.execute(HOLDS).fetchall()],
        pauses=[Pause(*row) for row in connection.execute(PAUSES).fetchall()],
        stops=[Stop(*row) for row in connection.execute(STOPS).fetchall()],
        overrides=[Override(*row) for row in connection.execute(OVERRIDES).fetchall()],
        breakings=[Breaking(*row) for row in connection.execute(BREAKINGS).fetchall()],
        edges=[Edge(*row) for row in connection.execute("SELECT job_id, needs_id, policy FROM fault_edge").fetchall()],
        batches=[BatchChange(*row) for row in connection.execute(BATCHES).fetchall()],
        steps=[StepChange(*row) for row in connection.execute(STEPS).fetchall()],
        sent=[Sent(*row) for row in connection.execute(SENT).fetchall()],
        complaints=complaints(records),
    )


def complaints(records: Sequence[Record]) -> list[Complaint]:
    """Return the errors that the services of workers met."""
    return [
        Complaint(f"{record['pid']} {record['thread']}", record["at"])
        for record in records
        if record["event"] == "error"
    ]
