"""Claim jobs for the machines that wait, in one thread for each database: the long polls of this process.

`views` adds a `WaitingClaim` and awaits its future. The thread sleeps until a machine comes, a notification arrives,
or the next job is due. Then it claims jobs for the first machine of each scope, then for the second, until a claim
finds no job. So after a notification there is one claim more than machines that get a job, however many wait. All
machines share one poll, and one connection that claims and listens. A machine that waits costs a future, and no thread.

Concurrency: the event loops only append to deques and call `wake()`. The thread alone uses the groups. It hands jobs
over by `call_soon_threadsafe()`. If the machine has gone meanwhile, the event loop hands the jobs back, and the thread
releases them without counting the attempt.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from django_pgqueue.db.notifications import PAUSES_CHANGED
from django_pgqueue.lifecycle import remote_tokens, workers
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.claiming.waking.fetcher_sleep import NotificationWaker
from django_pgqueue.worker.claiming.waking.listener import Listener, listening_connections
from django_pgqueue.worker.completion.attempt_counter import INTERVAL_SECONDS
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_connections import Preference

from .claim_group import ClaimGroup, WaitingClaim
from .problems import Problem, too_many, unauthorized
from .scope import Scope

if TYPE_CHECKING:
    from django_pgqueue.db.engine_connection import EngineConnection
    from django_pgqueue.lifecycle.types import Claimed
    from django_pgqueue.reactions import Reactions
    from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
    from django_pgqueue.worker.completion.breaker_counter import BreakerCounter

logger = logging.getLogger("django_pgqueue.worker")

ROLES: Final = ("remote-claims", "remote-claims")
KEEP_SECONDS: Final = 10.0
"""How long the thread and its connections stay after the last machine has left."""
KEEP_GROUP_SECONDS: Final = 60.0
"""How long the cursors of a scope are kept after its last claim."""
SCOPES_OF_TOKEN: Final = 20
"""Scopes that a token may use in a process at a time. The lanes of each are scanned after each notification."""
TOO_MANY_SCOPES: Final = (
    f"the token has asked for more than {SCOPES_OF_TOKEN} different sets of queues and tasks within a minute"
)
FRESH_SECONDS: Final = 0.1
"""How long after its request a token is not read again. After that it is read before each claim."""
LONGEST_SLEEP_SECONDS: Final = 5.0
NEVER: Final = float("-inf")


class ClaimThread(Service):
    """The thread that claims.

    Args:
        alias: The database of the jobs.
        reactions: How this process reacts to transitions.
        counter: Counts ended attempts; this thread writes the counts. None: `PGQUEUE["STATS"]` is off.
        breakers: The same for the attempts of limits with a circuit breaker.
        may_end: Called when nothing is to do. Returns whether the thread may end; it gets no more claims then.
    """

    def __init__(
        self,
        alias: str,
        reactions: Reactions,
        counter: AttemptCounter | None,
        breakers: BreakerCounter,
        may_end: Callable[[ClaimThread], bool],
    ) -> None:
        super().__init__("remote-claims")
        self._reactions = reactions
        self._counter = counter
        self._breakers = breakers
        self._may_end = may_end
        self._counts_at = time.monotonic() + INTERVAL_SECONDS
        self._waker = NotificationWaker(on_change=self._wake_listener)
        self._polling_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        self._new: deque[WaitingClaim] = deque()
        self._to_release: deque[Claimed] = deque()
        self._ended_keys: deque[str] = deque()
        self._groups: dict[Scope, ClaimGroup] = {}
        self._used_at = time.monotonic()
        self._expects_jobs = False
        self._connections, self._listening = listening_connections(alias, ROLES, ROLES[0], self._waker)
        self._claiming = self._connections.share(Preference.FIRST)
        self._listener: Listener | None = None
        if get_settings().NOTIFY:
            self._listener = Listener(self._listening, self._waker, self._set_listens)

    # ---------------------------------------------------------------- from other threads

    def add(self, waiting: WaitingClaim) -> None:
        """Claim for a machine, now or as soon as there are jobs."""
        self._new.append(waiting)
        self.wake()

    def release_soon(self, jobs: Iterable[Claimed]) -> None:
        """Release claimed jobs, because their machine has gone."""
        self._to_release.extend(jobs)
        self.wake()

    def expect_jobs(self) -> None:
        """Try again soon, because jobs have become ready in this process."""
        self._expects_jobs = True
        self.wake()

    def note_ended(self, limit_keys: Iterable[str]) -> None:
        """Note limit keys of which jobs have ended."""
        self._ended_keys.extend(limit_keys)
        self.wake()

    def wake(self) -> None:
        """End the current sleep."""
        self._waker.wake()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        has_waiting = any(group.waiting for group in list(self._groups.values()))
        return not (has_waiting or self._new or self._to_release or self._counter or self._breakers)

    def _wake_listener(self) -> None:
        if self._listener is not None:
            self._listener.wake()

    def _set_listens(self, *, listens: bool) -> None:
        settings = get_settings()
        self._polling_seconds = settings.POLL_INTERVAL if listens else settings.POLL_INTERVAL_WITHOUT_LISTEN
        for group in list(self._groups.values()):
            group.may_sleep(self._polling_seconds)
        self.wake()

    # ---------------------------------------------------------------- in the thread

    def start(self) -> None:
        """Start the thread, and the one that keeps the listening connection."""
        super().start()
        if self._listener is not None:
            self._listener.start()

    def tick(self) -> float:
        """Serve the machines that wait. Return the seconds until there is more to do."""
        self._take_new()
        if self._to_release or self._must_write() or any(group.waiting for group in self._groups.values()):
            self._used_at = time.monotonic()
            with self._claiming.use() as connection:
                for group in self._groups.values():
                    group.lanes.note_connection(self._claiming.connected_at)
                self._work(connection)
        self._answer_late()
        self._listening.close_idle()
        if self.is_idle and time.monotonic() - self._used_at > KEEP_SECONDS and self._may_end(self):
            self.stop()
        return self._seconds_until_next()

    def at_end(self) -> None:
        """Write what is left, and close the connections. Machines that still wait get no jobs."""
        if self._listener is not None:
            self._listener.stop()
        self._take_new()
        for group in self._groups.values():
            while group.waiting:
                self._answer(group.waiting.popleft(), [])
        try:
            if not self.is_idle:
                with self._claiming.use() as connection:
                    self._release_handed_back(connection)
                    self._write_counts(connection)
                    self._breakers.write_last(connection)
        finally:
            if self._listener is not None:
                self._listener.join(5.0)
            self._listening.close()
            self._connections.close()
            self._waker.close()

    def _sleep(self, timeout_seconds: float) -> None:
        if payloads := self._waker.wait_for_notifications(timeout_seconds):
            for group in self._groups.values():
                if PAUSES_CHANGED in payloads:
                    group.lanes.scan_again()
                group.expect_jobs()

    def _take_new(self) -> None:
        while self._new:
            waiting = self._new.popleft()
            if self._is_one_too_many(waiting):
                self._answer(waiting, too_many(TOO_MANY_SCOPES, int(KEEP_GROUP_SECONDS)))
                continue
            group = self._groups.get(waiting.scope)
            if group is None:
                group = ClaimGroup(waiting.scope, self._reactions, self._polling_seconds)
                self._groups[waiting.scope] = group
            group.used_by[waiting.digest] = time.monotonic()
            group.waiting.append(waiting)
            group.try_at = 0.0

    def _is_one_too_many(self, waiting: WaitingClaim) -> bool:
        """Return whether a token already uses as many other scopes as it may. Each token has its own number."""
        used_since = time.monotonic() - KEEP_GROUP_SECONDS
        scopes = [
            scope for scope, group in self._groups.items() if group.used_by.get(waiting.digest, NEVER) > used_since
        ]
        return len(scopes) >= SCOPES_OF_TOKEN and waiting.scope not in scopes

    def _work(self, connection: EngineConnection) -> None:
        self._release_handed_back(connection)
        ended = [self._ended_keys.popleft() for _ in range(len(self._ended_keys))]
        expects_jobs, self._expects_jobs = self._expects_jobs, False
        for group in self._groups.values():
            if ended:
                group.lanes.limited.note_ended(ended)
            if ended or expects_jobs:
                group.expect_jobs()
            self._serve(connection, group)
            self.progressed()
        if self._must_write():
            self._write_counts(connection)

    def _serve(self, connection: EngineConnection, group: ClaimGroup) -> None:
        """Claim for the machines of a group in turn, until a claim finds nothing."""
        while group.waiting and time.monotonic() >= group.try_at:
            waiting = group.waiting[0]
            if not self._is_there(connection, group, waiting):
                continue
            claimed = group.claim(connection, waiting)
            if claimed:
                group.waiting.popleft()
                self._answer(waiting, claimed)

    def _is_there(self, connection: EngineConnection, group: ClaimGroup, waiting: WaitingClaim) -> bool:
        """Return whether a machine still waits, its token is still valid and its worker has not stopped.

        Otherwise remove it. A job that it got after its worker has stopped would run nowhere until its lease ends.
        """
        if waiting.future.done():
            group.waiting.popleft()
            return False
        if time.monotonic() - waiting.began_at < FRESH_SECONDS:
            return True
        answer: list[Claimed] | Problem = []
        if remote_tokens.use_remote_token(connection, waiting.digest) is None:
            answer = unauthorized()
        elif not workers.has_stopped(connection, waiting.worker_id):
            return True
        group.waiting.popleft()
        self._answer(waiting, answer)
        return False

    def _answer_late(self) -> None:
        """Answer the machines whose time is over, and forget the groups that nobody uses."""
        now = time.monotonic()
        for scope, group in list(self._groups.items()):
            late = [each for each in group.waiting if each.deadline <= now or each.future.done()]
            for waiting in late:
                group.waiting.remove(waiting)
                self._answer(waiting, [])
            if not group.waiting and now - group.used_at > KEEP_GROUP_SECONDS:
                del self._groups[scope]

    def _answer(self, waiting: WaitingClaim, answer: list[Claimed] | Problem) -> None:
        def hand_over() -> None:
            if waiting.future.done():
                if isinstance(answer, list):
                    self.release_soon(answer)
            elif isinstance(answer, Problem):
                waiting.future.set_exception(answer)
            else:
                waiting.future.set_result(answer)

        try:
            waiting.loop.call_soon_threadsafe(hand_over)
        except RuntimeError:  # the event loop is closed
            if isinstance(answer, list):
                self._to_release.extend(answer)

    def _release_handed_back(self, connection: EngineConnection) -> None:
        jobs = [self._to_release.popleft() for _ in range(len(self._to_release))]
        release_executions(connection, jobs, self._reactions)

    def _must_write(self) -> bool:
        return bool(self._counter and time.monotonic() >= self._counts_at) or not self._breakers.due_in_seconds

    def _write_counts(self, connection: EngineConnection) -> None:
        self._breakers.write(connection)
        if self._counter is not None:
            self._counts_at = time.monotonic() + self._counter.due_in_seconds
            self._counter.write(connection)

    def _seconds_until_next(self) -> float:
        now = time.monotonic()
        instants = [now + min(LONGEST_SLEEP_SECONDS, self._breakers.due_in_seconds)]
        for group in self._groups.values():
            if group.waiting:
                instants.append(max(group.try_at, now))
                instants.append(min(waiting.deadline for waiting in group.waiting))
        return max(0.0, min(instants) - now)
