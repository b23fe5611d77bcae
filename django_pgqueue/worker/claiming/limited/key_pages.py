"""Walk over the jobs with a limit key or a chunk key, and keep which of their lanes have something to claim.

Called by `Lanes`, in the fetcher's thread. The walk reads keys, not only lanes: a page has up to `PAGE_KEYS` keys, each
with the time at which its first job is due. Keys of limits go to `LimitedLanes`, which says what a lane has to visit. A
chunk key is a lane of its own, and is due when its chunk is: when there are enough jobs, or when the first one has
waited long enough. Lanes of both kinds take turns with each other and with plain lanes.

A process without tasks that have a limit or a chunk runs no statement for this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import name_of
from django_pgqueue.lifecycle import limits
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.lifecycle.limits import FoundKey
from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming.many_lanes.lane_walk import LANES_PER_CLAIM, LaneWalk
from django_pgqueue.worker.claiming.next_scan import Pacing
from django_pgqueue.worker.slots.queue_slots import QueueSlots

from .limited_lanes import LimitedLanes

PAGE_KEYS: Final = 300
"""How many keys one scan reads. A scan of so many takes 2 to 6 ms."""
NEWEST_JOBS: Final = 300
"""Among how many of the newest jobs the one is searched that a notification has announced."""
UNSURE_LANES: Final = 20
"""How many lanes a claim visits whose last visit has claimed nothing."""
STEP_SECONDS: Final = 0.01
"""The sleep after visits that found no job. With a second, 1,000 keys without a free slot delayed the jobs of the next
key by 6 s."""
LOCKED_SECONDS: Final = 0.02
"""The rest of a chunk's lane whose jobs another worker was just claiming."""


def rule_of(chunk_key: str) -> ChunkRule:
    """Return when the chunks of a registered task are due."""
    task = registry.chunk_keys()[chunk_key]
    return ChunkRule(task.chunk or 1, task.chunk_wait_seconds)


class KeyPages(LaneWalk):
    """The lanes of limited jobs and of chunks of one fetcher.

    `_others` are the lanes of limited jobs whose last visit has claimed nothing.
    """

    def __init__(
        self,
        queue_names: Collection[str],
        clock: Callable[[], float],
        queue_slots: QueueSlots | None = None,
        chunk_rule: Callable[[str], ChunkRule] = rule_of,
    ) -> None:
        self.chunk_rule = chunk_rule
        self.limited = LimitedLanes(clock)
        self._rest = Pacing()
        super().__init__(set(queue_names), clock, queue_slots)

    def forget(self) -> None:
        """Start afresh: the next scan begins with the first key."""
        super().forget()
        self.limited.forget()
        self._later = self.limited.later
        self._waiting = self.limited.waiting
        self._rules: dict[str, ChunkRule] = {}
        """When the chunks of each task are due that is not paused."""
        self._has_found = False
        """Whether the last page has found keys to visit, and a claim has found a job since."""
        self._page_at = self._scanned_at = float("-inf")
        self._turn = 0

    def is_answer(self, scanned_at: float) -> bool:
        """Return whether a page that was read at this time or later shows to siblings when the next job is due."""
        has_read = not self.is_active and self._scanned_at >= scanned_at
        return has_read and not self._due and self.limited.is_idle

    # ---------------------------------------------------------------- reading

    def scan_again(self) -> None:
        """Read again, and let no key wait, because the set of claimable jobs has changed."""
        for lane in self.limited.wake():
            self._place(lane, 0)
        self.expect_jobs()
        self._page_at = self._scanned_at = float("-inf")

    def needs_page(self, polling_seconds: float, age_limit_seconds: float) -> bool:
        """Return whether to read the next page now."""
        now = self._clock()
        is_hungry = self._has_found and self._has_claimed and not (self._due or self._others)
        if now < self._page_at and not (is_hungry and self.is_active):  # hungry: claims are faster than pages
            return False
        if not self.is_active and now - self._scanned_at <= age_limit_seconds:
            return False
        if not self.is_active:
            self._circle.begin(now)
            self._has_claimed = self._has_failed = False
        return self._begins_circle(polling_seconds)

    def read(
        self, connection: Connection, turn: int, *, paused_queues: Collection[str], paused_tasks: Collection[str]
    ) -> None:
        """Read the next page. Note which of its lanes have something to claim now or later."""
        began = self._clock()
        self._note_pauses(set(paused_queues))
        self._circle.before_page(began)
        keys = registry.chunk_keys()
        self._rules = {key: self.chunk_rule(key) for key, task in keys.items() if task.name not in paused_tasks}
        after = self._circle.position
        found, self.limited.claims.has_controls = limits.scan_keys(
            connection, self._rules, after=after, limit=PAGE_KEYS
        )
        self._scanned_at = self._clock()
        if after is None:
            self._waiting.clear()
        added = [self._note(each, turn) for each in found]
        self._has_found = any(added)
        is_last = len(found) < PAGE_KEYS
        self.is_active = not is_last or after is not None
        self._end_page(None if is_last else found[-1].place)
        self._page_at = self._clock() + self._rest.after(self._scanned_at - began)

    def _note_newest(self, connection: Connection, turn: int) -> bool:
        newest = limits.newest_keys(connection, limit=NEWEST_JOBS)
        are_due = [self._note(each, turn, is_news=True) for each in newest]
        return any(are_due)

    def _note(self, found: FoundKey, turn: int, *, is_news: bool = False) -> bool:
        """Note a key of a page. Return whether a lane has something to claim now that it had not before."""
        queue_name, priority, key = found.place
        if queue_name in self._paused_queues or (self._queue_names and queue_name not in self._queue_names):
            return False
        if is_chunk_key(key):
            return key in self._rules and self._note_key_of_chunk(found, turn, is_news=is_news)
        if name_of(key) not in registry.limits():  # a limit of newer or older code: other workers claim its jobs
            return False
        lane, now = Lane(queue_name, priority, is_limited=True), self._clock()
        if found.due_seconds > 0:
            note = self._later.note_sooner if is_news else self._later.note
            note((lane, key), now + found.due_seconds, now)
            return False
        self.limited.claims.cursors.drop_if_behind(lane, key, found.run_after)
        is_added = self.limited.add(lane, key, is_seen=True, is_news=is_news)
        if self.limited.has_waiting(key):
            self._waiting.add(lane)
        self._place(lane, turn)
        return is_added

    def _note_key_of_chunk(self, found: FoundKey, turn: int, *, is_news: bool) -> bool:
        lane = Lane(found.place.queue_name, found.place.priority, chunk_key=found.place.limit_key)
        if found.due_seconds <= 0:
            self._waiting.add(lane)
        if found.full_seconds is not None:
            return self._note_chunk(lane, found.full_seconds, turn)
        # Only a page says when a chunk is due. If the lane is a new one, a claim finds that out.
        is_known = (lane, found.place.limit_key) in self._later or found.due_seconds > 0
        return not is_known and self._note_chunk(lane, 0.0, turn)

    def _note_chunk(self, lane: Lane, seconds: float, turn: int) -> bool:
        """Note when a chunk is due. Return whether that is now."""
        item = (lane, lane.chunk_key or "")
        if seconds > 0:
            self._due.discard(lane)
            self._later.note(item, self._clock() + seconds, self._clock())
            return False
        self._later.discard(item)
        self._due.add(lane, turn)
        return True

    def _note_pauses(self, paused_queues: set[str]) -> None:
        """Forget the lanes of queues that are paused now. A circle finds those of queues that are not any more."""
        ended, forgotten = self._set_paused(paused_queues)
        if ended:
            self._circle.begin(self._clock())
        self._waiting.difference_update([lane for lane in self._waiting if lane.queue_name in paused_queues])
        for lane in forgotten:
            self.limited.drop(lane)

    # ---------------------------------------------------------------- claiming

    def pick(self, most: int, turn: int, *, has_others: bool) -> dict[Lane, int]:
        """Return lanes to claim from, each with its turn. `has_others`: plain lanes have due jobs too."""
        for lane, key in self._later.take_due(self._clock()):
            if lane.queue_name in self._paused_queues:
                continue
            if lane.chunk_key is not None:
                self._due.add(lane, turn)
            else:
                self.limited.add(lane, key, is_seen=True, is_news=not self.limited.is_busy(key))
                self._place(lane, turn)
        self._turn = turn
        self.place_freed(turn)
        picked = self._due.pick(min(most, LANES_PER_CLAIM), self._is_full)
        if not (self.limited.is_paced and (picked or has_others)):
            picked |= self._others.pick(min(most, UNSURE_LANES), self._is_full)
        return picked

    def place_freed(self, turn: int) -> list[Lane]:
        """Return the lanes of keys of which a job has ended in this process."""
        freed = self.limited.free_ended()
        for lane in freed:
            self._place(lane, turn)
        return [lane for lane in freed if self.limited.has_keys(lane)]

    def after_claim(self, lane: Lane) -> None:
        """Keep a lane of limited jobs that has keys to visit, or forget it."""
        if self.limited.has_failed:
            self.limited.has_failed, self._has_failed = False, True
        self._place(lane, self._turn)

    def postpone_chunk(self, lane: Lane, due_seconds: float | None) -> None:
        """Note when the chunk of a lane is due, because a claim found that it is not. None: it has no due job."""
        self._due.discard(lane)
        if due_seconds is None:
            self._waiting.discard(lane)
        else:
            self._note_chunk(lane, max(due_seconds, LOCKED_SECONDS), 0)

    def _place(self, lane: Lane, turn: int) -> None:
        """Keep a lane of limited jobs among those that are sure or not, or forget it."""
        if lane.queue_name in self._paused_queues:  # its keys can have waited since before the pause
            self.limited.drop(lane)
        is_kept, is_sure = self.limited.has_keys(lane), self.limited.is_sure(lane)
        for lanes, is_right in ((self._due, is_kept and is_sure), (self._others, is_kept and not is_sure)):
            if is_right:
                lanes.add(lane, turn)
            else:
                lanes.discard(lane)

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for a limit, their chunk, or a slot, as far as this process has seen."""
        return self.limited.need_slots or bool(self._waiting)

    # ---------------------------------------------------------------- sleeping

    def next_due_at(self, tried_at: float, if_overdue: float) -> float:
        """Return when there is something to do: a job is due, a key is to be visited again, or a page is."""
        if self._scanned_at == float("-inf"):
            return float("inf")  # no task of this process has a limit or a chunk
        due_at = self._later.next_due_at
        if self._due.has_open(self._is_full) or self._others.has_open(self._is_full):
            due_at = min(due_at, if_overdue if self.limited.need_slots else tried_at + STEP_SECONDS)
        if not self._circle.is_complete:
            return min(due_at, self._page_at)
        return min(due_at, max(self._page_at, self._next_circle_at))
