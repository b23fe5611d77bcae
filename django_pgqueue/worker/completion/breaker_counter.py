"""Count the ended attempts of limit keys that have a circuit breaker, and open and close these breakers.

The counter is an observer of the transitions (see `reactions`), and successes are passed to it in batches, as to
`AttemptCounter`. The completer writes the counts on its connection, about once a second and when the process stops. It
writes the end of a probe before it reports that the key has a free slot. Otherwise another job of the key would start
before the probe has decided. If no limit has a breaker, each call returns at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, TypeVar

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import is_outage, message_without_detail
from django_pgqueue.db.statements import repeat_if_stale
from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.declared.limits import logged, name_of
from django_pgqueue.display import visible
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import breakers, limits
from django_pgqueue.lifecycle.breakers import Ended, Opened, Suspect
from django_pgqueue.reactions import JobTransition, TimedAttempt
from django_pgqueue.tasks import registry

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_SECONDS: Final = 1.0
"""How often a process writes its counts. If it is killed, the counts since then are lost."""
RETRY_SECONDS: Final = 0.02
"""When to try again if another session is just claiming jobs of the key."""
PROBE_SECONDS: Final = 0.02
"""How long `write()` waits for the lock of a key whose probe has ended. Usually the claim of this process's own fetcher
has it for some milliseconds. Without the wait, the fetcher would start the next job before the probe has decided."""
PROBE_PAUSE_SECONDS: Final = 0.002
LOCKED_SECONDS: Final = 1.0
"""When to try again if an operator's transaction has locked the pause of the key."""
FAILURES: Final = frozenset({Ending.FAILED, Ending.CRASHED})
NEVER: Final = float("inf")


class BreakerCounter:
    """The counts of one process since it last wrote them.

    Args:
        wake: Called when an attempt of another process was counted, to wake the completer. It does not write that
            attempt's end, so otherwise it would sleep on.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._ended: dict[str, Ended] = {}
        self._undecided: dict[str, Ended] = {}
        """Attempts that were added to the counts, but about which `_decide()` has not decided, by limit key."""
        self._written_at = 0.0
        self._due_at = NEVER

    def __bool__(self) -> bool:
        """Return whether there is something to write."""
        return self._due_at < NEVER

    @property
    def due_in_seconds(self) -> float:
        """Seconds until `write()` should be called, or infinity."""
        return max(0.0, self._due_at - time.monotonic())

    def observe(self, transition: JobTransition, database: str) -> None:
        """Count an attempt that failed."""
        attempt = transition.attempt
        limit_key = transition.limit_key if attempt is None else attempt.claimed.limit_key
        if transition.ending not in FAILURES or limit_key is None:
            return
        breaker = breaker_of(limit_key)
        if breaker is None or not breaker.counts(transition.exception, transition.exception_class):
            return
        # Whether a crashed execution was a probe is unknown here. The database ignores the ids of others.
        is_probe = attempt is None or attempt.claimed.is_probe
        execution_id = transition.details["execution_id"]
        self._add(limit_key, Ended(failed=1, failed_probe_id=execution_id if is_probe else 0))
        if attempt is None:
            self._wake()

    def count_successes(self, attempts: Sequence[TimedAttempt]) -> None:
        """Count attempts that succeeded."""
        if not registry.breakers():
            return
        for attempt in attempts:
            claimed = attempt.claimed
            if claimed.limit_key is not None and breaker_of(claimed.limit_key) is not None:
                probe_id = claimed.execution_id if claimed.is_probe else 0
                self._add(claimed.limit_key, Ended(succeeded=1, succeeded_probe_id=probe_id))

    def _add(self, limit_key: str, more: Ended) -> None:
        is_probe = _has_probe(more)
        with self._lock:
            known = self._ended.get(limit_key)
            self._ended[limit_key] = _sum(known, more)
            self._due_at = min(self._due_at, 0.0 if is_probe else self._written_at + INTERVAL_SECONDS)

    def write(self, connection: EngineConnection) -> None:
        """Write the counts if they are due, and open and close breakers.

        After a lost connection the counts are kept, and the next call writes them. If a table is locked, they are kept
        for a later call. If the database refuses them, they are dropped. Completions must not wait for them.
        """
        if self.due_in_seconds:
            return
        with self._lock:
            ended, self._ended = self._ended, {}
            self._written_at, self._due_at = time.monotonic(), NEVER
        try:
            self._write(connection, ended)
        except (psycopg.Error, OSError) as error:
            if is_outage(error):
                with self._lock:
                    self._due_at = 0.0
                raise
            self._undecided = {}
            logger.warning(
                "the counts of circuit breakers could not be written (%s)",
                message_without_detail(error),
                extra=event("breaker_counts_refused", count=len(ended)),
            )

    def write_last(self, connection: EngineConnection) -> None:
        """Write the counts before the process ends, due or not. If a key is locked, nothing is decided about it."""
        with self._lock:
            if self:
                self._due_at = 0.0
        self.write(connection)

    def _write(self, connection: EngineConnection, ended: Mapping[str, Ended]) -> None:
        if ended:
            try:
                uncounted = breakers.add_counts(connection, ended)
            except (psycopg.OperationalError, OSError):
                for limit_key, each in ended.items():
                    self._add(limit_key, each)
                raise
            for limit_key in uncounted:
                self._add(limit_key, ended[limit_key])
        self._undecided = {key: _sum(self._undecided.get(key), ended.get(key)) for key in {*self._undecided, *ended}}
        try:
            left, retry_seconds = self._decide_probes(connection, self._undecided), RETRY_SECONDS
        except psycopg.errors.LockNotAvailable:
            left, retry_seconds = set(self._undecided), LOCKED_SECONDS
        self._undecided = {key: self._undecided[key] for key in left}
        if left:
            with self._lock:
                self._due_at = min(self._due_at, time.monotonic() + retry_seconds)

    def _decide_probes(self, connection: EngineConnection, ended: Mapping[str, Ended]) -> set[str]:
        """Call `_decide()`, and repeat it for a moment while the keys of probes are locked."""
        left = repeat_if_stale(lambda: self._decide(connection, ended))
        deadline = time.monotonic() + PROBE_SECONDS
        while any(_has_probe(ended[key]) for key in left) and time.monotonic() < deadline:
            time.sleep(PROBE_PAUSE_SECONDS)
            left = self._decide(connection, _only(ended, left))
        return left

    def _decide(self, connection: EngineConnection, ended: Mapping[str, Ended]) -> set[str]:
        """Open and close the breakers of these keys. Return the keys that are left to a later call.

        Another session had locked these, or time was up.

        Raises `LockNotAvailable` if another session has locked the pause of a key.
        """
        probed = {key: each.succeeded_probe_id for key, each in ended.items() if each.succeeded_probe_id}
        failed = {key: breaker for key, each in ended.items() if each.failed and (breaker := breaker_of(key))}
        failing = set(breakers.failing_keys(connection, failed)) if failed else set()
        suspects = {
            key: Suspect(breaker, ended[key].failed_probe_id)
            for key, breaker in failed.items()
            if key not in probed and (key in failing or ended[key].failed_probe_id)
        }
        keys = {*probed, *suspects}
        if not keys:
            return keys
        with connection.transaction():
            breakers.limit_waits(connection)
            locked = set(limits.lock_keys(connection, sorted(keys)))
            closed, unclosed = breakers.close_breakers(connection, _only(probed, locked))
            opened, unopened = breakers.open_breakers(connection, _only(suspects, locked))
        for limit_key in closed:
            _log_closed(limit_key)
        for each in opened:
            _log_opened(each, suspects[each.limit_key].breaker)
        return keys - locked | {*unclosed, *unopened}


def breaker_of(limit_key: str) -> Breaker | None:
    """Return the circuit breaker of a limit key, or None if this process knows none."""
    limit = registry.limits().get(name_of(limit_key))
    return None if limit is None else limit.breaker


Value = TypeVar("Value")


def _only(given: Mapping[str, Value], keys: Container[str]) -> dict[str, Value]:
    return {key: value for key, value in given.items() if key in keys}


def _has_probe(ended: Ended) -> bool:
    return bool(ended.failed_probe_id or ended.succeeded_probe_id)


def _sum(one: Ended | None, other: Ended | None) -> Ended:
    one, other = one or Ended(), other or Ended()
    return Ended(
        one.succeeded + other.succeeded,
        one.failed + other.failed,
        max(one.succeeded_probe_id, other.succeeded_probe_id),
        max(one.failed_probe_id, other.failed_probe_id),
    )


def _log_closed(limit_key: str) -> None:
    limit_key = visible(logged(limit_key))
    extra = event("breaker_closed", limit_key=limit_key)
    logger.info("the circuit breaker of limit key %s is closed: a job succeeded", limit_key, extra=extra)


def _log_opened(opened: Opened, breaker: Breaker) -> None:
    limit_key = visible(logged(opened.limit_key))
    why = "the job that probed it failed" if opened.is_again else f"{opened.failed} of {opened.ended} attempts failed"
    logger.warning(
        "the circuit breaker of limit key %s is open for %g s: %s",
        limit_key,
        breaker.pause,
        why,
        extra=event("breaker_opened", limit_key=limit_key, pause_seconds=breaker.pause, reason=why),
    )
