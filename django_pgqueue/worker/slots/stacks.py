"""Read the stack of a running job, of a thread or of a coroutine, without the frames of the worker that called it.

A stack has file names, functions and source lines, and never the values of variables.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from contextvars import Context
from pathlib import Path
from traceback import StackSummary
from typing import Any, Final

from django_pgqueue.tasks.context import running_job

WORKER: Final = str(Path(__file__).parents[1])
"""The directory of the worker's modules. A job's stack begins with their frames, and with that of `threading`."""


def stack_of_thread(ident: int | None) -> str:
    """Return the stack of a thread of this process as text, innermost frame last; "" if the thread has ended."""
    frame = sys._current_frames().get(ident or 0)
    return "" if frame is None else _text(traceback.extract_stack(frame))


def stack_of_coroutine(task: asyncio.Task[Any], loop_ident: int | None) -> str:
    """Return the stack of a waiting coroutine, or that of its loop's thread if the coroutine runs at this moment."""
    if getattr(task.get_coro(), "cr_running", False):
        return stack_of_thread(loop_ident)
    return _text(coroutine_frames(task))


def coroutine_frames(task: asyncio.Task[Any]) -> StackSummary:
    """Return the frames of a waiting coroutine, innermost frame last.

    `Task.get_stack()` returns only the outermost frame of a waiting coroutine.
    """
    frames = []
    awaitable: Any = task.get_coro()
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaitable = awaitable.cr_await
    return StackSummary.extract(iter(frames))


def execution_of_thread(ident: int | None, current: asyncio.Task[Any] | None) -> int | None:
    """Return the execution to which the code belongs that the thread of an event loop runs now, or None.

    A subtask and a callback run in the context of the job that created them, also after the job has ended.

    Args:
        ident: The thread.
        current: The task that runs in it, or None.
    """
    frame = sys._current_frames().get(ident or 0)
    while frame is not None:
        if frame.f_code is asyncio.Handle._run.__code__:
            return _execution_in(frame.f_locals["self"]._context)
        frame = frame.f_back
    # The frames of another implementation of the loop, such as uvloop, are not visible. Python 3.12 knows the context.
    get_context = getattr(current, "get_context", None)
    return None if get_context is None else _execution_in(get_context())


def _execution_in(context: Context) -> int | None:
    job = context.get(running_job)
    return None if job is None else getattr(job, "execution_id", None)


def _text(stack: StackSummary) -> str:
    """Return a stack without the frames that led to the job. If it has no others, return all."""
    frames = list(stack)
    first = next((number for number, frame in enumerate(frames) if not _is_of_worker(frame)), 0)
    return "".join(StackSummary.from_list(frames[first:]).format())


def _is_of_worker(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(WORKER) or frame.filename in (threading.__file__, asyncio.events.__file__)
