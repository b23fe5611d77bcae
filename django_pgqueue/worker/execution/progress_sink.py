"""The interface to which an attempt reports the progress and the log lines of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_pgqueue.job_log import RecordedLine
    from django_pgqueue.lifecycle import ExecutionKey
    from django_pgqueue.progress import Progress


class ProgressSink(Protocol):
    """Receives what a task reports while it runs."""

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Keep the progress of an attempt. Return without waiting."""

    def open_log(self, key: ExecutionKey) -> Callable[[RecordedLine], None]:
        """Return a function that keeps a log line of an attempt, and returns without waiting."""
