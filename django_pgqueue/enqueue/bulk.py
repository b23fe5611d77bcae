"""Enqueue many calls at once: read them a chunk at a time, and insert each chunk with as few statements as possible.

`Task.enqueue_many()` and the function `enqueue_many()` use it. It protects two promises: such a call adds all its jobs
or none, and its memory use does not grow with the number of calls, except for the ids that it returns.

While all calls are of one task with one set of options and neither a unique key nor a limit, each chunk is one
ENQUEUE_MANY, and its calls are encoded together. From the chunk with the first call that differs, `new_job()` encodes
each call, and each chunk is a `MixedChunk`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_pgqueue.db.transactions import atomic_unless_open
from django_pgqueue.declared.limits import CallLimit
from django_pgqueue.encoding.serialization import CHUNK, CHUNK_SIZE, chunks, normalise_call
from django_pgqueue.enqueue import inserting, many_unique
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.lifecycle import enqueueing
from django_pgqueue.lifecycle.enqueueing import NewJob, Row
from django_pgqueue.reactions import after_enqueue
from django_pgqueue.tasks.redaction import has_sensitive_tasks, hidden_from_reports

from .calls import BoundCall, TaskCall, arguments_of, bind, of_call
from .job_ids import JobIds, Placed, Recorder
from .mistaken_calls import called_in_coroutine
from .new_job import alias_of, checked_call, connection_for, key_of, new_job, row_of, uniqueness_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.tasks.definition import TaskDefinition


KeyedJobs = list[tuple[int, NewJob]]
"""Jobs of tasks with unique keys that are inserted together, each behind the position of its call.

Calls without a unique key are one statement, whatever their tasks and options are. So are calls with keys, except for
those with a uniqueness window or `on_conflict="replace"`: these are inserted separately for each set of equal options,
in the order of their tasks' names, so that two transactions take the keys of several tasks in the same order.
"""


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
            for _, job in keyed
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
            keyed = self._keyed_by_row[id(row)] = self._keyed.setdefault(kind, [])
        keyed.append((place, job))
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
        order = sorted(self._keyed, key=lambda kind: (bool(kind), self._keyed[kind][0][1].task_name))
        for keyed in map(self._keyed.__getitem__, order):
            results = many_unique.insert_keyed(connection, [job for _, job in keyed])
            placed += [Placed(place, *result) for (place, _), result in zip(keyed, results, strict=True)]
        return placed

    def _insert_plain(self, connection: BaseDatabaseWrapper) -> list[Placed]:
        arguments = f"[{','.join(self._arguments)}]"
        rows = [row for _, row in self._rows.values()]
        limits: list[CallLimit | None] = [None] * len(self._places) if self._jobs else []
        for number, job in self._jobs.items():
            limits[number] = job.limit
        given: dict[str, Any] = {"arguments": arguments, "limits": limits}
        if len(rows) == 1:
            ids = enqueueing.enqueue_many(connection, **given, **rows[0])
        else:
            ids = enqueueing.enqueue_each(connection, **given, numbers=self._numbers, rows=rows)
        inserting.write_search_keys(connection, [(ids[number], job) for number, job in self._jobs.items()])
        inserting.announce(connection, zip(ids, map(rows.__getitem__, self._numbers), strict=True))
        return list(map(Placed, self._places, ids))


@overload
def enqueue_many(calls: Iterable[TaskCall[Any]], *, returning: Literal[True] = ...) -> JobIds: ...
@overload
def enqueue_many(calls: Iterable[TaskCall[Any]], *, returning: Literal[False]) -> int: ...
def enqueue_many(calls: Iterable[TaskCall[Any]], *, returning: bool = True) -> JobIds | int:
    """Add a job for each call, of any tasks, all or none, in the caller's open transaction or in one of its own.

    All jobs are stored in one database. Transactions, chunks, results and errors are those of `Task.enqueue_many()`.

    Args:
        calls: Calls made by `task.s(…)`, for example from a generator. Without an open transaction, the first call is
            read before this function opens one.
        returning: Whether to return the ids. False saves the memory for them.

    Returns:
        The ids of the jobs in the order of `calls`, or the number of calls if `returning` is False.

    Raises:
        TypeError: A call was not made by `task.s(…)`, or another error of `Task.enqueue_many()`.
        InvalidTask: The jobs belong to different databases, or another error of `Task.enqueue_many()`.

    Example::

        enqueue_many([charge.s(order.pk), send_receipt.using(run_after=60).s(order.pk)])
    """
    return _insert_mixed()(None, calls, returning=returning)


@overload
async def aenqueue_many(calls: Iterable[TaskCall[Any]], *, returning: Literal[True] = ...) -> JobIds: ...
@overload
async def aenqueue_many(calls: Iterable[TaskCall[Any]], *, returning: Literal[False]) -> int: ...
async def aenqueue_many(calls: Iterable[TaskCall[Any]], *, returning: bool = True) -> JobIds | int:
    """Do as `enqueue_many()` from asynchronous code, in a thread, which also reads `calls`. It commits on its own."""
    return await sync_to_async(_insert_mixed())(None, calls, returning=returning)


def _insert_mixed() -> Callable[..., JobIds | int]:
    """Return `insert_many()`, with hidden variables if a call may have sensitive arguments.

    The tasks of the calls are not known before an iterator has been read. Therefore one such task in the process hides
    the variables of all calls without a task of their own.
    """
    return hidden_from_reports(insert_many) if has_sensitive_tasks() else insert_many


def insert_many(task: TaskDefinition | None, calls: Iterable[Any], *, returning: bool) -> JobIds | int:
    """Add a job for each call: the body of `Task.enqueue_many()`, and without a task of `enqueue_many()`."""
    if isinstance(calls, AsyncIterable) and not isinstance(calls, Iterable):  # a queryset is both
        raise TypeError("enqueue_many() cannot read an asynchronous iterator: pass a list or an ordinary iterator")
    numbered: Iterator[tuple[int, Any]] = enumerate(calls)
    main, recorder = task, Recorder(returning=returning)
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    if main is None or callable(main.database):  # the first call says where the jobs are stored
        first = next(numbered, None)
        if first is None:
            return recorder.result() if returning else 0
        _, of_first, args, kwargs = bind(task, *first)
        main = main or of_first
        numbered = chain([first], numbered)
    is_hidden = has_sensitive_tasks() if task is None else bool(task.sensitive)
    connection = connection_for(main, args, kwargs, callers_level=4 + is_hidden)
    try:
        Insertion(connection, main, numbered, recorder, is_of_task=task is not None).run(calls)
    except SynchronousOnlyOperation as error:
        form = "aenqueue_many(…)" if task is None else "task.aenqueue_many(…)"
        raise called_in_coroutine(main.name, form) from error
    return recorder.result() if returning else recorder.count


class ReadChunk(NamedTuple):
    """A chunk that was read and is not inserted yet."""

    insert: Callable[[], None]
    can_be_refused: bool = False


class Insertion:
    """One call of `enqueue_many()`. `is_of_task`: the calls are of `task`, otherwise each call names its task."""

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        task: TaskDefinition,
        calls: Iterator[tuple[int, Any]],
        recorder: Recorder,
        *,
        is_of_task: bool,
    ) -> None:
        self._connection = connection
        self._task = task
        self._own_task = task if is_of_task else None
        self._row = row_of(task, connection.alias)
        self._rows: dict[int, tuple[TaskDefinition, Row]] = {}
        self._calls = calls
        self._recorder = recorder
        self._is_plain = not task.has_keys
        """Whether all calls so far have the options of `task`, and these have no unique key, no limit and no
        search keys."""
        self._first_other_place = 0

    def run(self, given: Iterable[Any]) -> None:
        """Insert all jobs or none. `given` are the calls as the caller passed them."""
        is_open = self._connection.in_atomic_block
        # Without an open transaction, open one before the first call is read: `given` may read the database too.
        with atomic_unless_open(self._connection):
            inserting.check_open(self._connection, self._row["batch_id"])
            sequence = given if isinstance(given, Sequence) else ()
            has_calls = TaskCall in map(type, sequence)  # a loop in C: most sequences have none
            if has_calls and any(isinstance(call, TaskCall) and call.task is not self._task for call in sequence):
                self._is_plain = False
            step = self._next()
            is_last = self._is_over()
            if not is_last and self._sort_by_key(sequence):
                step = self._next()
            # A single chunk needs no savepoint: after its first write, only the database can raise an error. Such an
            # error aborts the caller's transaction, as with `enqueue()`.
            savepoint = is_open and not (is_last and (step is None or not step.can_be_refused))
            with transaction.atomic(using=self._connection.alias, savepoint=savepoint):
                while step is not None:
                    step.insert()
                    step = self._next()

    def _next(self) -> ReadChunk | None:
        """Read the next chunk. Return None after the last one."""
        arguments = next(chunks(self._plain_calls()), None) if self._is_plain else None
        if self._is_plain:
            return None if arguments is None else ReadChunk(partial(self._insert_plain, arguments))
        chunk = MixedChunk()
        if arguments is not None:  # the next call is the first that is not plain
            chunk.add_plain(arguments, range(self._recorder.count, self._first_other_place), self._row)
        while not chunk.is_full and (following := next(self._calls, None)) is not None:
            call = bind(self._own_task, *following)
            try:
                job = self._new_job(call)
            except (TypeError, ValueError) as error:
                raise of_call(call.place, error) from error.__cause__
            chunk.add(call.place, job)
        self._rows.clear()
        return ReadChunk(partial(self._insert_mixed_chunk, chunk), chunk.can_be_refused) if chunk.count else None

    def _plain_calls(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of calls that all have the options of `task`. Stop before the first that has not."""
        task, has_database_of_call = self._task, callable(self._task.database)
        args: Sequence[Any]
        kwargs: Mapping[str, Any]
        for place, call in self._calls:
            if isinstance(call, TaskCall):
                if call.task is not task:
                    self._calls = chain([(place, call)], self._calls)
                    self._is_plain, self._first_other_place = False, place
                    return
                args, kwargs = call.args, call.kwargs
            else:
                args, kwargs = arguments_of(self._own_task, place, call)
            try:
                stored = checked_call(task, args, kwargs)
                normalised = normalise_call(*stored)
            except (TypeError, ValueError) as error:
                raise of_call(place, error) from error.__cause__
            if has_database_of_call:
                self._check_database(task, args, kwargs)
            yield normalised

    def _is_over(self) -> bool:
        """Return whether all calls have been read. Reads one call ahead to find out."""
        following = next(self._calls, None)
        if following is not None:
            self._calls = chain([following], self._calls)
        return following is None

    def _sort_by_key(self, given: Sequence[Any]) -> bool:
        """Begin again with the calls in the order of their unique keys. Return False if no call has a key.

        Two transactions that take the same keys in different orders can deadlock. Each statement takes the keys of its
        chunk in order, and this function orders the chunks, in the way in which `MixedChunk` orders its statements. An
        iterator is not sorted: it may not fit in memory.
        """
        if self._is_plain or not given:
            return False
        keys = []
        for place, call in enumerate(given):
            _, task, args, kwargs = bind(self._own_task, place, call)
            key = key_of(task, partial(task.converted_call, args, kwargs))
            is_separate = not uniqueness_of(task).can_share_statement
            keys.append((False, "", "") if key is None else (is_separate, task.name, key))
        if not any(key for _, _, key in keys):
            return False
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._calls = ((place, given[place]) for place in order)
        return True

    def _new_job(self, call: BoundCall) -> NewJob:
        task = call.task
        return new_job(task, task.encoded_call(call.args, call.kwargs), self._row_of(task, call.args, call.kwargs))

    def _row_of(self, task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Row:
        known = (task, self._row) if task is self._task else self._rows.get(id(task))
        if known is None or callable(task.database):
            self._check_database(task, args, kwargs)
        if known is None:
            known = self._rows[id(task)] = task, row_of(task, self._connection.alias)
            inserting.check_open(self._connection, known[1]["batch_id"])
        return known[1]

    def _check_database(self, task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `InvalidTask` if the job of a call belongs to another database than that of the first call."""
        alias = alias_of(task, args, kwargs)
        if alias != self._connection.alias:
            raise InvalidTask(
                f"enqueue_many(): a job of {task.name} belongs to database {alias!r}, and that of the first call to "
                f"{self._connection.alias!r}: make one call of enqueue_many() for each database"
            )

    def _insert_plain(self, arguments: str) -> None:
        job_ids = enqueueing.enqueue_many(self._connection, arguments=arguments, **self._row)
        self._recorder.add_next(job_ids)
        after_enqueue(self._connection, self._task.name, self._task.queue_name, job_ids)

    def _insert_mixed_chunk(self, chunk: MixedChunk) -> None:
        self._recorder.add(chunk.insert(self._connection))
