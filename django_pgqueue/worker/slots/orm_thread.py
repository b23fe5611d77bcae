"""Keep the connections of the asynchronous ORM clean, for one event loop.

All asynchronous ORM calls of a process run in one thread of asgiref, on one connection for each database. `LoopSlots`
calls `before_job()` and `after_job()` around each coroutine job. Everything here runs in the thread of the event loop;
what changes a connection is passed to the thread of the ORM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from asgiref.sync import sync_to_async

from django_pgqueue.worker.runtime import django_connections


class OrmThread:
    """The connections of the asynchronous ORM.

    Args:
        loop: The event loop that uses them.
        running: The jobs that run on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Sized) -> None:
        self._loop = loop
        self._running = running
        self._generation = django_connections.generation()
        self._used_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._close_task: asyncio.Task[None] | None = None

    async def before_job(self) -> int:
        """Close connections that are older than the last loss of the server. Return what `after_job()` needs."""
        if django_connections.generation() != self._generation:
            self._generation = django_connections.generation()
            await sync_to_async(django_connections.before_job)()
        return django_connections.statements_off_slots()

    async def after_job(self, statements: int) -> None:
        """Clean up the connections if any job has used them since `before_job()` returned `statements`."""
        if django_connections.statements_off_slots() == statements:
            return
        await sync_to_async(django_connections.after_job)()
        self._used_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(django_connections.IDLE_SECONDS, self._close_unused)

    def _close_unused(self) -> None:
        """Close the connections if no job has used them for a while: one timer at a time."""
        left_seconds = self._used_at + django_connections.IDLE_SECONDS - self._loop.time()
        if self._running or left_seconds > 0:
            wait_seconds = left_seconds if left_seconds > 0 else django_connections.IDLE_SECONDS
            self._timer = self._loop.call_later(wait_seconds, self._close_unused)
            return
        self._timer = None
        # Without the loop's task factory, which a job may have set.
        self._close_task = asyncio.Task(sync_to_async(self._close_if_idle)(), loop=self._loop)

    def _close_if_idle(self) -> None:
        """Close this thread's connections unless a job has started since. Its statements wait for this thread."""
        if not self._running:
            django_connections.close_idle()
