"""How many claims of a worker process have begun, and how many have ended.

The fetcher counts, in its own thread. The watch over the leases reads: an execution that is open, and that this
process does not hold, may belong to a claim whose answer is still under way. It may be released only after that claim
has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ClaimCounter:
    """Counts the claims of one thread; any thread may read."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """A claim has ended when the process holds its jobs, or when it has failed and nobody will hold them."""

    @contextmanager
    def claim_under_way(self) -> Iterator[None]:
        """Count one claim: begun before its statement is sent, ended after its answer was processed."""
        self.begun += 1
        try:
            yield
        finally:
            self.ended += 1
