"""Count the forks that led to this process. An attempt uses the count to detect that its task has forked.

A task may fork. The child process must not report a result in place of its parent.
"""

from __future__ import annotations

import os


class _Here:
    """The number of forks, incremented in every child. Calling `os.getpid()` per job took a tenth of the job's time."""

    copy = 0


def _count() -> None:
    here.copy += 1


here = _Here()
os.register_at_fork(after_in_child=_count)
