"""How many jobs are in each state, by queue, task and lane, and how fast they come and go."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.settings.conf import DAY_SECONDS, get_settings

from . import queries, rollup_queries
from .answers import FIGURE_OF_STATE, NOT_READ, STATES, Count
from .fleet import OPEN_LIMIT, OpenGroup, Pauses, read_open_groups
from .graphs import queries as graph_queries
from .lane_counts import Ready
from .limits.ready import ReadyJobs, WaitingKey, read_ready_limited
from .unread import Figures
from .used_names import first_id_since

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

COUNT_LIMIT: Final = 10_000
"""Counting stops here in each lane, and for dead jobs in all queues together."""
DUE_TOTAL: Final = 100_000
"""Maximum number of due jobs to count in all lanes together. An index alone counts them: 0.1 µs each."""
DUE_BY_TASK_TOTAL: Final = 20_000
"""The same by task, because the row of each job must be read."""
LATER_TOTAL: Final = 10_000
"""Maximum number of later jobs to count in all lanes together. Their rows must be read: 0.4 µs each."""
LANES_LIMIT: Final = 1000
ENQUEUED_LIMIT: Final = 10_000
"""Maximum number of jobs of the last minute to count."""
MINUTE_SECONDS: Final = 60.0
WRITE_DELAY_SECONDS: Final = 15.0
"""How long after a minute its counts are complete: workers write them every 10 s."""

CUT_STATES: Final = {
    **dict.fromkeys(("due", "paused"), "due_is_cut"),
    "held": "held_is_cut",
    **dict.fromkeys(("scheduled", "retrying", "unknown"), "later_is_cut"),
}
"""The states of ready jobs, each with the field of `Ready` that says whether more of them can be there."""


@dataclass(slots=True)
class DepthSums:
    """The figures of one queue or one task, while they are added up."""

    counts: defaultdict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    """The jobs by state, by the names of the fields of `Depth`."""
    oldest_due_seconds: float | None = None
    dead_24h: int = 0
    enqueued: float = 0.0
    finished: float = 0.0

    def add_ready(self, ready: Ready, *, is_paused: bool) -> None:
        """Add the ready jobs of a lane."""
        self.counts["scheduled"] += Count(ready.scheduled, not ready.later_is_cut)
        self.counts["retrying"] += Count(ready.retrying, not ready.later_is_cut)
        self.counts["unknown"] += Count(ready.unknown, not ready.later_is_cut)
        self.counts["paused" if is_paused else "due"] += Count(ready.due, not ready.due_is_cut)
        if not is_paused:
            self.counts["held"] += Count(ready.held, not ready.held_is_cut)
            self.counts["paused"] += Count(ready.paused, not ready.held_is_cut)
        if not is_paused and ready.oldest_due_seconds is not None and ready.due:
            self.oldest_due_seconds = max(self.oldest_due_seconds or 0.0, ready.oldest_due_seconds)

    def mark_cut(self, states: Iterable[str]) -> None:
        """Note that there may be more jobs in these states."""
        for state in states:
            self.counts[state] += Count(0, is_exact=False)


class DepthReading:
    """The figures of all queues or all tasks, read with a few statements."""

    def __init__(self, connection: BaseDatabaseWrapper, *, by_task: bool, figures: Figures | None = None) -> None:
        self.connection = connection
        self.by_task = by_task
        self.pauses = Pauses(connection)
        self.sums: defaultdict[str, DepthSums] = defaultdict(DepthSums)
        self.ready: list[Ready] = []
        self.waiting_keys: list[WaitingKey] = []
        self.has_all_keys = True
        self.cut: set[str] = set()
        """The states in which every queue or task may have more jobs than were counted."""
        self._has_more_due = False
        """Whether every task may have more due jobs than were counted, which are paused if the task is."""
        self.dead_by_task: Counter[str] = Counter()
        """The jobs of each task that died within a day."""
        self.enqueued_is_estimate = False
        self.figures = figures or Figures(connection)
        self.open_groups: list[OpenGroup] = self.figures.read("running", lambda: read_open_groups(connection), [])
        self._add_open()
        for name in ("ready", "waiting", "dead", "enqueued", "finished"):
            self.figures.read(name, getattr(self, f"_add_{name}"), None)

    def of_name(self, name: str) -> dict[str, Any]:
        """Return the fields of the `QueueStats` or `TaskStats` with this name that the reading knows."""
        sums, unread = self.sums[name], self.figures.unread
        cut = self.cut | {"paused" if name in self.pauses.of_tasks else "due"} if self._has_more_due else self.cut
        counts = {state: sums.counts[state] + Count(0, state not in cut) for state in STATES}
        has_finished = get_settings().STATS and "finished" not in unread
        return {
            **{
                state: NOT_READ if FIGURE_OF_STATE.get(state, state) in unread else count
                for state, count in counts.items()
            },
            "oldest_due_seconds": None if "ready" in unread else sums.oldest_due_seconds,
            "name": name,
            "pause": (self.pauses.of_tasks if self.by_task else self.pauses.of_queues).get(name),
            "enqueued_per_minute": None if "enqueued" in unread else sums.enqueued,
            "enqueued_is_estimate": self.enqueued_is_estimate,
            "finished_per_minute": sums.finished if has_finished else None,
        }

    def _name(self, queue_name: str, task_name: str) -> str:
        return task_name if self.by_task else queue_name

    def _add_ready(self) -> None:
        by_task = self.by_task or bool(self.pauses.of_tasks)
        rows, self.waiting_keys, self.has_all_keys = read_ready(self.connection, self.pauses, by_task=by_task)
        self.ready = rows
        for ready in rows:
            is_paused = ready.queue_name in self.pauses.of_queues or ready.task_name in self.pauses.of_tasks
            self.sums[self._name(ready.queue_name, ready.task_name or "")].add_ready(ready, is_paused=is_paused)
        if self.by_task:  # a lane that was not counted to its end may have more jobs of every task
            self._add_uncounted(rows)
        elif by_task:  # it may have more jobs of its paused tasks and of its others
            for queue_name in {ready.queue_name for ready in rows} - set(self.pauses.of_queues):
                self.sums[queue_name].mark_cut(_cut_states(row for row in rows if row.queue_name == queue_name))
        if len({(ready.queue_name, ready.priority) for ready in rows}) >= LANES_LIMIT:
            self.cut |= CUT_STATES.keys()

    def _add_uncounted(self, rows: Sequence[Ready]) -> None:
        """Note the states of the jobs that were not counted, of which the tasks are unknown."""
        for row in rows:
            if row.later_is_cut:
                self.cut |= {"scheduled", "retrying", "unknown"}
            if row.has_more_due and row.queue_name in self.pauses.of_queues:
                self.cut.add("paused")
            elif row.has_more_due:
                self._has_more_due = True
                self.cut |= {"held", "paused"} if row.is_limited else set()

    def _add_open(self) -> None:
        states = ("running", "prefetched", "lost")
        for group in self.open_groups:
            for state in states:
                sums = self.sums[self._name(group.queue_name, group.task_name)]
                sums.counts[state] += Count(getattr(group, state))
        if sum(group.total for group in self.open_groups) >= OPEN_LIMIT:
            self.cut |= set(states)

    def _add_waiting(self) -> None:
        self._add_first("waiting", execute(self.connection, graph_queries.FIRST_WAITING, {"limit": COUNT_LIMIT}))

    def _add_dead(self) -> None:
        rows = execute(self.connection, queries.NEWEST_DEAD, {"limit": COUNT_LIMIT, "seconds": DAY_SECONDS})
        self._add_first("dead", [row[:3] for row in rows])
        for queue_name, task_name, _, recent in rows:
            self.sums[self._name(queue_name, task_name)].dead_24h += recent
            self.dead_by_task[task_name] += recent

    def _add_first(self, state: str, rows: Iterable[tuple[str, str, int]]) -> None:
        """Add the first jobs in a state. If there are more, any queue or task can have them."""
        total = 0
        for queue_name, task_name, count in rows:
            self.sums[self._name(queue_name, task_name)].counts[state] += Count(count)
            total += count
        if total >= COUNT_LIMIT:
            self.cut.add(state)

    def _add_enqueued(self) -> None:
        """Add the jobs of the last minute. If not all are counted, the newest ones stand for the others.

        How many others there are follows from the ids: it does not depend on when in the minute they came.
        """
        first_id = first_id_since(self.connection, MINUTE_SECONDS)
        params = {"first_id": first_id or 0, "limit": ENQUEUED_LIMIT}
        rows = [] if first_id is None else execute(self.connection, queries.NEWEST_ENQUEUED, params)
        self.enqueued_is_estimate = sum(row[2] for row in rows) >= ENQUEUED_LIMIT
        for queue_name, task_name, count, lowest_id, highest_id in rows:
            ids, read_ids = highest_id + 1 - (first_id or 0), highest_id + 1 - lowest_id
            factor = ids / read_ids if self.enqueued_is_estimate else 1.0
            self.sums[self._name(queue_name, task_name)].enqueued += count * factor

    def _add_finished(self) -> None:
        rows = execute(self.connection, rollup_queries.ENDED_BY_TASK, {"delay_seconds": WRITE_DELAY_SECONDS})
        for queue_name, task_name, count in rows:
            self.sums[self._name(queue_name, task_name)].finished += count


def _cut_states(rows: Iterable[Ready]) -> set[str]:
    """Return the states in which a lane may have more jobs than were counted."""
    found = list(rows)
    return {state for state, name in CUT_STATES.items() if any(getattr(ready, name) for ready in found)}


def read_ready(connection: Connection, pauses: Pauses, *, by_task: bool) -> ReadyJobs:
    """Return the ready jobs of each lane, or of each task in each lane. Those with a limit come last, by task.

    Runs one statement, and one more that looks for jobs with a limit. If such jobs are due, two more read what their
    limits admit.
    """
    limited = read_ready_limited(connection, pauses)
    return limited._replace(rows=[*read_ready_unlimited(connection, by_task=by_task), *limited.rows])


def read_ready_unlimited(connection: Connection, *, by_task: bool, limit: int | None = None) -> list[Ready]:
    """Return the ready jobs without a limit, among the first `limit` of each lane. Runs one statement."""
    params = {
        "limit": limit or COUNT_LIMIT,
        "lanes_limit": LANES_LIMIT,
        "due_total": DUE_BY_TASK_TOTAL if by_task else DUE_TOTAL,
        "later_total": LATER_TOTAL,
    }
    statement = queries.READY_BY_TASK if by_task else queries.READY_BY_LANE
    rows = [Ready(*row) for row in execute(connection, statement, params)]
    if by_task:  # the counts are sums, which are decimal numbers
        sums = ("due", "scheduled", "retrying", "unknown")
        whole: list[dict[str, Any]] = [{name: int(getattr(row, name)) for name in sums} for row in rows]
        rows = [row._replace(**counts) for row, counts in zip(rows, whole, strict=True)]
    return rows
