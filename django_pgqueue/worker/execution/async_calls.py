"""Count the durable steps that the coroutines of one attempt have begun, so that none of them is left behind.

`AttemptSteps` passes its calls from coroutines through `beside()`, and the attempt awaits the task in `around()`. They
protect one rule: an attempt does not end while the function of a step runs, unless the worker stops it. Otherwise the
next attempt would call this function again beside the first one. All code here runs in the event loop of the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from django_pgqueue.steps import Suspended


class AsyncCalls:
    """The calls of one attempt that are under way: `asyncio.gather()` can make several."""

    def __init__(self) -> None:
        self.is_over = False
        """Whether the function of the task has ended."""
        self._running = 0
        self._idle = asyncio.Event()

    async def beside(self, call: Awaitable[Any]) -> Any:
        """Await a call. Before a suspension ends the attempt, let the steps beside it finish and be stored.

        A task group would cancel them otherwise.
        """
        self._running += 1
        self._idle.clear()
        try:
            try:
                return await call
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()
        except Suspended:
            await self._wait()
            raise

    async def around(self, function: Awaitable[Any]) -> Any:
        """Await the function of the task, and then the steps that it has left running, for example by a failure."""
        try:
            value = await function
        except asyncio.CancelledError:  # the worker stops the attempt
            self.is_over = True
            raise
        except BaseException:
            await self._end()
            raise
        await self._end()
        return value

    async def _end(self) -> None:
        self.is_over = True
        await self._wait()

    async def _wait(self) -> None:
        while self._running:
            await self._idle.wait()
