"""Results of other jobs in the arguments of a workflow's nodes: placeholders in Python, and their stored form.

`Node.result` is a `ResultPlaceholder`. When the workflow is enqueued, the placeholders become markers: JSON objects
with the ids of jobs. The worker replaces the markers by the results before the node runs. A list of results is one
marker with ranges of ids, so that it stays small for thousands of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

MARK: Final = "pgqueue_result"
"""The key of a marker. Its value is the id of a job, or a list of ranges of ids."""
OR_NONE: Final = "or_none"
"""A second key of a marker: true if a failed job has the result None."""


class ResultPlaceholder:
    """Stands for the result of a node in the arguments of another one.

    Args:
        node: The node.
        is_optional: Whether the result is None if the node fails.
    """

    __slots__ = ("is_optional", "node")

    def __init__(self, node: Any, *, is_optional: bool) -> None:
        self.node = node
        self.is_optional = is_optional

    def __repr__(self) -> str:
        return f"<the result of {self.node!r}>"

    def _refuse(self, *args: object) -> NoReturn:
        raise TypeError(UNKNOWN_YET)

    __bool__ = __eq__ = __format__ = __getitem__ = __iter__ = __len__ = __str__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"no attribute {name!r}: {UNKNOWN_YET}", name=name, obj=self)


UNKNOWN_YET: Final = (
    "the result of a workflow's node is not known before the node has run: pass it to another node as an argument, "
    "alone or in a list, a tuple or a dict. To use a part of it, let that node's task take it apart"
)


class Marker(NamedTuple):
    """A marker in stored arguments."""

    ranges: list[tuple[int, int]]
    """First and last ids of jobs, in the order of the results."""
    is_list: bool
    is_optional: bool

    @property
    def job_ids(self) -> Iterator[int]:
        """The ids of the jobs."""
        return (job_id for first, last in self.ranges for job_id in range(first, last + 1))


def placeholders_in(value: Any) -> Iterator[ResultPlaceholder]:
    """Yield the placeholders in an argument."""
    if isinstance(value, ResultPlaceholder):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from placeholders_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from placeholders_in(item)


def has_placeholders(value: Any) -> bool:
    """Return whether an argument contains a placeholder."""
    return next(placeholders_in(value), None) is not None


def with_markers(value: Any, id_of: Callable[[Any], int]) -> Any:
    """Return an argument with markers in place of its placeholders. `id_of` returns the id of the job of a node."""
    if isinstance(value, ResultPlaceholder):
        return {MARK: id_of(value.node), **({OR_NONE: True} if value.is_optional else {})}
    if isinstance(value, list | tuple):
        if len(value) > 1 and all(isinstance(item, ResultPlaceholder) for item in value):
            optional = {item.is_optional for item in value}
            if len(optional) == 1:
                return {
                    MARK: ranges_of(id_of(item.node) for item in value),
                    **({OR_NONE: True} if optional.pop() else {}),
                }
        return [with_markers(item, id_of) for item in value]
    if isinstance(value, dict):
        refuse_markers(value)
        return {key: with_markers(item, id_of) for key, item in value.items()}
    refuse_markers(value)
    return value


def ranges_of(job_ids: Iterable[int]) -> list[list[int]]:
    """Return ids as ranges of consecutive ids, in their order."""
    ranges: list[list[int]] = []
    for job_id in job_ids:
        if ranges and ranges[-1][1] == job_id - 1:
            ranges[-1][1] = job_id
        else:
            ranges.append([job_id, job_id])
    return ranges


def refuse_markers(value: Any) -> None:
    """Raise `ValueError` if an argument contains an object that would be stored like a marker.

    It looks into all types that `normalise()` accepts. A caller's data could otherwise read the result of another job.
    """
    if isinstance(value, Mapping):
        if MARK in value:
            raise ValueError(
                f"an argument of a workflow's node contains an object with the key {MARK!r}, which is reserved: "
                "choose another key"
            )
        value = value.values()
    elif not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        return
    for item in value:
        refuse_markers(item)


def marker_of(value: Any) -> Marker | None:
    """Return the marker that a stored value is, or None."""
    if type(value) is not dict or MARK not in value:
        return None
    jobs = value[MARK]
    if isinstance(jobs, list):
        return Marker([(first, last) for first, last in jobs], is_list=True, is_optional=OR_NONE in value)
    return Marker([(jobs, jobs)], is_list=False, is_optional=OR_NONE in value)


def markers_in(value: Any) -> Iterator[Marker]:
    """Yield the markers in a stored value."""
    marker = marker_of(value)
    if marker is not None:
        yield marker
        return
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        yield from markers_in(item)


def with_results(value: Any, result_of: Callable[[int, bool], Any]) -> Any:
    """Return a stored value with results in place of its markers.

    `result_of` gets the id of a job, and whether its result is None if it has failed.
    """
    marker = marker_of(value)
    if marker is not None:
        results = [result_of(job_id, marker.is_optional) for job_id in marker.job_ids]
        return results if marker.is_list else results[0]
    if isinstance(value, list):
        return [with_results(item, result_of) for item in value]
    if isinstance(value, dict):
        return {key: with_results(item, result_of) for key, item in value.items()}
    return value
