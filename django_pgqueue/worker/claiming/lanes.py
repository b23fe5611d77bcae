"""Keep the lanes that a fetcher claims from: their order, when each has a due job, and the cursor in each.

Called by the fetcher and the claimer, in the fetcher's thread only. A lane is one queue at one priority. Cursors keep
claims from walking again over the dead index entries of claimed jobs and over jobs that cannot be claimed now. Jobs can
come to lie behind a cursor, so the fetcher also claims from the start of the lanes regularly.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from django_pgqueue import registry
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import EPOCH, Claimed, Cursor, Lane
from django_pgqueue.worker.slots.queue_slots import QueueSlots

from .chunk_lanes import LOCKED_SECONDS, ChunkLanes
from .lane_cursors import LaneCursors, exhausted_lanes, forget_oldest
from .lane_of_job import cursor_behind, lane_of
from .lane_pages import LanePages
from .limited_lanes import LimitedLanes
from .pacing import Pacing
from .shared_scans import SharedScans

AGE_LIMIT_SECONDS: Final = 1.0
"""How old the last scan may be while claims find jobs. After a claim that found none, only `Pacing` delays a scan."""
AGE_LIMIT_OF_QUEUES_SECONDS: Final = 0.005
"""The same for a process with `--queue`. Its claims can find jobs of one queue all the time while another queue, which
has free slots, gets its first job. As long as the first poll of an idle fetcher."""
SHARED_SECONDS: Final = 5.0
"""How old this process's own last scan may be when a sibling's scan replaces the next one. The own scan also finds out
which queues and tasks are paused."""
STEP_SECONDS: Final = 0.01
"""The sleep after a step of a circle over limit keys that found no job. With a second, 1,000 keys without a free slot
delayed the jobs of the next key by 6 s."""
NEWS_SECONDS: Final = 0.05
"""How much longer a page of lanes may wait while jobs are found that notifications have announced."""
RECENT_LANES: Final = 8
"""How many lanes are remembered for the claim after the next notification."""


class Lanes:
    """The lanes of one fetcher. Not for two threads at once."""

    def __init__(
        self,
        queue_names: Sequence[str],
        shared: SharedScans | None = None,
        queue_slots: QueueSlots | None = None,
    ) -> None:
        self.shared = shared
        """Where the processes of one supervisor publish their scans. None: this process shares none."""
        self._sibling_due_at = float("inf")
        """When the next job is due by a sibling's scan, if that replaced the last one."""
        self.queue_names = list(queue_names)
        """Claimed strictly in this order. Empty: all queues, by priority, with turns among lanes of one priority."""
        self.queue_slots = queue_slots
        """The slots of each queue, by `--queue`. With them, the order is that of a worker for all queues."""
        self._age_limit_seconds = AGE_LIMIT_SECONDS if queue_slots is None else AGE_LIMIT_OF_QUEUES_SECONDS
        self._full: set[Lane] = set()
        """Lanes with due jobs that the last claim left out, because their queues had no free slot."""
        self.last_was_empty = True
        """Whether the last claim found nothing, or there was nothing to claim. If jobs only wait for a slot of this
        process, it is as if the claim had found them."""
        self.limited = LimitedLanes()
        """The lanes of jobs with a limit."""
        self.chunks = ChunkLanes()
        """The lanes of tasks with `chunk`."""
        self.paused_tasks: list[str] = []
        """Names of paused tasks, including their aliases. Their jobs must not be claimed."""
        self.excluded_tasks: set[str] = set()
        """Names of tasks whose jobs are left to other workers, as if the tasks were paused."""
        self._due_at: dict[Lane, float] = {}
        """When the first job of each lane is due, by the monotonic clock. For a paused queue: when the pause ends."""
        self._cursors = LaneCursors()
        self._seen_at = EPOCH
        """The time of the last scan, by the database's clock."""
        self._served: dict[Lane, int] = {}
        """The turn in which a claim last found a job in each lane."""
        self._recent: dict[Lane, None] = {}
        self._scanned_at = self._ordered_at = float("-inf")
        self._rest = Pacing()
        self._turn = 0
        self._connected_at = 0.0
        self._others_at = float("-inf")
        self._others_rest = Pacing()
        self.pages = LanePages(
            self.queue_names,
            self._cursors,
            (lambda name: None) if queue_slots is None else queue_slots.group_of,
            (lambda name: False) if queue_slots is None else queue_slots.is_full,
        )
        """The plain lanes, if they are too many for one scan."""

    def note_connection(self, connected_at: float) -> None:
        """Start afresh if the worker has reconnected after a loss since the last call."""
        if self._connected_at != connected_at:
            self._connected_at = connected_at
            self.forget()

    def forget(self) -> None:
        """Start afresh after a reconnect: another server may lack what the last one had committed."""
        self._cursors.clear()
        self.limited.forget()
        self.pages.forget()
        self._scanned_at = self._others_at = float("-inf")

    def scan_again(self) -> None:
        """Scan before the next claim, because the set of claimable jobs has changed."""
        self._recent.clear()
        self.limited.wake()
        self.pages.expect_jobs()
        self._scanned_at = self._others_at = float("-inf")

    def ordered(self, connection: EngineConnection, *, from_start: bool, most: int = 1000) -> dict[Lane, Cursor]:
        """Return the lanes that have due jobs, in the order to claim from, each with its cursor.

        If they are too many for one scan, return at most the lanes that a claim of `most` jobs can need.
        """
        age = time.monotonic() - self._scanned_at
        found_none = self.last_was_empty and not self._has_freed_queue()
        age_limit_seconds = 0.0 if found_none or self.pages.is_active else self._age_limit_seconds
        self._turn += 1
        has_news = self.pages.read_newest(connection, self._turn, is_idle=found_none)
        rest_seconds = self._rest.seconds + (NEWS_SECONDS if has_news else 0.0)
        is_scan_due = age > max(age_limit_seconds, rest_seconds)
        if is_scan_due and self.pages.needs_page(self.limited.longest_rest_seconds):
            self._scan(connection)
        turns, behind = self.pages.pick(most, self._turn, from_start=from_start)
        start, lanes = Cursor(), self._in_order(turns)
        self.last_was_empty = self.last_was_empty or not lanes
        from_start = from_start and not self.pages.is_active
        return {lane: start if from_start or lane in behind else self._cursors.get(lane, start) for lane in lanes}

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for a limit, their chunk, or a slot of their queue, as far as this process has seen."""
        return self.limited.have_waiting or self.chunks.have_waiting or bool(self._full)

    def can_continue(self, free_slots: int) -> bool:
        """Return whether this process may be able to claim jobs because one of its own jobs has ended."""
        return self.limited.can_continue(free_slots) or self._has_freed_queue()

    def _has_freed_queue(self) -> bool:
        """Return whether a queue that was full at the last claim has a free slot by now."""
        slots = self.queue_slots
        return slots is not None and any(not slots.is_full(lane.queue_name) for lane in self._full)

    def postpone_chunk(self, lane: Lane, due_seconds: float | None) -> None:
        """Note when the chunk of a lane is due, because a claim found that it is not. None: it has no due job."""
        now = time.monotonic()
        self._due_at[lane] = float("inf") if due_seconds is None else now + max(due_seconds, LOCKED_SECONDS)
        if due_seconds is None:
            self.chunks.note_unclaimable(lane)

    def before_scan(self, *, announced: bool, is_first: bool = True) -> dict[Lane, Cursor]:
        """Return the lanes to claim from before the scan, in the order to claim from, each with its cursor.

        They are the lanes of limit keys that this process has just freed, and after a notification (`announced`) those
        in which claims last found jobs, unless a sibling answers the notification (not `is_first`).
        """
        if announced:
            self.limited.expect_jobs()
            self.pages.expect_jobs()
        if not self.last_was_empty:
            return {}
        recent = self.recent_lanes() if announced and is_first else {}
        if self._scanned_at == float("-inf"):  # their queues may be paused now
            return recent
        freed = [lane for lane in self._due_at if lane.is_limited and self.limited.has_freed(lane)]
        return dict.fromkeys(freed, Cursor()) | recent

    def recent_lanes(self) -> dict[Lane, Cursor]:
        """Return the lanes in which claims last found jobs, in the order to claim from, each with its cursor."""
        start = Cursor()
        return {lane: self._cursors.get(lane, start) for lane in self._sorted(self._recent)}

    @property
    def is_resting(self) -> bool:
        """Whether it is too early for the next scan, because scans must not take more than a tenth of the time."""
        return time.monotonic() - self._scanned_at <= self._rest.seconds

    def next_due_at(self, if_overdue: float) -> float:
        """Return when the next job is due, by the monotonic clock; infinity if no such job is known.

        For a lane whose first job was due at the last attempt but could not be claimed, use `if_overdue` instead. A
        circle over limit keys goes on after `STEP_SECONDS`. Lanes of full queues do not count: the end of a job wakes
        the fetcher.
        """
        tried_at = self._ordered_at
        own = float("inf")
        for lane, first_due_at in self._due_at.items():
            if self._full and lane in self._full:  # with 30,000 lanes, each hash counts
                continue
            due_at = self.limited.rests_until(lane) if lane.is_limited else first_due_at
            if due_at <= tried_at:
                due_at = tried_at + STEP_SECONDS if self.limited.is_under_way(lane) else if_overdue
            own = min(own, due_at)
        own = min(own, self.pages.next_due_at(tried_at, self._scanned_at + self._rest.seconds, if_overdue))
        return min(own, self._sibling_due_at)

    def are_empty_for_sibling(self, moment: float | None) -> bool:
        """Return whether a sibling's scan that began at `moment` or later found no due job, so none is needed here.

        `next_due_at()` then takes account of what the sibling found.
        """
        if self.shared is None or moment is None or time.monotonic() - self._scanned_at > SHARED_SECONDS:
            return False
        if self.pages.is_active:  # no scan of a sibling has read all lanes
            return False
        due_at = self.shared.answer(moment)
        if due_at is None:
            return False
        self._sibling_due_at = due_at
        return True

    def move_cursors(self, claimed: Iterable[Claimed]) -> None:
        """Set each lane's cursor to where its claim ended, even if that is further back."""
        last = {lane_of(job): job for job in claimed}
        for lane, job in last.items():
            self._served.pop(lane, None)
            self._served[lane] = self._turn
            if not lane.is_limited:
                self._cursors.move(lane, cursor_behind(job))
            if lane.is_plain:
                self.pages.had_turn(lane, self._turn)
                self._recent.pop(lane, None)
                self._recent[lane] = None
        for oldest in list(self._recent)[:-RECENT_LANES]:
            del self._recent[oldest]
        self.last_was_empty = not last and not self.limited.need_slots

    def pass_by(self, cursors: Mapping[Lane, Cursor], claimed: Sequence[Claimed], *, all_exhausted: bool) -> None:
        """Note which lanes a claim has exhausted: see `exhausted_lanes()`."""
        exhausted = exhausted_lanes(cursors, claimed, all_exhausted=all_exhausted)
        self._cursors.pass_by(exhausted, self._seen_at)
        self.pages.exhaust({lane: cursors[lane] for lane in exhausted}, {lane_of(job) for job in claimed}, self._turn)

    def _scan(self, connection: EngineConnection) -> None:
        """Scan for lanes with ready jobs and for pauses."""
        began = time.monotonic()
        if self.shared is not None:
            self.shared.begin()
        due_in, paused_queues, paused_tasks, seen_at = self.pages.read(connection, self._turn)
        self._scanned_at, self._sibling_due_at = time.monotonic(), float("inf")
        self._rest.after(self._scanned_at - began)
        paused_before = set(self.paused_tasks)
        self.paused_tasks = [name for task_name in paused_tasks for name in registry.names_of(task_name)]
        self.paused_tasks += self.excluded_tasks
        if seen_at < self._seen_at or not paused_before <= set(self.paused_tasks):
            self._cursors.clear()  # the clock went back or a pause has ended: jobs lie behind the cursors
        self._seen_at = seen_at
        wanted = set(self.queue_names)
        due_at = {lane: self._scanned_at + seconds for lane, seconds in due_in.items()}
        due_at |= self._scan_others(connection, paused_queues)
        self._due_at = {lane: at for lane, at in due_at.items() if not wanted or lane.queue_name in wanted}
        if self.shared is not None:
            next_due_at = min(self._due_at.values(), default=float("inf"))
            is_answer = next_due_at > self._scanned_at and not self.pages.is_active
            self.shared.end(next_due_at if is_answer else None)
        forget_oldest(self._cursors, self._due_at)
        forget_oldest(self._served, self._due_at)
        self._recent = {lane: None for lane in self._recent if lane.queue_name not in paused_queues}

    def _scan_others(self, connection: EngineConnection, paused_queues: Collection[str]) -> dict[Lane, float]:
        """Return when the lanes of jobs with a limit or a chunk are due. With each page, scan only if that is quick."""
        began = time.monotonic()
        if self.pages.is_active and began < self._others_at:
            return {lane: due_at for lane, due_at in self._due_at.items() if not lane.is_plain}
        limited = [lane for lane in self.limited.scan(connection) if lane.queue_name not in paused_queues]
        chunks = self.chunks.scan(connection, paused_queues=paused_queues, paused_tasks=self.paused_tasks)
        now = time.monotonic()
        self._others_at = now + self._others_rest.after(now - began)
        return dict.fromkeys(limited, self._scanned_at) | chunks

    def _in_order(self, turns: Mapping[Lane, int]) -> list[Lane]:
        self._ordered_at = time.monotonic()
        due = [
            lane
            for lane, due_at in self._due_at.items()
            if due_at <= self._ordered_at
            and not (lane.is_limited and self.limited.rests_until(lane) > self._ordered_at)
        ]
        if self.queue_slots is not None:
            self._full = {lane for lane in due if self.queue_slots.is_full(lane.queue_name)}
            due = [lane for lane in due if lane not in self._full]
            self._full |= self.pages.full
        due += turns
        if not all(lane.is_limited for lane in due):
            due = [lane for lane in due if not (lane.is_limited and self.limited.is_paced(lane))]
        return self._sorted(due, turns)

    def _sorted(self, lanes: Iterable[Lane], turns_of_pages: Mapping[Lane, int] | None = None) -> list[Lane]:
        if self.queue_names and self.queue_slots is None:
            position = {name: number for number, name in enumerate(self.queue_names)}
            return sorted(lanes, key=lambda lane: (position[lane.queue_name], -lane.priority))
        turns = turns_of_pages or {}
        return sorted(lanes, key=lambda lane: (-lane.priority, turns.get(lane, self._served.get(lane, 0))))
