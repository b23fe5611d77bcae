"""Read counts and causes together, at most once in five seconds for a process.

The overview, Django's index page, `pgqueue status`, the doctor and the metrics call this module. The reading does not
depend on who asks: the sentences, which can name limit keys, are made anew for each of them.

Concurrency: threads that find an old reading at the same time each read. An act of the console forgets the reading, so
that the next page of this process shows what the act has changed. A reading that began before the act and ends after it
would show the old state, so it is not kept: `forget()` raises `_generation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.statements import clock
from django_pgqueue.stats.alias import connection_of
from django_pgqueue.stats.depths import DepthReading
from django_pgqueue.stats.overall import overview_of, workers_of
from django_pgqueue.stats.sentences import utc_text
from django_pgqueue.stats.unread import Figures, read_each

from . import failed_jobs, limited_jobs, waiting_jobs, worker_states
from .cause import Cause, ranked
from .facts import Facts, read_facts
from .words import Words

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

AGE_LIMIT_SECONDS: Final = 5.0
"""How old a reading may be."""
SHOWN_SECONDS: Final = 30.0
"""How old a reading may be whose figures the sidebar shows without a new one."""
SOURCES: Final = (
    waiting_jobs.unserved_queues,
    waiting_jobs.unknown_tasks,
    waiting_jobs.paused_queues,
    waiting_jobs.paused_tasks,
    waiting_jobs.busy_queues,
    limited_jobs.held_jobs,
    limited_jobs.single_keys,
    failed_jobs.lost_jobs,
    worker_states.lost_workers,
    worker_states.mixed_releases,
    worker_states.hanging_jobs,
    failed_jobs.dead_dependencies,
    failed_jobs.failed_workflows,
    failed_jobs.acknowledged_dependencies,
    failed_jobs.failing_tasks,
    failed_jobs.died_jobs,
    failed_jobs.schedules,
    failed_jobs.late_schedules,
)
"""The functions that find causes. To add a kind, add it to `CauseKind`, and a function here."""

Key = tuple[str, float]
"""The alias of a database, and the shift of the clock: a test that travels in time reads anew."""
_readings: dict[Key, tuple[float, Facts]] = {}
"""The latest reading of each database, with the time at which it began."""
_generation = 0
"""How often readings were forgotten."""


def causes(
    database: str | None = None, *, with_keys: bool = False, time_text: Callable[[datetime], str] | None = None
) -> tuple[Cause, ...]:
    """Return why jobs do not run or fail now, the most important cause first.

    The answer comes from a reading that is at most five seconds old, also inside a transaction. A new one runs two
    read-only statements more than `overview()`, and up to seven further ones if there is more to say. Their cost is
    bounded, however many jobs, keys, schedules and failures there are. The sentences are in the active language.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.
        with_keys: Whether sentences name limit keys, which are made of arguments.
        time_text: Returns a time as the sentences show it. By default times are in UTC.

    Example:
        >>> [cause.sentence for cause in stats.causes()]
        ['5,000 jobs wait: an operator has paused the queue orders: wrong price list (by anna, since …).']
    """
    return causes_of(current(database), Words(time_text or utc_text, with_keys))


def causes_of(facts: Facts, words: Words) -> tuple[Cause, ...]:
    """Return the causes that follow from some facts, the most important first. This reads nothing."""
    return ranked(cause for source in SOURCES for cause in source(facts, words))


def current(database: str | None = None, figures: Figures | None = None, *, is_fresh: bool = False) -> Facts:
    """Return the latest reading of a database, at most `AGE_LIMIT_SECONDS` old, or a new one.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.
        figures: Reads each figure, if the caller has others to read too.
        is_fresh: Whether to read anew in any case.
    """
    connection, now, generation = connection_of(database), time.monotonic(), _generation
    key = connection.alias, clock.shift_seconds
    began_at, facts = _readings.get(key, (float("-inf"), None))
    if facts is None or is_fresh or now - began_at >= AGE_LIMIT_SECONDS:
        if figures is None:
            facts = read_each(connection, lambda each: _read(connection, each))
        else:
            facts = _read(connection, figures)
        if generation == _generation:
            _readings[key] = now, facts
    return facts


def latest(database: str | None = None) -> Facts | None:
    """Return the latest reading of a database if it is at most `SHOWN_SECONDS` old, or None. This reads nothing."""
    began_at, facts = _readings.get((connection_of(database).alias, clock.shift_seconds), (float("-inf"), None))
    return facts if time.monotonic() - began_at <= SHOWN_SECONDS else None


def document_of(facts: Facts, words: Words) -> dict[str, Any]:
    """Return the figures and the causes as one document for programs."""
    figures = {each.name: getattr(facts.overview, each.name) for each in fields(facts.overview)}
    return {**figures, "read_at": facts.read_at, "causes": causes_of(facts, words)}


def forget() -> None:
    """Read anew when somebody asks next, because this process has changed something. Safe from any thread."""
    global _generation
    _generation += 1
    _readings.clear()


def _read(connection: BaseDatabaseWrapper, figures: Figures) -> Facts:
    read_at, reading = datetime.now(UTC), DepthReading(connection, by_task=False, figures=figures)
    workers = workers_of(reading)
    return read_facts(reading, workers, overview_of(reading, workers), read_at)
