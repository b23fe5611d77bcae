"""How many jobs are in each state, by queue, task and lane, and how fast they come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.settings.conf import get_settings

from . import queries, rollup_queries
from .answers import NONE, Count, Depth
from .fleet import OPEN_LIMIT, OpenGroup, Pauses, read_open_groups
from .graphs import queries as graph_queries
from .limits.lanes import read_ready_limited
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
MINUTE_SECONDS: Final = 60.0
WRITE_DELAY_SECONDS: Final = 15.0
"""How long after a minute its counts are complete: workers write them every 10 s."""


class Ready(NamedTuple):
    """The ready jobs of a lane, or of one task in a lane."""

    queue_name: str
    priority: int
    task_name: str | None
    due: int
    due_is_cut: bool
    oldest_due_seconds: float | None
    scheduled: int
    retrying: int
    later_is_cut: bool

    def and_also(self, other: Ready) -> Ready:
        """Return these jobs together with others of the lane."""
        ages = [each.oldest_due_seconds for each in (self, other) if each.oldest_due_seconds is not None]
        return self._replace(
            due=self.due + other.due,
            due_is_cut=self.due_is_cut or other.due_is_cut,
            oldest_due_seconds=max(ages, default=None),
            scheduled=self.scheduled + other.scheduled,
            retrying=self.retrying + other.retrying,
            later_is_cut=self.later_is_cut or other.later_is_cut,
        )


@dataclass(slots=True)
class DepthSums:
    """The figures of one queue or one task, while they are added up."""

    due: Count = NONE
    scheduled: Count = NONE
    retrying: Count = NONE
    paused: Count = NONE
    waiting: Count = NONE
    running: Count = NONE
    lost: Count = NONE
    dead: Count = NONE
    oldest_due_seconds: float | None = None
    enqueued: float = 0.0
    finished: float = 0.0

    def add_ready(self, ready: Ready, *, is_paused: bool) -> None:
        """Add the ready jobs of a lane."""
        due = Count(ready.due, not ready.due_is_cut)
        self.scheduled += Count(ready.scheduled, not ready.later_is_cut)
        self.retrying += Count(ready.retrying, not ready.later_is_cut)
        if is_paused:
            self.paused += due
            return
        self.due += due
        if ready.oldest_due_seconds is not None and ready.due:
            self.oldest_due_seconds = max(self.oldest_due_seconds or 0.0, ready.oldest_due_seconds)


class DepthReading:
    """The figures of all queues or all tasks, read with a few statements."""

    def __init__(self, connection: BaseDatabaseWrapper, *, by_task: bool, figures: Figures | None = None) -> None:
        self.connection = connection
        self.by_task = by_task
        self.pauses = Pauses(connection)
        self.sums: defaultdict[str, DepthSums] = defaultdict(DepthSums)
        self.ready: list[Ready] = []
        self.figures = figures or Figures(connection)
        self.open_groups: list[OpenGroup] = self.figures.read("running", lambda: read_open_groups(connection), [])
        self._add_open()
        for name in ("ready", "waiting", "dead", "enqueued", "finished"):
            self.figures.read(name, getattr(self, f"_add_{name}"), None)

    def of_name(self, name: str) -> dict[str, Any]:
        """Return the fields of the `QueueStats` or `TaskStats` with this name that the reading knows."""
        sums = self.sums[name]
        return {
            **{state: getattr(sums, state) for state in Depth.__slots__},
            "name": name,
            "pause": (self.pauses.of_tasks if self.by_task else self.pauses.of_queues).get(name),
            "enqueued_per_minute": sums.enqueued,
            "finished_per_minute": sums.finished if get_settings().STATS else None,
        }

    def _name(self, queue_name: str, task_name: str) -> str:
        return task_name if self.by_task else queue_name

    def _add_ready(self) -> None:
        rows = self.ready = read_ready(self.connection, by_task=self.by_task or bool(self.pauses.of_tasks))
        for ready in rows:
            is_paused = ready.queue_name in self.pauses.of_queues or ready.task_name in self.pauses.of_tasks
            self.sums[self._name(ready.queue_name, ready.task_name or "")].add_ready(ready, is_paused=is_paused)
        if self.by_task:  # a lane that was not counted to its end may have more jobs of every task
            due_is_cut, later_is_cut = any(row.due_is_cut for row in rows), any(row.later_is_cut for row in rows)
            for sums in self.sums.values():
                sums.add_ready(Ready("", 0, "", 0, due_is_cut, None, 0, 0, later_is_cut), is_paused=False)
                sums.add_ready(Ready("", 0, "", 0, due_is_cut, None, 0, 0, later_is_cut), is_paused=True)

    def _add_open(self) -> None:
        is_exact = sum(group.running + group.lost for group in self.open_groups) <= OPEN_LIMIT
        for group in self.open_groups:
            sums = self.sums[self._name(group.queue_name, group.task_name)]
            sums.running += Count(group.running, is_exact)
            sums.lost += Count(group.lost, is_exact)

    def _add_waiting(self) -> None:
        rows = execute(self.connection, graph_queries.FIRST_WAITING, {"limit": COUNT_LIMIT})
        is_exact = sum(count for _, _, count in rows) <= COUNT_LIMIT
        for queue_name, task_name, count in rows:
            self.sums[self._name(queue_name, task_name)].waiting += Count(count)
        for sums in self.sums.values():
            sums.waiting += Count(0, is_exact)

    def _add_dead(self) -> None:
        rows = execute(self.connection, queries.NEWEST_DEAD, {"limit": COUNT_LIMIT})
        is_exact = sum(count for _, _, count in rows) <= COUNT_LIMIT
        for queue_name, task_name, count in rows:
            self.sums[self._name(queue_name, task_name)].dead += Count(count)
        for sums in self.sums.values():
            sums.dead += Count(0, is_exact)

    def _add_enqueued(self) -> None:
        first_id = first_id_since(self.connection, MINUTE_SECONDS)
        params = {"first_id": first_id or 0, "limit": ENQUEUED_LIMIT}
        rows = [] if first_id is None else execute(self.connection, queries.NEWEST_ENQUEUED, params)
        for queue_name, task_name, count, total, span_seconds in rows:
            seconds = max(span_seconds, 0.001) if total >= ENQUEUED_LIMIT else MINUTE_SECONDS
            self.sums[self._name(queue_name, task_name)].enqueued += count * MINUTE_SECONDS / seconds

    def _add_finished(self) -> None:
        rows = execute(self.connection, rollup_queries.ENDED_BY_TASK, {"delay_seconds": WRITE_DELAY_SECONDS})
        for queue_name, task_name, count in rows:
            self.sums[self._name(queue_name, task_name)].finished += count


def read_ready(connection: Connection, *, by_task: bool) -> list[Ready]:
    """Return the ready jobs of each lane, or of each task in each lane, with and without a limit."""
    plain = _read_ready_without_limit(connection, by_task=by_task)
    limited = [Ready(*row) for row in read_ready_limited(connection)]
    if not by_task:
        limited = [row._replace(task_name=None) for row in limited]
    return _merged([*plain, *limited]) if limited else plain


def _merged(rows: Sequence[Ready]) -> list[Ready]:
    """Return one row for each lane, or for each task in each lane."""
    sums: dict[tuple[Any, ...], Ready] = {}
    for row in rows:
        key = (row.queue_name, row.priority, row.task_name)
        known = sums.get(key)
        sums[key] = row if known is None else known.and_also(row)
    return list(sums.values())


def _read_ready_without_limit(connection: Connection, *, by_task: bool) -> list[Ready]:
    params = {
        "limit": COUNT_LIMIT,
        "lanes_limit": LANES_LIMIT,
        "due_total": DUE_BY_TASK_TOTAL if by_task else DUE_TOTAL,
        "later_total": LATER_TOTAL,
    }
    if by_task:
        return [
            Ready(queue, priority, task, int(due), due_cut, oldest, int(scheduled), int(retrying), later_cut)
            for queue, priority, task, due, due_cut, oldest, scheduled, retrying, later_cut in execute(
                connection, queries.READY_BY_TASK, params
            )
        ]
    rows = [Ready(*row) for row in execute(connection, queries.READY_BY_LANE, params)]
    # Counting stops at one job more than the limit, which shows that there are more.
    return [row._replace(due=row.due - row.due_is_cut) for row in rows]
