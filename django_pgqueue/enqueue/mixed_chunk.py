"""A chunk of calls that differ in task, options or unique keys: `bulk` fills and inserts one after another.

Calls without a unique key are one statement, whatever their tasks and options are. So are calls with keys, except for
those with a uniqueness window or `on_conflict="replace"`: these are inserted separately for each set of equal options,
in the order of their tasks' names, so that two transactions take the keys of several tasks in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_pgqueue import lifecycle
from django_pgqueue.lifecycle.enqueueing import NewJob, Row
from django_pgqueue.limits import CallLimit
from django_pgqueue.serialization import CHUNK, CHUNK_SIZE

from . import inserting, many_unique
from .job_ids import Placed

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


@dataclass(slots=True)
class KeyedJobs:
    """Jobs of tasks with unique keys that are inserted together, and the positions of their calls."""

    jobs: list[NewJob] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class MixedChunk:
    """At most `CHUNK` calls, or `CHUNK_SIZE` characters of arguments and one more call."""

    def __init__(self) -> None:
        self.count = 0
        self._size = 0
        self._arguments: list[str] = []
        self._numbers: list[int] = []
        self._places: list[int] = []
        self._jobs: dict[int, NewJob] = {}
        """The jobs without a unique key that have search keys or a limit, by their number in this chunk."""
        self._rows: dict[tuple[Any, ...], tuple[int, Row]] = {}
        self._keyed: dict[tuple[Any, ...], KeyedJobs] = {}
        # The same by the identity of the row, because hashing a row's values for each call is slow. The caller keeps
        # the rows alive until it inserts the chunk.
        self._numbers_by_row: dict[int, int] = {}
        self._keyed_by_row: dict[int, KeyedJobs] = {}

    @property
    def is_full(self) -> bool:
        """Whether to insert this chunk before the next call is added."""
        return self.count >= CHUNK or self._size >= CHUNK_SIZE

    @property
    def can_be_refused(self) -> bool:
        """Whether inserting it can raise `DuplicateJob` after it has written something."""
        return any(
            job.uniqueness is not None and job.uniqueness.on_conflict == "raise"
            for keyed in self._keyed.values()
            for job in keyed.jobs
        )

    def add_plain(self, arguments: str, places: range, row: Row) -> None:
        """Add calls without keys, whose arguments are the elements of a JSON array."""
        self._add(arguments[1:-1], places, row)

    def add(self, place: int, job: NewJob) -> None:
        """Add the job of the call at a position."""
        row, uniqueness = job.row, job.uniqueness
        if uniqueness is None:
            if job.search_keys or job.limit is not None:
                self._jobs[len(self._places)] = job
            self._add(job.arguments, [place], row)
            return
        keyed = self._keyed_by_row.get(id(row))
        if keyed is None:
            kind = () if uniqueness.can_share_statement else (*row.values(), uniqueness)
            keyed = self._keyed_by_row[id(row)] = self._keyed.setdefault(kind, KeyedJobs())
        keyed.jobs.append(job)
        keyed.places.append(place)
        self.count += 1
        self._size += len(job.arguments)

    def _add(self, arguments: str, places: Sequence[int], row: Row) -> None:
        number = self._numbers_by_row.get(id(row))
        if number is None:
            number, _ = self._rows.setdefault(tuple(row.values()), (len(self._rows), row))
            self._numbers_by_row[id(row)] = number
        self._arguments.append(arguments)
        self._numbers += [number] * len(places)
        self._places += places
        self.count += len(places)
        self._size += len(arguments)

    def insert(self, connection: BaseDatabaseWrapper) -> list[Placed]:
        """Insert the jobs, announce them, and return what happened to each call."""
        placed = self._insert_plain(connection) if self._arguments else []
        # The calls that share a statement come first, so that all transactions take keys in the same order.
        order = sorted(self._keyed, key=lambda kind: (bool(kind), self._keyed[kind].jobs[0].task_name))
        for keyed in map(self._keyed.__getitem__, order):
            results = many_unique.insert_keyed(connection, keyed.jobs)
            placed += [Placed(place, *result) for place, result in zip(keyed.places, results, strict=True)]
        return placed

    def _insert_plain(self, connection: BaseDatabaseWrapper) -> list[Placed]:
        arguments = f"[{','.join(self._arguments)}]"
        rows = [row for _, row in self._rows.values()]
        limits: list[CallLimit | None] = [None] * len(self._places) if self._jobs else []
        for number, job in self._jobs.items():
            limits[number] = job.limit
        given: dict[str, Any] = {"arguments": arguments, "limits": limits}
        if len(rows) == 1:
            ids = lifecycle.enqueue_many(connection, **given, **rows[0])
        else:
            ids = lifecycle.enqueue_each(connection, **given, numbers=self._numbers, rows=rows)
        inserting.write_search_keys(connection, [(ids[number], job) for number, job in self._jobs.items()])
        inserting.announce(connection, zip(ids, map(rows.__getitem__, self._numbers), strict=True))
        return list(map(Placed, self._places, ids))
