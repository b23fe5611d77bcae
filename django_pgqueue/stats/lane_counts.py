"""The ready jobs of one lane, as the statements of `depths` and of `limits.ready` count them."""

from __future__ import annotations

from typing import NamedTuple


class Ready(NamedTuple):
    """The ready jobs of a lane, or of one task in a lane. Each job is in one of the counts."""

    queue_name: str
    priority: int
    task_name: str | None
    due: int
    due_is_cut: bool
    oldest_due_seconds: float | None
    scheduled: int
    retrying: int
    unknown: int
    later_is_cut: bool
    """Whether the lane has more jobs that are due later than were counted."""
    held: int = 0
    held_is_cut: bool = False
    """Whether more of the due jobs can be held, or wait behind the pause of a limit."""
    paused: int = 0
    """The due jobs whose limit or limit key is paused."""
    is_limited: bool = False
    """Whether the jobs have a limit. Then both parts of the lane are counted together."""

    @property
    def has_more_due(self) -> bool:
        """Whether the lane has more due jobs than were counted, which can be those of any task."""
        return self.later_is_cut if self.is_limited else self.due_is_cut
