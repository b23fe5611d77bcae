"""The duties that capabilities hand to the maintenance, such as the removal of their old rows.

`Maintenance` starts each kind in `DUTIES` once for each process, beside its own duties and the sweeps of `end_sweeps`.
To add a duty, write a function that gets a connection, and add one row. `on_connection()` and `page_by_page()` make the
duty from the function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import (
    audit,
    batches,
    breakers,
    events,
    limit_overrides,
    limits,
    orphans,
    pauses,
    rollups,
    unique,
    worker_requests,
    workers,
)
from django_pgqueue.lifecycle.orphans import ORPHANS
from django_pgqueue.lifecycle.pruning import PRUNE_LIMIT
from django_pgqueue.lifecycle.rollups import ROLLUPS_MERGED
from django_pgqueue.lifecycle.unique import WINDOWS_PRUNED
from django_pgqueue.reactions import Reactions
from django_pgqueue.settings.conf import DAY_SECONDS, get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .end_sweeps import SWEEP_SECONDS, StepDuties

RECORD_SECONDS: Final = 7 * DAY_SECONDS
"""How long the records of stopped workers, ended pauses and ended overrides are kept."""

Run = Callable[[], bool | float]
"""Runs a duty once. Returns whether there is more to do, or in how many seconds there is."""
Start = Callable[[ConnectionSource, Reactions], Run]


class DutyKind(NamedTuple):
    """One recurring piece of work, as a capability declares it."""

    name: str
    start: Start
    """Returns the function to run, with the position of one process."""
    interval_seconds: Callable[[], float] = lambda: DAY_SECONDS / 24


class PageEnd(Protocol):
    """The result of one page. `last_id` is its end, or None after the last."""

    @property
    def last_id(self) -> int | None: ...


class Walk:
    """The position of one process in its walk over a table."""

    def __init__(self, link: ConnectionSource, prune: Callable[[EngineConnection, int], PageEnd]) -> None:
        self._link = link
        self._prune = prune
        self._after_id = 0

    def run(self) -> bool:
        """Remove the old rows of one page. Return whether there is more to do, until the whole table was read."""
        with self._link.use() as connection:
            last_id = self._prune(connection, self._after_id).last_id
        self._after_id = last_id or 0
        return last_id is not None


def page_by_page(prune: Callable[[EngineConnection, int], PageEnd]) -> Start:
    """Return a duty that reads a whole table. `prune` removes the old rows of the page behind an id."""
    return lambda link, reactions: Walk(link, prune).run


def on_connection(remove: Callable[[EngineConnection], bool | None]) -> Start:
    """Return a duty that removes old rows, which an index finds. `remove` returns whether there may be more of them."""

    def run(link: ConnectionSource) -> bool:
        with link.use() as connection:
            return bool(remove(connection))

    return lambda link, reactions: partial(run, link)


def older_than(seconds: float, remove: Callable[[EngineConnection, float], None]) -> Start:
    """Return a duty that removes all rows older than this with one call of `remove`."""
    return on_connection(lambda connection: remove(connection, seconds))


def _windows(connection: EngineConnection) -> bool:
    return unique.prune_windows(connection) >= WINDOWS_PRUNED


def _audit(connection: EngineConnection) -> bool:
    return audit.prune_audit(connection, get_settings().AUDIT_RETENTION) >= PRUNE_LIMIT


def _rollups(connection: EngineConnection) -> bool:
    return rollups.prune_rollups(connection, get_settings().STATS_RETENTION) >= ROLLUPS_MERGED


def _breaker_counts(connection: EngineConnection) -> bool:
    """Remove the counts that are in no window of a circuit breaker. Without a breaker, send no statement."""
    return bool(registry.breakers() and breakers.prune_counts(connection) >= breakers.COUNTS_PRUNED)


def _batches(connection: EngineConnection, after_id: int) -> PageEnd:
    return batches.prune_batches(connection, get_settings().BATCH_RETENTION, after_id)


def _events(connection: EngineConnection, after_id: int) -> PageEnd:
    return events.prune_events(connection, get_settings().EVENT_RETENTION, after_id)


def _orphans(name: str, connection: EngineConnection, after_id: int) -> PageEnd:
    return orphans.prune_orphans(connection, name, after_id)


DUTIES: Final[tuple[DutyKind, ...]] = (
    DutyKind("workers", older_than(RECORD_SECONDS, workers.prune_workers)),
    DutyKind("requests", older_than(DAY_SECONDS, worker_requests.prune_worker_requests)),
    DutyKind("pauses", older_than(RECORD_SECONDS, pauses.prune_pauses)),
    DutyKind("windows", on_connection(_windows)),
    DutyKind("old rollups", on_connection(_rollups)),
    DutyKind("audit", on_connection(_audit)),
    DutyKind("breakers", on_connection(_breaker_counts), lambda: get_settings().PRUNE_INTERVAL),
    DutyKind("overrides", older_than(RECORD_SECONDS, limit_overrides.prune_overrides)),
    DutyKind("open breakers", older_than(RECORD_SECONDS, breakers.prune_breakers)),
    DutyKind("missed events", lambda link, reactions: StepDuties(link, reactions).wake_missed, lambda: SWEEP_SECONDS),
    DutyKind("events", page_by_page(_events)),
    DutyKind("old batches", page_by_page(_batches)),
    DutyKind("limits", page_by_page(limits.prune_limit_states)),
    *(DutyKind(name, page_by_page(partial(_orphans, name))) for name in ORPHANS),
)
"""All kinds. Each name is unique."""
