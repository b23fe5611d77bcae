"""Keep the lanes that a fetcher claims from: their order, when each has a due job, and the cursor in each.

Called by the fetcher and the claimer, in the fetcher's thread only. A lane is one queue at one priority with one kind
of jobs (see `LaneKind`). Cursors keep claims from walking again over the dead index entries of claimed jobs and over
jobs that cannot be claimed now. Jobs can come to lie behind a cursor, so the fetcher regularly ignores the cursors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.lifecycle.types import EPOCH, Claimed, Cursor, Lane
from django_pgqueue.tasks import registry
from django_pgqueue.worker.slots.queue_slots import QueueSlots

from .lane_cursors import LaneCursors, cursor_behind, exhausted_lanes, forget_oldest, lane_of
from .limited.key_pages import KeyPages, rule_of
from .many_lanes.lane_pages import LanePages
from .next_scan import Pacing, SharedScans

AGE_LIMIT_SECONDS: Final = 1.0
"""How old the last scan may be while claims find jobs. After a claim that found none, only `Pacing` delays a scan."""
AGE_LIMIT_OF_QUEUES_SECONDS: Final = 0.005
"""The same for a process with `--queue`. Its claims can find jobs of one queue all the time while another queue, which
has free slots, gets its first job. As long as the first poll of an idle fetcher."""
SHARED_SECONDS: Final = 5.0
"""How old this process's own last scan may be when a sibling's scan replaces the next one. The own scan also finds out
which queues and tasks are paused."""
NEWS_SECONDS: Final = 0.05
"""How much longer a page of lanes may wait while jobs are found that notifications have announced."""
START: Final = Cursor()
RECENT_LANES: Final = 8
"""How many lanes are remembered for the claim after the next notification, and for scans that begin at cursors."""
SLOW_SECONDS: Final = 0.002
"""A scan of all lanes takes a tenth of this, unless it walks over the index entries of many claimed jobs."""


class Lanes:
    """The lanes of one fetcher. Not for two threads at once. All its times are by `clock`."""

    def __init__(
        self,
        queue_names: Sequence[str],
        shared: SharedScans | None = None,
        queue_slots: QueueSlots | None = None,
        *,
        clock: Callable[[], float] = lambda: time.monotonic(),
        chunk_rule: Callable[[str], ChunkRule] = rule_of,
    ) -> None:
        self.clock = clock
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
        self.paused_tasks: list[str] = []
        """Names of paused tasks, including their aliases. Their jobs must not be claimed."""
        self.excluded_tasks: set[str] = set()
        """Names of tasks whose jobs are left to other workers, as if the tasks were paused."""
        self._due_at: dict[Lane, float] = {}
        """When the first job of each plain lane is due, or when the pause of its queue ends."""
        self._cursors = LaneCursors()
        self._seen_at = EPOCH
        """The time of the last scan, by the database's clock."""
        self._served: dict[Lane, int] = {}
        """The turn in which a claim last found a job in each lane."""
        self._recent: dict[Lane, None] = {}
        self._paused_queues: set[str] = set()
        self._is_whole, self._is_slow = True, False
        """Whether the last scan read all lanes from their start, and whether the last scan that did was slow."""
        self._behind: set[Lane] = set()
        """The lanes in which the last whole scan saw a ready job that the cursor has passed."""
        self._scanned_at = self._ordered_at = float("-inf")
        self._rest, self._turn, self._connected_at = Pacing(), 0, 0.0
        self._has_keys = False  # whether a task of this process has a limit or a chunk
        self.pages = LanePages(self.queue_names, clock, queue_slots, self._cursors)
        """The plain lanes, if they are too many for one scan."""
        self.keyed = KeyPages(self.queue_names, clock, queue_slots, chunk_rule)
        """The lanes of jobs with a limit, and of tasks with `chunk`."""
        self.limited = self.keyed.limited

    def retry_never(self) -> None:
        """Do not try again what only another session can change. A testing kit does that with each claim."""
        self.pages.again_seconds = self.keyed.again_seconds = float("inf")
        self.limited.busy_seconds = self.limited.longest_rest_seconds = self.limited.locked_seconds = float("inf")

    def note_connection(self, connected_at: float) -> None:
        """Start afresh if the worker has reconnected after a loss since the last call."""
        if self._connected_at != connected_at:
            self._connected_at = connected_at
            self.forget()

    def forget(self) -> None:
        """Start afresh after a reconnect: another server may lack what the last one had committed."""
        self._cursors.clear()
        self.keyed.forget()
        self.pages.forget()
        self._scanned_at = float("-inf")

    def scan_again(self) -> None:
        """Scan before the next claim, because the set of claimable jobs has changed."""
        self._recent.clear()
        self.keyed.scan_again()
        self.pages.expect_jobs()
        self._scanned_at = float("-inf")

    def expect_jobs(self) -> None:
        """Note that jobs may have been enqueued in any lane."""
        self.pages.expect_jobs()
        if self._has_keys:
            self.keyed.expect_jobs()

    def ordered(self, connection: Connection, *, from_start: bool, most: int = 1000) -> dict[Lane, Cursor]:
        """Return the lanes that have due jobs, in the order to claim from, each with its cursor.

        If they are too many for one scan, return at most the lanes that a claim of `most` jobs can need.
        """
        found_none = self.last_was_empty and not self._has_freed_queue()
        self._turn += 1
        before = self._scanned_at
        self._read(connection, found_none=found_none, from_start=from_start)
        is_paged, start = self.pages.is_active, Cursor()
        turns, behind = self.pages.pick(most, self._turn, from_start=from_start) if is_paged else ({}, set())
        lanes = self._in_order(turns, most)
        self.last_was_empty = self.last_was_empty or not lanes
        if from_start and not is_paged:
            is_fresh = self._scanned_at != before and self._is_whole
            behind = {lane for lane in lanes if not (is_fresh and lane.is_plain) or lane in self._behind}
        return {lane: start if lane in behind else self._cursors.get(lane, start) for lane in lanes}

    def _read(self, connection: Connection, *, found_none: bool, from_start: bool) -> None:
        """Scan, as far as it is time to: the plain lanes and pauses, and the keys of the other lanes."""
        age_limit = 0.0 if found_none else self._age_limit_seconds
        has_news = self.pages.is_active and self.pages.read_newest(connection, self._turn, is_idle=found_none)
        if self._has_keys:
            self.keyed.read_newest(connection, self._turn, is_idle=found_none)
        rest_seconds = self._rest.seconds + (NEWS_SECONDS if has_news else 0.0)
        is_due = self.clock() - self._scanned_at > max(rest_seconds, 0.0 if self.pages.is_active else age_limit)
        if from_start and not self._is_whole:
            self._scan(connection)
        elif is_due and self.pages.needs_page(self.limited.longest_rest_seconds):
            self._scan(connection, {} if from_start else self.scan_cursors())
        self._read_keys(connection, age_limit)

    def _scan(self, connection: Connection, cursors: Mapping[Lane, Cursor] = MappingProxyType({})) -> None:
        """Scan for lanes and pauses, those of `cursors` only behind their cursors, and publish it for the siblings."""
        if self.shared is not None:
            self.shared.begin()
        self._scan_plain(connection, cursors)
        self._read_keys(connection, 0.0)
        if self.shared is not None:
            due_at = min(*self._due_at.values(), self.keyed.next_due_at(0.0, 0.0), float("inf"))
            is_answer = not (self._has_keys and not self.keyed.is_answer(self._scanned_at)) and not self.pages.is_active
            is_answer &= self._is_whole
            self.shared.end(due_at if is_answer and due_at > self._scanned_at else None)

    def _read_keys(self, connection: Connection, age_limit: float) -> None:
        if self._has_keys and self.keyed.needs_page(self.limited.longest_rest_seconds, age_limit):
            self.keyed.read(connection, self._turn, paused_queues=self._paused_queues, paused_tasks=self.paused_tasks)

    def scan_cursors(self) -> dict[Lane, Cursor]:
        """Return where scans begin in the lanes in which claims last found jobs, if scans from their start are slow."""
        if not self._is_slow or self.pages.is_active or self.pages.reads_names:
            return {}
        return {lane: self._cursors[lane] for lane in self._recent if lane in self._cursors}

    @property
    def is_complete(self) -> bool:
        """Whether scans have read all lanes and found no job to claim."""
        return self.pages.is_complete and self.keyed.is_complete

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for a limit, their chunk, or a slot of their queue, as far as this process has seen."""
        return self.keyed.have_waiting or bool(self._full)

    def can_continue(self, free_slots: int) -> bool:
        """Return whether this process may be able to claim jobs because one of its own jobs has ended."""
        return (self._has_keys and self.limited.can_continue(free_slots)) or self._has_freed_queue()

    def _has_freed_queue(self) -> bool:
        """Return whether a queue that was full at the last claim has a free slot by now."""
        slots = self.queue_slots
        return slots is not None and any(not slots.is_full(lane.queue_name) for lane in self._full)

    def before_scan(self, *, announced: bool, is_first: bool = True) -> dict[Lane, Cursor]:
        """Return the lanes to claim from before the scan, in the order to claim from, each with its cursor.

        They are the lanes of limit keys that this process has just freed, and after a notification (`announced`) those
        in which claims last found jobs, unless a sibling answers the notification (not `is_first`).
        """
        if announced:
            self.expect_jobs()
        if not self.last_was_empty:
            return {}
        recent = self.recent_lanes() if announced and is_first else {}
        if self._scanned_at == float("-inf"):  # their queues may be paused now
            return recent
        freed = self._sorted(self.keyed.place_freed(self._turn)) if self._has_keys else ()
        return dict.fromkeys(freed, Cursor()) | recent if freed else recent

    def recent_lanes(self) -> dict[Lane, Cursor]:
        """Return the lanes in which claims last found jobs, in the order to claim from, each with its cursor."""
        lanes = self._recent if len(self._recent) == 1 else self._sorted(self._recent)
        return {lane: self._cursors.get(lane, START) for lane in lanes}

    @property
    def is_resting(self) -> bool:
        """Whether it is too early for the next scan, because scans must not take more than a tenth of the time."""
        return self.clock() - self._scanned_at <= self._rest.seconds

    def next_due_at(self, if_overdue: float) -> float:
        """Return when the next job is due, by the monotonic clock; infinity if no such job is known.

        For a lane whose first job was due at the last attempt but could not be claimed, use `if_overdue` instead. Lanes
        of full queues do not count: the end of a job wakes the fetcher.
        """
        tried_at = self._ordered_at
        own = float("inf")
        for lane, due_at in self._due_at.items():
            if self._full and lane in self._full:  # with 30,000 lanes, each hash counts
                continue
            own = min(own, if_overdue if due_at <= tried_at else due_at)
        if self.pages.is_active:
            own = min(own, self.pages.next_due_at(tried_at, self._scanned_at + self._rest.seconds, if_overdue))
        return min(own, self.keyed.next_due_at(tried_at, if_overdue), self._sibling_due_at)

    def are_empty_for_sibling(self, moment: float | None) -> bool:
        """Return whether a sibling's scan that began at `moment` or later found no due job, so none is needed here.

        `next_due_at()` then takes account of what the sibling found.
        """
        if self.shared is None or moment is None or self.clock() - self._scanned_at > SHARED_SECONDS:
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
            if not lane.is_plain:
                self.keyed.had_turn(lane, self._turn)
            else:
                if self.pages.is_active:
                    self.pages.had_turn(lane, self._turn)
                self._recent.pop(lane, None)
                self._recent[lane] = None
        for oldest in list(self._recent)[:-RECENT_LANES]:
            del self._recent[oldest]
        self.last_was_empty = not last and not self.limited.need_slots

    def pass_by(self, cursors: Mapping[Lane, Cursor], claimed: Sequence[Claimed], *, all_exhausted: bool) -> None:
        """Note which plain lanes a claim has exhausted: see `exhausted_lanes()`."""
        exhausted = exhausted_lanes(cursors, claimed, all_exhausted=all_exhausted)
        self._cursors.pass_by(exhausted, self._seen_at)
        if self.pages.is_active:
            claimed_from = {lane_of(job) for job in claimed}
            self.pages.exhaust({lane: cursors[lane] for lane in exhausted}, claimed_from, self._turn)

    def _scan_plain(self, connection: Connection, cursors: Mapping[Lane, Cursor]) -> None:
        began = self.clock()
        due_in, paused_queues, paused_tasks, seen_at = self.pages.read(connection, self._turn, cursors)
        self._scanned_at, self._sibling_due_at = self.clock(), float("inf")
        self._rest.after(self._scanned_at - began)
        self._is_whole = not cursors
        if self._is_whole:
            self._is_slow = self._scanned_at - began > SLOW_SECONDS
        self._has_keys = bool(registry.limits() or registry.chunk_keys())
        paused_before = set(self.paused_tasks)
        self._paused_queues = set(paused_queues)
        self.paused_tasks = [name for task_name in paused_tasks for name in registry.names_of(task_name)]
        self.paused_tasks += self.excluded_tasks
        if seen_at < self._seen_at or not paused_before <= set(self.paused_tasks):
            self._cursors.clear()  # the clock went back or a pause has ended: jobs lie behind the cursors
        self._seen_at = seen_at
        if self._is_whole:
            self._behind = self._cursors.passed(due_in, seen_at)
        names, at = set(self.queue_names), self._scanned_at
        self._due_at = {lane: at + after for lane, after in due_in.items() if not names or lane.queue_name in names}
        forget_oldest(self._cursors, self._due_at)
        forget_oldest(self._served, self._due_at)
        self._recent = {lane: None for lane in self._recent if lane.queue_name not in self._paused_queues}

    def _in_order(self, turns: Mapping[Lane, int], most: int) -> list[Lane]:
        self._ordered_at = self.clock()
        due = [lane for lane, due_at in self._due_at.items() if due_at <= self._ordered_at]
        if self.queue_slots is not None:
            self._full = {lane for lane in due if self.queue_slots.is_full(lane.queue_name)}
            due = [lane for lane in due if lane not in self._full]
        due += turns
        keyed = self.keyed.pick(most, self._turn, has_others=bool(due)) if self._has_keys else {}
        if self.queue_slots is not None:
            self._full |= self.pages.full | self.keyed.full
        return self._sorted([*due, *keyed], {**turns, **keyed} if self.pages.is_active else {})

    def _sorted(self, lanes: Iterable[Lane], turns: Mapping[Lane, int] = MappingProxyType({})) -> list[Lane]:
        if self.queue_names and self.queue_slots is None:
            position = {name: number for number, name in enumerate(self.queue_names)}
            return sorted(lanes, key=lambda lane: (position[lane.queue_name], -lane.priority))
        return sorted(lanes, key=lambda lane: (-lane.priority, turns.get(lane, self._served.get(lane, 0))))
