"""Run the statements of requests in a few threads, each with a connection to one database.

`views` calls `engine_of()`. An engine also has the thread that claims, and the reactions to transitions. It starts its
threads when they are needed, so a process that serves no remote worker has none. A forked process starts without the
engines of its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ends.end_checks import follow
from django_pgqueue.ground.posix import after_fork_in_child
from django_pgqueue.reactions import AnyWaiters, Reactions
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
from django_pgqueue.worker.completion.breaker_counter import BreakerCounter
from django_pgqueue.worker.execution.job_events import Events
from django_pgqueue.worker.runtime.connection import Link

from .claim_group import WaitingClaim
from .waiting_claims import ClaimThread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_pgqueue.lifecycle.types import Claimed

P = ParamSpec("P")
R = TypeVar("R")

THREADS: Final = 3
"""Threads of a process that run statements for requests, each with one connection. While machines wait, one more
connection claims and listens, and for half a minute another one tests the notifications."""


class Engine:
    """The threads and connections of this process for one database."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._lock = threading.Lock()
        self._local = threading.local()
        self._links: list[Link] = []
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pgqueue-remote")
        self._claims: ClaimThread | None = None
        self._counter = AttemptCounter() if get_settings().STATS else None
        self._breakers = BreakerCounter(lambda: self._claim_thread().wake())
        self.reactions = Reactions(
            [Events()],
            AnyWaiters(),
            on_ready=self._on_ready,
            follow=follow,
            counters=[self._breakers, *([] if self._counter is None else [self._counter])],
        )

    async def run(
        self, function: Callable[Concatenate[EngineConnection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a function with a connection as its first argument, in one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, function, args, kwargs)

    def claim(self, waiting: WaitingClaim) -> None:
        """Claim jobs for a machine, now or as soon as there are some."""
        with self._lock:
            self._running_claim_thread().add(waiting)

    def release_soon(self, jobs: Iterable[Claimed]) -> None:
        """Release claimed jobs, because their machine has gone."""
        with self._lock:
            self._running_claim_thread().release_soon(jobs)

    def note_ended(self, limit_keys: Iterable[str]) -> None:
        """Note limit keys of which jobs have ended, and have the counts of ended attempts written."""
        self._claim_thread().note_ended(limit_keys)

    def close(self) -> None:
        """End the threads, and close the connections."""
        with self._lock:
            claims, self._claims = self._claims, None
        if claims is not None:
            claims.stop()
            claims.join(5.0)
        self._threads.shutdown()
        for link in self._links:
            link.close()

    def _call(self, function: Callable[..., R], args: Sequence[Any], kwargs: dict[str, Any]) -> R:
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = Link(self.alias, "remote")
            self._links.append(link)
        with link.use() as connection:
            return function(connection, *args, **kwargs)

    def _claim_thread(self) -> ClaimThread:
        with self._lock:
            return self._running_claim_thread()

    def _running_claim_thread(self) -> ClaimThread:
        """Return the claim thread. Start it if it does not run. The caller holds `_lock`."""
        if self._claims is None:
            self._claims = ClaimThread(self.alias, self.reactions, self._counter, self._breakers, self._may_end)
            self._claims.start()
        return self._claims

    def _may_end(self, claims: ClaimThread) -> bool:
        """Forget an idle claim thread, so that the next claim starts another one. Called in that thread."""
        with self._lock:
            if not claims.is_idle:
                return False
            self._claims = None
            return True

    def _on_ready(self) -> None:
        claims = self._claims
        if claims is not None:
            claims.expect_jobs()


_engines: dict[str, Engine] = {}
_lock = threading.Lock()
_inherited: list[dict[str, Engine]] = []
"""The parent's engines after a fork. Collecting one would close its connections and end the parent's sessions."""


def engine_of(alias: str) -> Engine:
    """Return this process's engine for a database."""
    with _lock:
        if alias not in _engines:
            _engines[alias] = Engine(alias)
        return _engines[alias]


def close_engines() -> None:
    """Close every engine of this process. Called at its exit."""
    with _lock:
        for engine in _engines.values():
            engine.close()
        _engines.clear()


def _forget_in_child() -> None:
    global _engines, _lock
    _inherited.append(_engines)
    _engines, _lock = {}, threading.Lock()


after_fork_in_child(_forget_in_child)
atexit.register(close_engines)
