"""Tasks, exceptions, backoffs and receivers that do what an application's code should not do.

A worker finds the tasks by PGQUEUE["TASK_MODULES"]. The receiver that `PGQUEUE_TEST_RECEIVER` names is connected in
the worker alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue import Chunk, Dead, Retry, Snooze, TaskContext, signals, task
from tests.helpers import wait_until

MODULES = ["tests.app.hostile"]


class HostileText(str):
    """Text whose methods fail."""

    def replace(self, *args: object) -> str:
        raise SystemExit("replace")

    def encode(self, *args: object) -> bytes:
        raise SystemExit("encode")


class HostileMeta(type):
    """A class that cannot be asked for anything."""

    def __getattribute__(cls, name: str) -> object:
        if name in {"__module__", "__qualname__", "__name__"}:
            raise SystemExit(name)
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance: object) -> bool:
        raise SystemExit("__instancecheck__")

    def __repr__(cls) -> str:
        raise SystemExit("__repr__")


class StrExits(Exception):
    """Ends the process that asks what it says."""

    def __str__(self) -> str:
        raise SystemExit("__str__")

    __repr__ = __str__


class StrIsHostile(Exception):
    """Says it in a text whose methods fail."""

    def __str__(self) -> str:
        return HostileText("hostile")


class ClassExits(Exception):
    """Fails when it is asked for its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise SystemExit("__class__")


class MetaExits(Exception, metaclass=HostileMeta):
    """Its class cannot be asked for its name."""


class ModuleIsHostile(Exception):
    """Its module is no name."""

    __module__ = StrExits()  # type: ignore[assignment]


class AttributesExit(Exception):
    """Fails at each attribute."""

    def __getattribute__(self, name: str) -> object:
        raise asyncio.CancelledError(name)


class SnoozeExits(Snooze):
    """Cannot say for how long."""

    def __init__(self) -> None:
        Exception.__init__(self)

    @property
    def after_seconds(self) -> float:  # type: ignore[override]  # a property that fails, in place of an attribute
        raise GeneratorExit


class RetryOfText(Retry):
    """Says it in words."""

    def __init__(self) -> None:
        super().__init__()
        self.after_seconds = "soon"  # type: ignore[assignment]


class DeadExits(StrExits, Dead):
    """Is dead, and cannot say why."""


EXCEPTIONS: dict[str, type[BaseException]] = {
    "str": StrExits,
    "text": StrIsHostile,
    "class": ClassExits,
    "meta": MetaExits,
    "module": ModuleIsHostile,
    "attributes": AttributesExit,
    "snooze": SnoozeExits,
    "retry": RetryOfText,
    "dead": DeadExits,
    "exit": SystemExit,
    "cancelled": asyncio.CancelledError,
    "generator": GeneratorExit,
}


@task(max_attempts=1)
def raise_hostile(name: str) -> None:
    """Raise it."""
    raise EXCEPTIONS[name]


@task(max_attempts=1)
async def raise_hostile_async(name: str) -> None:
    """Raise it on the event loop."""
    raise EXCEPTIONS[name]


@task(max_attempts=1, isolation="process")
def raise_hostile_isolated(name: str) -> None:
    """Raise it in a process of its own."""
    raise EXCEPTIONS[name]


class HostileFloat(float):
    """A number that cannot be used."""

    def __float__(self) -> float:
        raise SystemExit("__float__")


def exits(attempt: int, exception: BaseException | None) -> float:
    """End the process that asks."""
    raise SystemExit("a backoff")


def hangs(attempt: int, exception: BaseException | None) -> float:
    """Never answer."""
    time.sleep(3600)
    return 0.0


BACKOFFS = {
    "exits": exits,
    "cancelled": lambda attempt, exception: (_ for _ in ()).throw(asyncio.CancelledError()),
    "text": lambda attempt, exception: "soon",
    "nan": lambda attempt, exception: float("nan"),
    "negative": lambda attempt, exception: -1.0,
    "infinite": lambda attempt, exception: float("inf"),
    "huge": lambda attempt, exception: 10**400,
    "hostile": lambda attempt, exception: HostileFloat(1.0),
}


@task(max_attempts=2, backoff=exits)
def fail_with_exiting_backoff() -> None:
    """Fail."""
    raise RuntimeError("as asked")


@task(max_attempts=3, backoff=exits)
def crash_with_exiting_backoff(started: str) -> None:
    """Run until it is killed."""
    Path(started).touch()
    time.sleep(60)


@task(max_attempts=3, backoff=hangs)
def crash_with_hanging_backoff(started: str) -> None:
    """Run until it is killed."""
    Path(started).touch()
    time.sleep(60)


@task
def work(number: int = 0) -> int:
    """Do a little."""
    return number


def service(name: str) -> threading.Thread:
    """Return the thread of a service of this worker process, which may not have started it yet."""
    found: list[threading.Thread] = wait_until(
        lambda: [thread for thread in threading.enumerate() if thread.name == f"pgqueue-{name}"]
    )
    return found[0]


@task
def end_service(name: str, done: str) -> int:
    """End a service's thread once, which no error that it meets could; return the process's id."""
    if Path(done).exists():
        return 0
    Path(done).touch()

    def end() -> float:
        raise SystemExit

    thread = service(name)
    thread._survive = end  # type: ignore[attr-defined]
    thread.wake()  # type: ignore[attr-defined]
    return os.getpid()


@task
def throw_into_service(name: str) -> int:
    """Raise `SystemExit` in a service, wherever it is; return the process's id."""
    thread = service(name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    thread.wake()  # type: ignore[attr-defined]
    return os.getpid()


def _hang(**about: object) -> None:
    time.sleep(3600)


def _exit(**about: object) -> None:
    raise SystemExit("a receiver")


def _cancel(**about: object) -> None:
    raise asyncio.CancelledError


def never() -> str:
    """Never answer."""
    time.sleep(3600)
    return ""


@task(unique_key=never)
def hanging_key() -> None:
    """Have a key that is never told."""


@task
def end_slot() -> None:
    """Have the thread of this slot end at its next job, in the middle of the engine's own code."""

    def end(claimed: object) -> None:
        raise SystemExit

    threading.current_thread()._attempt = end  # type: ignore[attr-defined]


def classic_factory(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
    """Take no context and no name, as task factories did before Python 3.11."""
    return asyncio.Task(coroutine, loop=loop)


def raising_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: object) -> asyncio.Task[Any]:
    """Create no task."""
    coroutine.close()
    raise RuntimeError("a task factory")


TASK_FACTORIES: dict[str, Any] = {"classic": classic_factory, "raising": raising_factory}
if sys.version_info >= (3, 12):
    TASK_FACTORIES["eager"] = asyncio.eager_task_factory


@task
async def set_task_factory(kind: str) -> None:
    """Leave a task factory on the event loop."""
    asyncio.get_running_loop().set_task_factory(TASK_FACTORIES[kind])


@task
async def answer(number: int = 0) -> int:
    """Answer from the event loop."""
    return number


@task
async def cancel_all_others() -> None:
    """Cancel every task of the event loop but this one."""
    for other in asyncio.all_tasks() - {asyncio.current_task()}:
        other.cancel()


@task(max_attempts=2, backoff=0)
def end_and_kill_process() -> None:
    """Kill the process after this job has ended and before its end is written. In an isolated process, kill that."""
    completers = [thread for thread in threading.enumerate() if thread.name == "pgqueue-completer"]
    if not completers:
        os.kill(os.getpid(), signal.SIGKILL)
    completer: Any = completers[0]
    completer.tick = lambda: time.sleep(3600)
    wait_until(lambda: not completer.busy_seconds)

    def kill() -> None:
        wait_until(lambda: completer.pending)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def _block_until(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


async def _block_later(path: str) -> None:
    await asyncio.sleep(0)
    Path(path).with_suffix(".blocked").touch()
    _block_until(path)


left: list[asyncio.Task[None]] = []
"""The subtasks that jobs have left, which the event loop itself does not keep alive."""


@task(max_attempts=1)
async def leave_blocking_task(path: str) -> None:
    """Leave a subtask that blocks the event loop until a file exists, once this job has ended."""
    left.append(asyncio.create_task(_block_later(path)))


@task(max_attempts=1)
async def block_in_subtask(path: str) -> str:
    """Wait for a subtask that blocks the event loop until a file exists."""
    await asyncio.gather(_block_later(path))
    return "unblocked"


def _take_long(**about: object) -> None:
    time.sleep(10)


def _ask(**about: object) -> None:
    """Use the database in each event; the first session is terminated."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with open(os.environ["PGQUEUE_TEST_RECEIVER_FILE"], "a", encoding="utf-8") as file:
        file.write(f"{pid}\n")


@task(chunk=5)
def use_orm_in_chunk(chunk: Chunk[int]) -> None:
    """Use the database once for all jobs."""
    Group.objects.count()


def _fork(**about: object) -> None:
    """Fork, and return in both processes, as a library that makes daemons may."""
    os.fork()
    with open(os.environ["PGQUEUE_TEST_RECEIVER_FILE"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


def _end_process(**about: object) -> None:
    """End the process of a worker, three times."""
    file = Path(os.environ["PGQUEUE_TEST_RECEIVER_FILE"])
    ends = len(file.read_text()) if file.exists() else 0
    if ends < 3 and threading.current_thread().name == "pgqueue-callbacks":
        file.write_text("x" * (ends + 1))
        os._exit(7)


class ForksAtEntry:
    """Middleware that forks before the function of the task."""

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        """Fork, and go on in both processes."""
        os.fork()
        yield


class ForksAtExit:
    """Middleware that forks after the function of the task."""

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        """Fork, and go on in both processes."""
        yield
        os.fork()


@task(max_attempts=1)
def note_run(path: str) -> None:
    """Note that the function was called."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


@task(max_attempts=1, atomic=True)
def note_run_atomically(path: str) -> None:
    """Note that the function was called, in a transaction."""
    note_run.func(path)


@task(max_attempts=1, isolation="process")
def note_run_isolated(path: str) -> None:
    """Note that the function was called, in an isolated process."""
    note_run.func(path)


RECEIVERS = {
    "hang": _hang,
    "exit": _exit,
    "cancel": _cancel,
    "long": _take_long,
    "ask": _ask,
    "fork": _fork,
    "end process": _end_process,
}

if receiver := RECEIVERS.get(os.environ.get("PGQUEUE_TEST_RECEIVER", "")):
    for _signal in (signals.job_succeeded, signals.job_failed, signals.job_dead, signals.job_cancelled):
        _signal.connect(receiver)
    if receiver not in (_hang, _take_long, _end_process):
        signals.job_started.connect(receiver)
    signals.job_rescued.connect(receiver)
    signals.job_enqueued.connect(receiver, sender="tests.app.hostile.work")
