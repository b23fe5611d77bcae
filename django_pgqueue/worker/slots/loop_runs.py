"""Run an event loop, and decide after each end whether it is started again or is broken.

`LoopSlots` calls this in the loop's thread. A loop that ends as soon as it starts must not be started for ever: each
start takes the processor, and logs a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from django_pgqueue.log_events import event

logger = logging.getLogger("django_pgqueue.worker")

AT_ONCE_SECONDS: Final = 0.01
"""A loop that ends within this time of its start has probably done nothing."""
AT_ONCE_LIMIT: Final = 100
"""How many times in a row a loop may end at once because jobs stop it, by `loop.stop()` or a `SystemExit` of a subtask.
All other exceptions are those of the loop itself, for example because a job has closed its selector."""


class LoopRuns:
    """Runs one event loop, again and again, and counts how many times in a row it ends as soon as it starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._in_a_row = 0

    def run(self) -> bool:
        """Run the loop until it ends. Return whether it is broken."""
        began, limit = time.monotonic(), AT_ONCE_LIMIT
        try:
            self._loop.run_forever()
        except BaseException as error:  # a subtask's SystemExit arrives here; it must not stop the other jobs
            limit = AT_ONCE_LIMIT if isinstance(error, (SystemExit, KeyboardInterrupt)) else 1
            logger.exception(
                "a subtask raised an exception that stopped the event loop; the loop is started again",
                extra=event("event_loop_interrupted"),
            )
        self._in_a_row = self._in_a_row + 1 if time.monotonic() - began < AT_ONCE_SECONDS else 0
        return self._in_a_row >= limit
