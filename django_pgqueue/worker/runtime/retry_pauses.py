"""Decide how long a loop of the worker waits after an error. `Service` and the supervisor use it.

A lost connection costs no pause if a new one can be opened at once. Other errors keep a long backoff, because a
statement that fails would fail again.
"""

from __future__ import annotations

import random
import time
from typing import Final

from django_pgqueue.db.reconnects import NotConnected, is_lost_connection, pause_seconds

ERROR_PAUSE_SECONDS: Final = 1.0
ERROR_PAUSE_LIMIT_SECONDS: Final = 5.0
"""After errors other than lost connections a loop waits for 1, 2, 4, 5, 5 … s, each up to 30 % longer. This bounds the
delay after an outage."""


class RetryPauses:
    """The pauses of one loop."""

    def __init__(self) -> None:
        self.errors_in_a_row = 0
        self._losses = 0

    def succeeded(self) -> None:
        """Record that a round has succeeded."""
        self.errors_in_a_row = self._losses = 0

    def after(self, error: BaseException) -> float:
        """Return how many seconds to wait after an error."""
        self.errors_in_a_row += 1
        if isinstance(error, NotConnected):
            return max(0.0, error.retry_at - time.monotonic())
        if is_lost_connection(error):
            self._losses += 1
            return pause_seconds(self._losses - 1)
        grown = ERROR_PAUSE_SECONDS * 2.0 ** min(self.errors_in_a_row - 1, 10)
        return min(grown, ERROR_PAUSE_LIMIT_SECONDS) * random.uniform(1, 1.3)  # noqa: S311 -- spreads load
