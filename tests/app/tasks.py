"""Tasks that the tests enqueue; a worker finds them as it finds any application's."""

import asyncio
import ctypes
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from django_pgqueue import Cancel, Dead, Retry, Snooze, TaskContext, task


@task
def noop(*args: object, **kwargs: object) -> None:
    """Do nothing."""


@task
def add(a: int, b: int = 0) -> int:
    """Return a sum."""
    return a + b


@task(takes_context=True)
def attempt_number(context: TaskContext) -> int:
    """Return which attempt this is."""
    return context.attempt


@task
async def async_add(a: int, b: int = 0) -> int:
    """Return a sum, from the event loop."""
    return a + b


@task(max_attempts=2, backoff=0)
def fail(message: str = "as asked") -> None:
    """Fail."""
    raise RuntimeError(message)


@task(max_attempts=1)
def record(path: str, line: str) -> None:
    """Append a line to a file: the tests' own record of what ran."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@task
def wait_for_file(path: str, seconds: float = 30, started: str | None = None) -> str:
    """Say that it started, then wait until a file exists."""
    if started is not None:
        Path(started).touch()
    deadline = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)
    return path


@task(backoff=0)
def wait_again(path: str, started: str) -> str:
    """The same, and at once again if its worker is lost."""
    return wait_for_file(path, 30, started)


@task(takes_context=True)
def fail_slowly_once(context: TaskContext, path: str) -> float:
    """Take a while to fail, and ask for another attempt soon; return how long that took to come."""
    if context.attempt == 1:
        time.sleep(0.8)
        Path(path).write_text(str(time.time()))
        raise Retry("once", after=0.3)
    return time.time() - float(Path(path).read_text())


@task
async def await_file(path: str, seconds: float = 30, started: str | None = None) -> str:
    """Say that it started, then wait until a file exists, on the event loop."""
    if started is not None:
        Path(started).touch()
    deadline = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        await asyncio.sleep(0.01)
    return path


@task(backoff=0)
def segfault() -> None:
    """Take the process down, as a broken C library does."""
    ctypes.string_at(0)


@task(backoff=0)
def exit_at_once(code: int = 1) -> None:
    """End the process without a word."""
    os._exit(code)


@task
def hold_the_interpreter(seconds: float) -> None:
    """Keep the interpreter lock in C code for so long."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))  # PyDLL, unlike CDLL, does not let go of it


@task(atomic=True)
def create_group(name: str) -> int:
    """Write a row in the job's own transaction."""
    return Group.objects.create(name=name).pk


@task(atomic=True)
def create_group_and_wait(name: str, path: str, started: str | None = None) -> int:
    """Write a row, then wait for a file before the transaction ends."""
    pk = Group.objects.create(name=name).pk
    wait_for_file(path, 30, started)
    return pk


@task(atomic=True, max_attempts=1)
def create_group_and_fail(name: str) -> None:
    """Write a row, then fail."""
    Group.objects.create(name=name)
    raise RuntimeError("after the write")


@task(max_attempts=3, backoff=0, takes_context=True)
def fail_until(context: TaskContext, attempt: int) -> int:
    """Fail before the given attempt."""
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task
def raise_directive(kind: str, after: float | None = None) -> None:
    """End as told."""
    if kind == "snooze":
        raise Snooze(after or 0)
    raise {"retry": Retry("again", after=after), "cancel": Cancel("not wanted"), "dead": Dead("hopeless")}[kind]


@task(max_attempts=1)
def raise_exception(kind: str) -> None:
    """Raise what a worker may not expect."""
    if kind == "hostile":
        raise HostileError
    if kind == "unstorable":
        raise RuntimeError("nul \0 and surrogate \ud800 " + "x" * 1_000_000)
    raise {
        "system_exit": SystemExit(1),
        "keyboard_interrupt": KeyboardInterrupt(),
        "generator_exit": GeneratorExit(),
        "base": BaseException("bare"),
        "recursion": RecursionError("deep"),
    }[kind]


class HostileError(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


@task(max_attempts=1)
def return_value(kind: str) -> object:
    """Return what may not be storable."""
    return {"set": {1}, "nan": float("nan"), "nul": "\0", "large": "x" * 100_000, "ok": {"a": [1, 2.5, None]}}[kind]


@task(store_result=False)
def return_unkept() -> object:
    """Return something that is not stored."""
    return {1, 2}


@task(retention=0)
def keeps_nothing() -> None:
    """Leave no trace when it succeeds."""


@task(retention={"succeeded": "forever", "dead": 60})
def kept_for_ever(*, fail: bool = False) -> None:
    """Have a retention of its own."""
    if fail:
        raise Dead("as asked")


@task(no_retry_for=(ValueError,), retry_for=(Exception,), backoff=0)
def picky(kind: str) -> None:
    """Fail in a way that is tried again, or not."""
    raise {"value": ValueError("no"), "os": OSError("yes"), "exit": SystemExit(3)}[kind]


@task(retry_for=OSError, max_attempts=3, backoff=0)
def asks_for_more() -> None:
    """Ask for another attempt, in a task that is picky about errors."""
    raise Retry("please")


@task
def spoil(kind: str) -> None:
    """Leave this thread's connection in a state of its own."""
    if kind == "transaction":
        transaction.set_autocommit(False)
        Group.objects.count()
    elif kind == "closed":
        connection.close()
    elif kind == "killed":
        with connection.cursor() as cursor, suppress(OperationalError):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    elif kind == "atomic":
        transaction.atomic().__enter__()
        Group.objects.create(name="never committed")
    else:
        with connection.cursor() as cursor:
            cursor.execute(kind)


@task
def session_state() -> list[str]:
    """Return what the last job may have left behind on the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        timeout = cursor.fetchone()[0]
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        locks = cursor.fetchone()[0]
        cursor.execute("SELECT count(*) FROM pg_class WHERE relname = 'left_behind'")
        tables = cursor.fetchone()[0]
    return [timeout, str(locks), str(tables), str(connection.in_atomic_block), str(connection.get_autocommit())]


@task
async def async_orm() -> list[str]:
    """Use the asynchronous ORM; return the thread and the backend that it ran on."""

    def where() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return [threading.current_thread().name, str(cursor.fetchone()[0])]

    await Group.objects.acount()
    return await sync_to_async(where)()


@task
def overlap(path: str) -> None:
    """Record begin and end, some time apart."""
    mark(path, "begin")
    time.sleep(0.02)
    mark(path, "end")


@task
async def async_overlap(path: str) -> None:
    """The same on the event loop."""
    mark(path, "begin")
    await asyncio.sleep(0.02)
    mark(path, "end")


def mark(path: str, word: str) -> None:
    """Append a word: one write, so that words of several threads do not mix."""
    with open(path, "ab", buffering=0) as file:
        file.write(f"{word}\n".encode())


@task
async def end_the_loop() -> None:
    """Have a subtask ask the process to exit, as a command-line library called from a coroutine may."""

    async def leave() -> None:
        raise SystemExit(3)

    await asyncio.gather(leave())


@task
def say(word: str) -> None:
    """Print, to wherever the worker prints."""
    print(word)  # noqa: T201 -- that is the point


@task
def echo(number: int) -> int:
    """Return a number by way of the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::int", [number])
        return int(cursor.fetchone()[0])


@task
def backend() -> int:
    """Return which of the server's processes this thread's connection leads to."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


_leaked: list[bytearray] = []


@task
def leak_memory(mib: int) -> None:
    """Take memory for good, in no hurry."""
    _leaked.append(bytearray(b"x") * (mib * 2**20))
    time.sleep(0.1)
