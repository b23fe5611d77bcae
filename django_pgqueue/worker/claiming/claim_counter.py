"""Count how many claims of a worker process have begun, and how many have ended.

The fetcher counts, in its own thread. The lease monitor reads the counts. An execution that is open in the database but
not in flight in this process may belong to a claim whose answer has not arrived yet. The lease monitor may release such
an execution only after that claim has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ClaimCounter:
    """The claims of one thread. Any thread may read the counts."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """A claim has ended when its jobs are in flight, or when it has failed and its jobs never will be."""

    @contextmanager
    def claim_under_way(self) -> Iterator[None]:
        """Count one claim: as begun before its statement is sent, as ended after its answer was processed."""
        self.begun += 1
        try:
            yield
        finally:
            self.ended += 1
