"""How many of the due jobs of a limit key its limit admits now. `ready` calls this module; the others are held.

The rules are those of the statement CLAIM_KEYS: a key admits its jobs in the order of their times, up to its free slots
and the tokens of its rate. The first job that does not fit keeps back those behind it. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from django_pgqueue.states import State

from .waits import KeyState, used_seconds

if TYPE_CHECKING:
    from django_pgqueue.declared.limit_policies import KeyPolicy


class DueJobs(NamedTuple):
    """The ready jobs of one limit key, task and weight in one lane, with the columns of READY_LIMITED."""

    queue_name: str
    priority: int
    limit_key: str | None
    """None: the jobs that are due later, and the due jobs of keys behind the first ones of the lane."""
    task_name: str
    weight: int
    due: int
    is_cut: bool
    """Whether the lane has more jobs with a limit than were counted."""
    oldest_due_seconds: float | None
    scheduled: int
    retrying: int
    unknown: int
    places: Sequence[int] | None
    """The places in the lane of those due jobs that are among its first ones."""


class Admitted(NamedTuple):
    """How many due jobs of one `DueJobs` its limit admits now."""

    jobs: int
    oldest_due_seconds: float | None
    is_exact: bool = True


NONE_ADMITTED: Final = Admitted(0, None)
UNLIMITED: Final = 1_000_000_000
ROUNDING: Final = 1e-6
"""A token that has come back but for this part of it counts: times are in microseconds in the database."""


class Room:
    """The free slots and tokens of a key, which its jobs take one after the other."""

    def __init__(self, policy: KeyPolicy, state: KeyState) -> None:
        self._concurrency = policy.concurrency or UNLIMITED
        self._burst = UNLIMITED if policy.interval_seconds is None else policy.burst
        self._slots = 0 if state.is_held else max(self._concurrency - state.running_weight, 0)
        self._tokens = self._burst
        if policy.interval_seconds is not None:
            used = used_seconds(policy, state, policy.interval_seconds) / policy.interval_seconds
            self._tokens = int(policy.burst - used + ROUNDING)

    @property
    def has_fewer_tokens(self) -> bool:
        """Whether its tokens run out before its slots, if each job takes one of both."""
        return self._tokens < self._slots

    def take(self, count: int, weight: int) -> int:
        """Return how many of some jobs with this weight fit, and let these take their slots and tokens."""
        slots, tokens = min(weight, self._concurrency), min(weight, self._burst)
        fitting = min(count, self._slots // slots, self._tokens // tokens)
        self._slots -= fitting * slots
        self._tokens -= fitting * tokens
        return fitting


def admitted(policy: KeyPolicy, state: KeyState, parts: Sequence[DueJobs]) -> list[Admitted]:
    """Return how many jobs of each part of a key it admits.

    If the key has jobs in several lanes, those with the highest priority count first, because claims of these lanes
    come first.
    """
    room = Room(policy, state)
    if policy.is_ordered and state.head_id is not None:
        can_start = state.head_state == State.READY and (state.head_due_seconds or 0.0) <= 0
        fits = can_start and room.take(1, state.head_weight)
        return [_head_in(part, state) if fits else NONE_ADMITTED for part in parts]
    counts, is_exact = [0] * len(parts), True
    for lane in sorted({lane_order(part) for part in parts}):
        of_lane = [number for number, part in enumerate(parts) if lane_order(part) == lane]
        for number, count, is_in_order in _in_order(parts, of_lane):
            fitting = room.take(count, parts[number].weight)
            counts[number] += fitting
            if fitting < count:
                is_exact = is_exact and is_in_order
                break
    return [
        Admitted(count, part.oldest_due_seconds if count else None, is_exact)
        for count, part in zip(counts, parts, strict=True)
    ]


def lane_order(part: DueJobs) -> tuple[int, str]:
    """Return the sort key of the lane of these jobs: claims take from the highest priority first."""
    return -part.priority, part.queue_name


def _in_order(parts: Sequence[DueJobs], of_lane: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield the parts of a key in a lane as claims meet them: the part, how many jobs, and whether the order is known.

    The order of the jobs behind the first ones of the lane is known only if they are of one part.
    """
    places = {number: parts[number].places or () for number in of_lane}
    yield from ((number, 1, True) for _, number in sorted((at, number) for number in of_lane for at in places[number]))
    left = [number for number in of_lane if parts[number].due > len(places[number])]
    yield from ((number, parts[number].due - len(places[number]), len(left) == 1) for number in left)


def _head_in(part: DueJobs, state: KeyState) -> Admitted:
    """Return the first job of an ordered key, if it is one of these jobs."""
    place = (state.head_queue_name, state.head_priority, state.head_task_name, state.head_weight)
    if place != (part.queue_name, part.priority, part.task_name, part.weight):
        return NONE_ADMITTED
    return Admitted(1, -(state.head_due_seconds or 0.0))
