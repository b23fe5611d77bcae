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
from django_pgqueue.limits import CallLimit
from django_pgqueue.reactions import after_enqueue
from django_pgqueue.serialization import CHUNK, CHUNK_SIZE, encode_arguments

from . import many_unique, unique
from .call_limits import limit_of_call
from .job_ids import Placed
from .search_keys import SearchKeys, search_keys_of, write_search_keys
from .unique import Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition

    from .calls import BoundCall


@dataclass(slots=True)
class KeyedCalls:
    """Calls of tasks with unique keys that are inserted together, and their positions."""

    calls: list[unique.KeyedCall] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class MixedChunk:
    """At most `CHUNK` calls, or `CHUNK_SIZE` characters of arguments and one more call."""

    def __init__(self) -> None:
        self.count = 0
        self._size = 0
        self._arguments: list[str] = []
        self._numbers: list[int] = []
        self._places: list[int] = []
        self._searched: dict[int, tuple[TaskDefinition, SearchKeys]] = {}
        """The tasks and search keys of calls without a unique key, by their number in this chunk."""
        self._limits: dict[int, CallLimit] = {}
        """The limits of calls without a unique key, by their number in this chunk."""
        self._rows: dict[tuple[Any, ...], tuple[int, Row]] = {}
        self._keyed: dict[tuple[Any, ...], KeyedCalls] = {}
        # The same by the identity of the row, because hashing a row's values for each call is slow. The caller keeps
        # the rows alive until it inserts the chunk.
        self._numbers_by_row: dict[int, int] = {}
        self._keyed_by_row: dict[int, KeyedCalls] = {}

    @property
    def is_full(self) -> bool:
        """Whether to insert this chunk before the next call is added."""
        return self.count >= CHUNK or self._size >= CHUNK_SIZE

    @property
    def can_be_refused(self) -> bool:
        """Whether inserting it can raise `DuplicateJob` after it has written something."""
        return any(call.task.on_conflict == "raise" for keyed in self._keyed.values() for call in keyed.calls)

    def add_plain(self, arguments: str, places: range, row: Row) -> None:
        """Add calls without keys, whose arguments are the elements of a JSON array."""
        self._add(arguments[1:-1], places, row)

    def add(self, call: BoundCall, row: Row) -> None:
        """Add a call."""
        key = unique.key_of(call.task, call.args, call.kwargs)
        encoded = call.task.encoded_call(call.args, call.kwargs)
        arguments, search_keys = encode_arguments(*encoded), search_keys_of(call.task, *encoded)
        limit = limit_of_call(call.task, call.args, call.kwargs)
        if call.task.unique_key is None:
            if search_keys:
                self._searched[len(self._places)] = call.task, search_keys
            if limit is not None:
                self._limits[len(self._places)] = limit
            self._add(arguments, [call.place], row)
            return
        keyed = self._keyed_by_row.get(id(row))
        if keyed is None:
            kind = () if unique.can_share_statement(call.task) else self._options_of(call.task, row)
            keyed = self._keyed_by_row[id(row)] = self._keyed.setdefault(kind, KeyedCalls())
        keyed.calls.append(unique.KeyedCall(call.task, row, key, arguments, search_keys, limit))
        keyed.places.append(call.place)
        self.count += 1
        self._size += len(arguments)

    def _options_of(self, task: TaskDefinition, row: Row) -> tuple[Any, ...]:
        return (*row.values(), task.unique_while, task.on_conflict)

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
        order = sorted(self._keyed, key=lambda kind: (bool(kind), self._keyed[kind].calls[0].task.name))
        for keyed in map(self._keyed.__getitem__, order):
            results = many_unique.insert_keyed(connection, keyed.calls)
            placed += [Placed(place, *result) for place, result in zip(keyed.places, results, strict=True)]
        return placed

    def _insert_plain(self, connection: BaseDatabaseWrapper) -> list[Placed]:
        arguments = f"[{','.join(self._arguments)}]"
        rows = [row for _, row in self._rows.values()]
        limits = list(map(self._limits.get, range(len(self._places)))) if self._limits else []
        if len(rows) == 1:
            ids = lifecycle.enqueue_many(connection, arguments=arguments, limits=limits, **rows[0])
        else:
            ids = lifecycle.enqueue_each(
                connection, arguments=arguments, limits=limits, numbers=self._numbers, rows=rows
            )
        write_search_keys(connection, [(task, ids[number], keys) for number, (task, keys) in self._searched.items()])
        by_lane: dict[tuple[str, str], list[int]] = {}
        for job_id, number in zip(ids, self._numbers, strict=True):
            by_lane.setdefault((rows[number]["task_name"], rows[number]["queue_name"]), []).append(job_id)
        for (task_name, queue_name), job_ids in by_lane.items():
            after_enqueue(connection, task_name, queue_name, job_ids)
        return list(map(Placed, self._places, ids))
