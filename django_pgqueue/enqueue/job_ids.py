"""The result of `enqueue_many()`: `JobIds`, and the `Recorder` that collects it while `bulk` inserts the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class JobIds(list[int]):
    """The ids of the jobs of an `enqueue_many()`, in the order of the calls.

    Attributes:
        duplicates: Positions of the calls that added no job and changed none, because another job has their unique key.
            The ids at these positions are those of the other jobs. Positions count from 0, in ascending order.
    """

    __slots__ = ("duplicates",)

    def __init__(self, job_ids: Iterable[int] = (), duplicates: Iterable[int] = ()) -> None:
        super().__init__(job_ids)
        self.duplicates = list(duplicates)


class Placed(NamedTuple):
    """The result for the call at a position."""

    place: int
    job_id: int
    is_duplicate: bool = False


class Recorder:
    """Collects the result of each call, or only counts the calls, so that memory use does not grow with them."""

    def __init__(self, *, returning: bool) -> None:
        self.count = 0
        self._returning = returning
        self._ids: list[int] = []
        self._placed: list[Placed] = []

    def add_next(self, job_ids: Sequence[int]) -> None:
        """Record new jobs of the next calls. No call was recorded with `add()` before."""
        self.count += len(job_ids)
        if self._returning:
            self._ids += job_ids

    def add(self, placed: Sequence[Placed]) -> None:
        """Record calls in any order."""
        self.count += len(placed)
        if self._returning:
            self._placed += placed

    def result(self) -> JobIds:
        """Return the ids in the order of the calls."""
        self._placed.sort()
        ids = JobIds(self._ids, (each.place for each in self._placed if each.is_duplicate))
        ids += [each.job_id for each in self._placed]
        return ids
