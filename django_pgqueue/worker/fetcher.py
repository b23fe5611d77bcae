"""Claims jobs ahead of the slots, by lanes and cursors; sleeps as long as nothing can be due.

How much: the free slots, plus what the recent speed says will start in the next tenth of a second, bounded in number
and bytes. A job that waits for a slot longer than a second is given back.

Where: each lane from the cursor where its last claim ended, so that the dead index entries of claimed jobs, which a
transaction anywhere may keep from being removed, are not walked again. The cursor of a lane that a claim has exhausted
moves up to the last look, so that jobs of a paused task are not walked again either. What came to lie behind a cursor
(late commits, retries) is found by a claim from the start: due again after ten times what the last one took, so that it
never takes more than a tenth of the time, and always before the worker sleeps.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from django_pgqueue import db
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import AHEAD_BYTES, Claimed, Cursor, Lane

from .bell import Bell
from .claim_counter import ClaimCounter
from .claimed_ids import ClaimedIds
from .claimer import Claimer
from .completer import Completer
from .follow_up import FollowUp
from .giving import give_back
from .hand import Hand
from .lanes import Lanes
from .link import Link
from .pool import Pool
from .pulse import pulse
from .rate import Rate
from .rest import Rest
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

AHEAD_SECONDS: Final = 0.1
WAIT_LIMIT_SECONDS: Final = 1.0
IDLE_PAUSES_SECONDS: Final = (0.005, 0.015, 0.06, 0.24)
"""Looks at 5, 20, 80 and 320 ms after the last job, before a long sleep: enqueue leaves notifications out that
follow another within 5 ms, and counts on these. The processes of one supervisor make them for each other, each step
after up to 2.5 times as long, and 3 ms: see `follow_up`."""
LOCKED_SECONDS: Final = 1.0
"""How long to sleep at most while jobs are due that cannot be had: somebody has them locked."""


class Fetcher(Service):
    """Fills the hand."""

    def __init__(self, link: Link, hand: Hand, pool: Pool, completer: Completer, lanes: Lanes) -> None:
        super().__init__("fetcher")
        self.link = link
        self.hand = hand
        self.pool = pool
        self.completer = completer
        self.lanes = lanes
        self.bell = Bell()
        self.claimer = Claimer(hand, lanes)
        self.polling_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        """How long an idle worker sleeps at most; the listener raises it while notifications arrive."""
        self.vain_looks = 0
        """How many claims from the start have found nothing since one last found something."""
        self.may_claim: Callable[[], bool] = lambda: True
        """Whether the leases hold for long enough."""
        self.events_wait: Callable[[], bool] = lambda: False
        """Whether quick receivers of signals need time to catch up."""
        self.on_cancel_asked: Callable[[], None] = lambda: None
        """Called when a notification has said that somebody wants a running job cancelled."""
        self._rate = Rate(hand)
        self._afresh = False
        self._saw_all = False
        self._idle_steps = 0
        self._announced = False
        self._follow_up = FollowUp(lanes)
        self._full_scan_at = 0.0
        self._full_scan_rest = Rest()
        self._job_bytes = 1.0
        """What a job's arguments take, about: up at once with a claim of large ones, down slowly."""
        self.claims = ClaimCounter()
        self._ids = ClaimedIds(hand, completer)

    def may_sleep(self, seconds: float) -> None:
        """Set how long an idle fetcher may sleep; from any thread."""
        self.polling_seconds = seconds

    def wake(self) -> None:
        """End the current sleep; harmless at any time, from any thread."""
        self.bell.ring()

    def look_soon(self) -> None:
        """Look at once, and more often for a while; from any thread."""
        self._idle_steps = 0
        self._announced = True
        self.wake()

    def look_afresh(self) -> None:
        """Forget lanes and cursors, and count looks in vain from now on; from any thread."""
        self.vain_looks = 0
        self._afresh = True
        self.wake()

    def tick(self) -> float:
        """Give back what waits too long, claim what there is room for."""
        if self._afresh:
            self._afresh, self.vain_looks, self._follow_up.moment = False, 0, None
            self.lanes.forget()
        self._give_back(time.monotonic() - WAIT_LIMIT_SECONDS)
        room = self._room()
        moment, announced = self._follow_up.take_moment(), self._announced
        if room <= 0:
            return self._until_slots_free()
        if not self._claim_announced():
            wait_seconds = self._follow_up.hold_back(moment, announced=announced)
            if wait_seconds is not None:
                return self._until_due(wait_seconds)
            if self.lanes.are_empty_for_sibling(moment):
                self._saw_all = True  # its look saw all ready jobs, whatever cursor they lie behind
                return self._idle_pause()
            if not self._claim(room):
                return self._idle_pause()
        self._idle_steps = 0
        return 0.0

    def at_end(self) -> None:
        """Give back what no slot has taken."""
        self.bell.close()
        try:
            self._give_back(float("inf"))
        except (psycopg.Error, OSError):
            logger.warning("jobs that wait here could not be given back: the supervisor will")

    def _sleep(self, timeout_seconds: float) -> None:
        if self.bell.wait(timeout_seconds):
            self._idle_steps = 0
            self._announced = True
            self._follow_up.moment = time.monotonic()
            words, self.bell.words = self.bell.words, set()
            if db.LOOK_AGAIN in words:
                self.lanes.look_again()
            if db.CANCEL_ASKED in words:
                self.on_cancel_asked()

    # ---------------------------------------------------------------- how much

    def _room(self) -> int:
        if not self.may_claim() or self.completer.is_behind or self.events_wait():
            return 0
        ahead = min(int(self._rate.per_second() * AHEAD_SECONDS), int(AHEAD_BYTES / self._job_bytes))
        waiting = len(self.hand.waiting)
        if waiting > ahead // 2 or self.completer.is_full:
            return 0
        return min(self.hand.free_slots + ahead - waiting, get_settings().CLAIM_LIMIT)

    def _until_slots_free(self) -> float:
        """Sleep until a slot asks for more; look often while jobs wait here or in the completer."""
        if self.hand.waiting or self.completer.is_full or self.events_wait():
            return 0.004
        return 1.0 if self.may_claim() and not self.completer.is_behind else 0.1

    def _give_back(self, claimed_before: float) -> None:
        taken = self.hand.take_waiting(claimed_before)
        if taken:
            with self.link.use() as connection:
                give_back(connection, taken, self.completer.events)

    # ---------------------------------------------------------------- where

    def _claim_announced(self) -> bool:
        """Take the job that a notification woke this worker for, if it is in a lane that had jobs lately.

        Before the look at the lanes, which takes 0.3 ms of the 2 from a commit to the start of its job. One job only:
        another's lane may come first.
        """
        announced, self._announced = self._announced, False
        lately = self.lanes.lately() if announced and self.lanes.last_was_empty else {}
        if not lately:
            return False
        with self.link.use() as connection:
            claimed = self._take(connection, lately, 1)
        if claimed:
            self.vain_looks = 0
        pulse.answered("claim")
        return bool(claimed)

    def _claim(self, room: int) -> Sequence[Claimed]:
        now = time.monotonic()
        from_start = now >= self._full_scan_at
        claimed = self._claim_from(room, from_start=from_start)
        if len(claimed) < room and not from_start and time.monotonic() >= self._full_scan_at:
            room = min(room - len(claimed), self._room())  # there may be none: what came was fewer, but large
            if room > 0:
                claimed = [*claimed, *self._claim_from(room, from_start=True)]
                from_start = True
        self.vain_looks = 0 if claimed else self.vain_looks + from_start
        self._saw_all = from_start
        return claimed

    def _claim_from(self, room: int, *, from_start: bool) -> Sequence[Claimed]:
        began = time.monotonic()
        with self.link.use() as connection:
            if self.link.connected_at >= began:
                self.lanes.forget()
            cursors = self.lanes.ordered(connection, from_start=from_start)
            if not cursors:
                pulse.answered("claim")
                return ()
            claimed = self._take(connection, cursors, room)
        pulse.answered("claim")
        if from_start:
            self._full_scan_at = time.monotonic() + self._full_scan_rest.after(time.monotonic() - began)
        return claimed

    def _take(self, connection: db.EngineConnection, cursors: dict[Lane, Cursor], room: int) -> list[Claimed]:
        with self.claims.claim_under_way():
            return self._claim_into_hand(connection, cursors, room)

    def _claim_into_hand(
        self, connection: db.EngineConnection, cursors: dict[Lane, Cursor], room: int
    ) -> list[Claimed]:
        claimed = self.claimer.claim(connection, cursors, room)
        if claimed:
            size = sum(len(job.arguments) for job in claimed) / len(claimed) + 1
            self._job_bytes = max(size, self._job_bytes + (size - self._job_bytes) / 4)
            refused = self._ids.in_use(claimed)
            taken = [job for job in claimed if job not in refused] if refused else claimed
            self.hand.add(taken)
            self.pool.submit(taken)
            give_back(connection, refused, self.completer.events)  # to be claimed anew, under other ids
        return claimed

    # ---------------------------------------------------------------- when

    def _idle_pause(self) -> float:
        if self._idle_steps < len(IDLE_PAUSES_SECONDS):
            self._idle_steps += 1
            return self._until_due(self._follow_up.after(IDLE_PAUSES_SECONDS[self._idle_steps - 1]))
        if not self._saw_all:  # something may lie behind a cursor: no long sleep before a claim from the start
            return self._until_due(min(self.polling_seconds, max(0.001, self._full_scan_at - time.monotonic())))
        return self._until_due(self.polling_seconds * random.uniform(0.8, 1))  # noqa: S311 -- spreads load

    def _until_due(self, pause_seconds: float) -> float:
        now = time.monotonic()
        return min(pause_seconds, max(0.001, self.lanes.next_due_at(now + LOCKED_SECONDS) - now))
