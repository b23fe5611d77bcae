"""The child's side of the leases: which of what it holds is still its own, and what to do about the rest.

The supervisor beats (see `supervisor`); here the answer is drawn, once a beat:

* **lost**: held since before the question was sent, and not open: somebody else closed it. Its job is interrupted.
* **unknown**: open and not held, in two answers, the second of them to a question that was sent after all claims had
  ended that were under way at the first: the reply of a claim was lost. It is given back.
* **asked to cancel**: told to stop, or, if it has not started, given back, which ends it. A notification says when to
  look for those; where none arrive, once a second.
* The leases have not been extended for four fifths of their time: interrupt everything, in time; at their end, exit.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import ExecutionKey, Held

from .board import Board, Farewell
from .claim_counter import ClaimCounter
from .completer import Completer
from .events import IN_THIS_THREAD, Events
from .giving import give_back
from .hand import Hand
from .link import Link
from .pool import Pool
from .service import Service
from .trouble import trouble

logger = logging.getLogger("django_pgqueue.worker")

LOOK_SECONDS: Final = 1.0
"""Between two looks for jobs that are to be cancelled, where no word of them arrives."""
IN_TIME: Final = 0.2
"""The part of the lease that is left when a worker that cannot extend stops its own work."""


class Watch(Service):
    """Compares what this process holds with what the database says is open."""

    def __init__(
        self,
        link: Link,
        hand: Hand,
        completer: Completer,
        pool: Pool,
        board: Board,
        worker_id: int,
        claims: ClaimCounter,
        events: Events = IN_THIS_THREAD,
    ) -> None:
        super().__init__("heartbeat")
        self.events = events
        self.link = link
        self.hand = hand
        self.completer = completer
        self.pool = pool
        self.hears = False
        """Whether notifications arrive, and so the word that somebody wants a job cancelled."""
        self.board = board
        self.worker_id = worker_id
        self.claims = claims
        self._unknown: dict[ExecutionKey, int] = {}
        """What is open and not held, and how many claims had begun when that was first seen."""
        self._compare_at = 0.0
        self._asked = False

    def look_for_requests(self) -> None:
        """Look which jobs are to be cancelled; from any thread."""
        self._asked = True
        self.wake()

    def tick(self) -> float:
        """Ask what is open, if anything is: by this process's own account, or by the last beat's answer.

        The beat extends whatever is open under this worker's id, so what nobody holds would stay open for ever.
        """
        now = time.monotonic()
        if now >= self._compare_at:
            if len(self.hand) or len(self.completer) or self.board.open_executions or self._unknown:
                self._compare()
            self._compare_at = now + get_settings().beat_seconds
            self._asked = self._asked or bool(len(self.hand))  # a word may have been lost
        if (self._asked or not self.hears) and len(self.hand):
            self._look_for_requests_now()
        left_seconds = self._compare_at - time.monotonic()
        return left_seconds if self.hears and not self._asked else min(left_seconds, LOOK_SECONDS)

    def _compare(self) -> None:
        asked_at, claims_ended = time.monotonic(), self.claims.ended
        held = self.hand.keys_before(asked_at)
        with self.link.use() as connection:
            is_open = {one.key: one for one in lifecycle.open_executions(connection, self.worker_id)}
        # Still held, that is: what ended meanwhile is closed by its own finish.
        gone = (held & self.hand.keys_before(float("inf"))) - set(is_open)
        lost = {key.execution_id for key in gone} - self.completer.ids()
        if lost:
            logger.warning("executions %s are no longer this worker's: interrupted", sorted(lost))
            self.pool.interrupt(lost)
        self._give_back_unknown(is_open, claims_ended)

    def _look_for_requests_now(self) -> None:
        self._asked, look_again = False, True  # before the look: what is asked while it lasts needs another
        try:
            look_again = self._obey_requests()
        finally:
            if look_again:
                self._asked = True

    def _obey_requests(self) -> bool:
        """Stop what is to be cancelled; say whether to look again soon.

        For what is not here: a claim's answer may be under way, or the job is just being started.
        """
        first_id = min(self.hand.known_before(float("inf")), default=0)  # not over all that closed since: 30 ms
        with self.link.use() as connection:
            requests = lifecycle.cancel_requests(connection, [self.worker_id], first_id=first_id)
            asked = {execution_id for _, execution_id in requests}
            popped = [self.hand.waiting.pop(execution_id, None) for execution_id in asked]
            # Which ends them as cancelled.
            give_back(connection, [waiting.claimed for waiting in popped if waiting is not None], self.events)
        told = self.pool.ask_to_cancel(asked)
        return bool(asked - told - self.completer.ids())

    def _give_back_unknown(self, is_open: Mapping[ExecutionKey, Held], claims_ended: int) -> None:
        """Release what is open and not held, once no claim can have it any more.

        `claims_ended`: how many claims had ended when it was asked what is open. An answer of a claim may take longer
        than a beat. To release its jobs meanwhile would let another worker start them, and then this one does too.
        """
        written_soon = self.completer.ids()
        unknown = {
            key for key in set(is_open) - self.hand.keys_before(float("inf")) if key.execution_id not in written_soon
        }
        claims_begun = self.claims.begun  # read after the answer: it counts the claim that has opened them
        stray = [is_open[key] for key in sorted(unknown) if self._unknown.get(key, float("inf")) <= claims_ended]
        # Kept until it is open no more: a row that is locked just now is tried again.
        self._unknown = {key: self._unknown.get(key, claims_begun) for key in unknown}
        if stray:
            ids = [one.execution_id for one in stray]
            logger.warning("executions %s are open, and not held here: given back", ids)
            with self.link.use() as connection:
                give_back(connection, stray, self.events)


class LeaseGuard(Service):
    """Stops this process's work before its leases end, and the process itself when they do.

    Without a database nobody can tell whether others think this worker lost, so it must act as if they did.
    """

    def __init__(self, board: Board, hand: Hand, interrupt: Callable[[set[int]], None]) -> None:
        super().__init__("lease-guard")
        self.board = board
        self.hand = hand
        self.interrupt = interrupt
        self._told = False
        self._interrupted = False

    def leases_hold(self) -> bool:
        """Whether there is time enough on the leases to claim more: what is claimed must not be interrupted at once."""
        return self.board.lease_left_seconds > IN_TIME * get_settings().LEASE

    def tick(self) -> float:
        """Look how long the leases hold; show the supervisor that this process lives."""
        self.board.show_life()
        left_seconds = self.board.lease_left_seconds
        margin_seconds = IN_TIME * get_settings().LEASE
        if not len(self.hand):
            return 1.0
        if left_seconds > margin_seconds:
            self._told = self._interrupted = False
            return max(0.01, min(1.0, left_seconds - margin_seconds))
        if not self._told and trouble.may_speak():
            self._told = True
            logger.error("the leases end in %.1f s and cannot be extended: all jobs are interrupted", left_seconds)
        if not self._interrupted:
            self._interrupted = True
            self.hand.take_waiting()  # open, and held by nobody now: given back when the database answers again
            self.interrupt(self.hand.known_before(float("inf")))
        if left_seconds <= 0:
            self.board.say_farewell(Farewell.LEASE_LOST)  # the supervisor logs it: a handler could delay the end
            os._exit(1)
        return 0.05
