"""The interface to which an attempt reports the progress of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import ExecutionKey
    from django_pgqueue.progress import Progress


class ProgressSink(Protocol):
    """Receives the progress that a task reports."""

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Keep the progress of an attempt. Return without waiting."""
