"""Chunks: the jobs that a task with the option `chunk` gets in one call of its function.

The worker makes a `Chunk` for each call, and the function reads it and marks single jobs as failed. This module also
has the keys by which claims find the jobs of such tasks.

Jobs of a task with `chunk` have a *chunk key* in the column `limit_key`, so claims of other jobs do not see them. A
chunk key begins with a character that no limit's name has.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, overload

from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.plurals import counted
from django_pgqueue.ground.signatures import signature_of

T = TypeVar("T")
KEY_PREFIX: Final = "+"
MAX_CHUNK: Final = 1000
"""Maximum jobs of a chunk. Larger ones were not faster, and a crash would charge more jobs."""
MAX_WAIT_SECONDS: Final = 3600.0


def chunk_key(task_name: str) -> str:
    """Return the value of `limit_key` of the jobs of a task with `chunk`."""
    return KEY_PREFIX + task_name


def task_of_key(key: str) -> str:
    """Return the name of the task with `chunk` to which a chunk key belongs."""
    return key.removeprefix(KEY_PREFIX)


def is_chunk_key(limit_key: str) -> bool:
    """Return whether a value of `limit_key` is a chunk key, and not the key of a limit."""
    return limit_key.startswith(KEY_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkJob(Generic[T]):
    """A job of a chunk."""

    item: T = field(repr=False)
    """The argument of the job's call."""
    id: int | None = None
    """Id of the job, or None without a job."""
    attempt: int = 1
    """Number of the attempt, from 1."""
    max_attempts: int = 1
    """Maximum number of attempts of the job."""
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Headers of the job."""
    asked_to_cancel: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Set by the worker. Call `cancel_requested()` instead."""

    @property
    def is_last_attempt(self) -> bool:
        """Whether this is the last attempt: the job is dead if it fails."""
        return self.attempt >= self.max_attempts

    def cancel_requested(self) -> bool:
        """Return whether this job was asked to cancel. The call runs no query."""
        return self.asked_to_cancel()


class Chunk(Sequence[ChunkJob[T]]):
    """The jobs of one call, in the order in which they are due. `T` is the type of the argument of each job.

    Example::

        @task(chunk=100, chunk_wait=0.2)
        def store(chunk: Chunk[Reading]) -> None:
            Row.objects.bulk_create(Row(sensor=item.sensor, value=item.value) for item in chunk.items)
    """

    def __init__(self, jobs: Sequence[ChunkJob[T]]) -> None:
        self._jobs = tuple(jobs)
        self._errors: dict[ChunkJob[T], Exception] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ChunkJob[T]]:
        return iter(self._jobs)

    @overload
    def __getitem__(self, place: int) -> ChunkJob[T]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ChunkJob[T]]: ...
    def __getitem__(self, place: int | slice) -> ChunkJob[T] | Sequence[ChunkJob[T]]:
        return self._jobs[place]

    def __repr__(self) -> str:
        """Return the ids of the jobs without their arguments, which can be secret."""
        return f"Chunk({[job.id for job in self._jobs]})"

    @property
    def items(self) -> list[T]:
        """The arguments of all jobs, in order."""
        return [job.item for job in self._jobs]

    def fail(self, job: ChunkJob[T], error: Exception) -> None:
        """End a job as if its function had raised this exception. The other jobs of the chunk are not concerned.

        The exceptions that a task can raise mean the same here: `Retry`, `Dead`, `Snooze` and `Cancel`. The last call
        for a job counts. In a task with `atomic=True`, what the function has written for this job is not undone.

        Args:
            job: A job of this chunk.
            error: The exception.

        Raises:
            TypeError: `error` is not an exception.
            ValueError: The job is not in this chunk.
        """
        if not isinstance(error, Exception):
            raise TypeError(f"chunk.fail() needs an exception, not {type(error).__name__}: pass ValueError(…)")
        if not any(job is each for each in self._jobs):
            raise ValueError(f"chunk.fail(): {job!r} is not a job of this chunk: pass a job from the chunk itself")
        self._errors[job] = error

    def error_of(self, job: ChunkJob[T]) -> Exception | None:
        """Return the exception that `fail()` has set for a job, or None."""
        return self._errors.get(job)


def results_of(chunk: Chunk[Any], value: Any) -> Sequence[Any]:
    """Return the result of each job from the return value of the function.

    Raises `Dead` if the value has no result for each job. The work is done, so no attempt repeats it.
    """
    if value is None:
        return [None] * len(chunk)
    advice = "return None, or a list with one result for each job, in order"
    if not isinstance(value, list | tuple):
        raise Dead(f"the task returned a {type(value).__name__} for a chunk of {counted(len(chunk))}: {advice}")
    if len(value) != len(chunk):
        raise Dead(f"the task returned {counted(len(value), 'result')} for a chunk of {counted(len(chunk))}: {advice}")
    return value


def called_with_one(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function of a task with a chunk of one item, without a job. Return the item's result, or a coroutine.

    Raises the exception with which the function marks the item as failed.
    """
    [item] = signature_of(func).bind(*args, **kwargs).arguments.values()
    chunk = Chunk([ChunkJob(item=item)])
    value = func(chunk)
    return _awaited(chunk, value) if inspect.iscoroutine(value) else _only_result(chunk, value)


async def _awaited(chunk: Chunk[Any], coroutine: Any) -> Any:
    return _only_result(chunk, await coroutine)


def _only_result(chunk: Chunk[Any], value: Any) -> Any:
    if (error := chunk.error_of(chunk[0])) is not None:
        raise error
    return results_of(chunk, value)[0]


def annotations_of_item(hints: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations of a function as those of one job, if one of its parameters is a `Chunk`."""
    found = [name for name, hint in hints.items() if Chunk in (hint, typing.get_origin(hint))]
    if not found:
        return hints
    of_item = {name: next(iter(typing.get_args(hints[name])), Any) for name in found}
    results = hints.get("return", Any)
    if typing.get_origin(results) in (list, tuple, Sequence):
        of_item["return"] = next(iter(typing.get_args(results)), Any)
    return {**hints, **of_item}
