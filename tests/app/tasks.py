"""Tasks that the tests enqueue; a worker finds them as it finds any application's."""

import asyncio
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from django_pgqueue import (
    Batch,
    Cancel,
    Dead,
    Retry,
    Snooze,
    TaskCancelled,
    TaskContext,
    TaskTimeout,
    Throttled,
    fixed,
    task,
)
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry


@task
def noop(*args: object, **kwargs: object) -> None:
    """Do nothing."""


@task
def add(a: int, b: int = 0) -> int:
    """Return a sum."""
    return a + b


@task
def plus(a: Any, b: Any = 0) -> Any:
    """Return a sum of anything: numbers, or two strings. Its arguments are not checked."""
    return a + b


@task(takes_context=True)
def attempt_number(context: TaskContext) -> int:
    """Return which attempt this is."""
    return context.attempt


@task
async def async_add(a: int, b: int = 0) -> int:
    """Return a sum, from the event loop."""
    return a + b


@task
async def async_plus(a: Any, b: Any = 0) -> Any:
    """Do as `plus()` on the event loop."""
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
def hold_the_interpreter(seconds: float, started: str | None = None) -> None:
    """Keep the interpreter lock in C code for so long."""
    if started:
        Path(started).touch()
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


ran: list[str] = []


def _value(kind: str) -> object:
    ran.append(kind)
    return {"set": {1}, "nan": float("nan"), "nul": "\x00", "large": "x" * 70_000}[kind]


@task(max_attempts=10, backoff=0)
def return_often(kind: str) -> object:
    """Return what is no JSON, with attempts left."""
    return _value(kind)


@task(max_attempts=10, backoff=0)
async def async_return_often(kind: str) -> object:
    """The same from the event loop."""
    return _value(kind)


@task(max_attempts=10, backoff=0, atomic=True)
def return_often_atomic(kind: str) -> object:
    """The same after a write in the job's transaction."""
    Group.objects.create(name=kind)
    return _value(kind)


@task(max_attempts=10, backoff=0, store_result=False)
def return_unrun(kind: str) -> object:
    """Return something that would still have to run."""

    async def work() -> None: ...

    async def numbers() -> AsyncIterator[int]:
        yield 1

    if kind == "future":
        return concurrent_future()
    return {"coroutine": work, "async generator": numbers, "generator": lambda: (n for n in [1])}[kind]()


def concurrent_future() -> object:
    """Return what can be awaited, and is no coroutine."""

    class Awaitable:
        def __await__(self) -> object:
            return iter(())

    return Awaitable()


@task(atomic=True, max_attempts=5)
def create_group_and_fail_on_commit(name: str) -> None:
    """Write a row, and fail once it is committed."""

    def fail() -> None:
        raise RuntimeError("after the commit")

    Group.objects.create(name=name)
    transaction.on_commit(fail)


@task(atomic=True, takes_context=True)
def create_group_and_progress(context: TaskContext, name: str) -> None:
    """Write a row, and tell progress without a total."""
    Group.objects.create(name=name)
    context.progress(1)


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
    if kind == "throttled":
        raise Throttled(after or 0)
    raise {"retry": Retry("again", after=after), "cancel": Cancel("not wanted"), "dead": Dead("hopeless")}[kind]


@task
async def throttle_async(after: float) -> None:
    """Hold the limit key, from a coroutine."""
    raise Throttled(after)


@task(atomic=True)
def throttle_atomically(after: float) -> None:
    """Write a row and hold the limit key. The row is rolled back, the hold is not."""
    Group.objects.create(name="rolled back")
    raise Throttled(after)


@task
def enqueue_more(limit_name: str, count: int) -> None:
    """Enqueue jobs of this task, with a limit that a task of the test declares."""
    if count:
        enqueue_more.using(limit=registry.limits()[limit_name]).enqueue(limit_name, count - 1)


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


@task(retention=0)
def wait_and_keep_nothing(path: str) -> None:
    """Wait for a file, then do the same."""
    wait_for(path)


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
def add_at_commit() -> None:
    """Enqueue another when the transaction that it runs in has committed."""
    transaction.on_commit(noop.enqueue)


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
        cursor.execute(
            "SELECT count(*) FROM pg_class WHERE relname = 'left_behind' AND relnamespace = pg_my_temp_schema()"
        )
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
def overlap(path: str, seconds: float = 0.02) -> None:
    """Record begin and end, some time apart."""
    mark(path, "begin")
    time.sleep(seconds)
    mark(path, "end")


@task
async def async_overlap(path: str, seconds: float = 0.02) -> None:
    """The same on the event loop."""
    mark(path, "begin")
    await asyncio.sleep(seconds)
    mark(path, "end")


@task
def overlap_until(path: str, go_on: str) -> None:
    """Record begin and end, the end after another file exists."""
    mark(path, "begin")
    wait_for_file(go_on)
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


# ------------------------------------------------------------------------------- timeouts


@task(timeout=0.5, max_attempts=1)
def spin() -> None:
    """Compute until stopped."""
    while True:
        sum(range(1000))


@task(timeout=0.5, max_attempts=1)
def sleep_in_c(seconds: float) -> None:
    """Sleep in one call that no exception can end."""
    time.sleep(seconds)


@task(timeout=0.5, max_attempts=1)
def clean_up_in_time() -> str:
    """Notice the timeout, clean up, and return."""
    try:
        while True:
            time.sleep(0.01)
    except TaskTimeout:
        return "cleaned up"


@task(timeout=0.2, max_attempts=1)
def log_all_the_time() -> None:
    """Write lines to a log that other threads write to as well."""
    while True:
        sum(range(100_000))
        logging.getLogger("django_pgqueue.tests").info("still here")


@task(timeout=0.5, max_attempts=1)
def wait_for_the_server() -> None:
    """Run a query that takes long."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@task(timeout=0.5, max_attempts=1, atomic=True)
def create_group_and_stay(name: str, path: str) -> None:
    """Write a row, and take no notice of the timeout; return when a file exists."""
    Group.objects.create(name=name)
    while True:
        with suppress(BaseException):  # around all of the loop, because the timeout can arrive anywhere in it
            while not Path(path).exists():
                time.sleep(0.05)
            return


@task(timeout=0.5, max_attempts=1)
async def await_for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


@task(timeout=0.5, max_attempts=1)
async def await_stubbornly(path: str) -> None:
    """Take no notice of being cancelled, until a file exists."""
    while not Path(path).exists():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@task(timeout=0.5, max_attempts=1)
async def block_the_loop(path: str) -> None:
    """Keep the event loop from all others, until a file exists."""
    while not Path(path).exists():
        time.sleep(0.05)


@task(timeout=0.5, max_attempts=2, backoff=0)
def hold_the_interpreter_for_ever() -> None:
    """Stay in C code that keeps the interpreter to itself."""
    ctypes.PyDLL(None).sleep(600)


# ------------------------------------------------------------------------------- isolation


@task(isolation="process", takes_context=True, max_attempts=10, backoff=0)
def die(context: TaskContext, how: str) -> None:
    """End the process, one way or another."""
    end_process(how)


@task(takes_context=True, max_attempts=10, backoff=0)
def die_once(context: TaskContext) -> int:
    """Take the worker process down at the first attempt; return the process of the second."""
    if context.attempt == 1:
        end_process("segfault")
    return os.getpid()


@task(isolation="process")
def isolated_pid(path: str | None = None, started: str | None = None) -> int:
    """Return the process that runs this, once a file exists."""
    if started is not None:
        Path(started).touch()
    while path is not None and not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@task
def pid() -> int:
    """Return the process that runs this."""
    return os.getpid()


@task
async def async_pid() -> int:
    """Return the process that runs this, from the event loop."""
    return os.getpid()


@task(isolation="process")
async def isolated_async_add(a: int, b: int) -> int:
    """Return a sum."""
    await asyncio.sleep(0)
    return a + b


@task(isolation="process", atomic=True)
def isolated_create_group(name: str) -> list[int]:
    """Write a row in the transaction of the finish."""
    return [Group.objects.create(name=name).pk, os.getpid()]


@task(isolation="process", max_attempts=1)
def isolated_fail(message: str) -> None:
    """Fail."""
    raise RuntimeError(message)


@task(isolation="process", timeout=0.5, max_attempts=2, backoff=0)
def loop_in_c() -> None:
    """Never return from one call."""
    re.match("(a+)+$", "a" * 60 + "b")


@task(isolation="process")
def leave_a_thread() -> int:
    """Leave a thread running; return the process."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


@task(isolation="process")
def leave_behind(what: str) -> int:
    """Leave something behind that is the whole process's; return the process."""
    match what:
        case "directory":
            os.chdir("/")
        case "umask":
            os.umask(0o777)
        case "alarm":
            signal.alarm(1)
        case "handler":
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        case _:
            raise ValueError(what)
    return os.getpid()


@task(isolation="process", max_attempts=1)
def fork_and_come_back(name: str) -> str:
    """Fork a process that leaves this function too, as where a program to be run is not there."""
    return come_back_twice(name)


@task(max_attempts=1, atomic=True)
def fork_and_come_back_in_a_thread(name: str) -> str:
    """The same in a transaction that both have."""
    Group.objects.create(name=name)
    return come_back_twice(name)


@task(atomic=True)
def work_after_commit(path: str, started: str, ended: str) -> None:
    """Work in an `on_commit()` function until the file `path` exists."""

    def work() -> None:
        wait_for_file(path, started=started)
        Path(ended).touch()

    transaction.on_commit(work)


@task(atomic=True, isolation="process")
def isolated_work_after_commit(path: str, started: str, ended: str) -> None:
    """The same in another process."""
    work_after_commit(path, started, ended)


@task(atomic=True, retention=0)
def discarded_work_after_commit(path: str, started: str, ended: str) -> None:
    """The same in a job that leaves no row."""
    work_after_commit(path, started, ended)


def come_back_twice(name: str) -> str:
    child = os.fork()
    if child == 0:
        raise RuntimeError("the copy")
    os.waitpid(child, 0)
    return name


@task(isolation="process")
def fork_and_leave(path: str) -> list[int]:
    """Leave a process behind that holds what this one had open, until a file exists; return both."""
    child = os.fork()
    if child == 0:
        wait_for_file(path)
        os._exit(0)
    return [os.getpid(), child]


@task(isolation="process", timeout=1, max_attempts=1)
def isolated_length(text: str) -> int:
    """Return how long the argument is."""
    return len(text)


@task(isolation="process", max_attempts=1)
def wait_for_a_program(path: str) -> None:
    """Start a program, note its process id, and wait for it."""
    program = subprocess.Popen(["sleep", "60"])
    Path(path).with_suffix(".new").write_text(str(program.pid))
    Path(path).with_suffix(".new").rename(path)
    program.wait()


@task(isolation="process", timeout=1, max_attempts=1)
def run_a_program(path: str) -> None:
    """Run a program that takes long, and that writes its pid to a file."""
    subprocess.run(["sh", "-c", 'echo $$ > "$0"; exec sleep 600', path], check=True)


def end_process(how: str) -> None:
    """End this process in one of the ways that are no exception."""
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit 0":
            os._exit(0)
        case "exit 1":
            os._exit(1)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close everything":
            os.closerange(3, 256)
        case _:
            raise ValueError(how)


class KeptError(Exception):
    """Says nothing of what it is about."""


@task(backoff=0)
def keep_secret(password: str) -> None:
    """Fail, and tell nobody the argument."""
    raise KeptError(f"a password of {len(password)} characters was refused")


@task(backoff=0)
async def keep_secret_async(password: str) -> None:
    """The same on the event loop."""
    raise KeptError(f"a password of {len(password)} characters was refused")


@task(backoff=0, atomic=True)
def keep_secret_atomic(password: str) -> None:
    """The same in a transaction."""
    raise KeptError(f"a password of {len(password)} characters was refused")


@task(backoff=0, max_attempts=1, sensitive={"token"})
def use_token(order_id: object, token: str = "", *, fail: bool = False) -> str:
    """Return a sum, or fail with a message that does not contain the token."""
    if fail:
        raise KeptError(f"a token of {len(token)} characters was refused")
    return f"{order_id} of {len(token)}"


@task(backoff=0, max_attempts=1, sensitive={"token"})
async def use_token_async(order_id: object, token: str = "", *, fail: bool = False) -> str:
    """The same on the event loop."""
    if fail:
        raise KeptError(f"a token of {len(token)} characters was refused")
    return f"{order_id} of {len(token)}"


@task(backoff=0, max_attempts=1, sensitive={"token"})
def use_token_on(day: date, token: str) -> date:
    """Take and return a date, beside a token."""
    return day


@task(sensitive={"return"})
def issue_token(order_id: object) -> str:
    """Return a token."""
    return f"token-of-{order_id}"


@task
def loaded(names: list[str]) -> list[str]:
    """Return which of these modules this process has imported."""
    return sorted(set(names) & set(sys.modules))


@task
def close_output() -> None:
    """Close what the process prints and logs to, as a careless library does."""
    sys.stdout.close()
    sys.stderr.close()


_leaked: list[bytearray] = []


@task
def leak_memory(mib: int) -> None:
    """Take memory for good, in no hurry."""
    _leaked.append(bytearray(b"x") * (mib * 2**20))
    time.sleep(0.1)


@task(max_attempts=5, backoff=fixed(50))
def fail_and_wait() -> None:
    """Fail, with 50 s between the attempts."""
    raise RuntimeError("as asked")


@task
def spin_a_while(seconds: float) -> None:
    """Wait, which takes a slot and no processor."""
    time.sleep(seconds)


# ------------------------------------------------------------------------------- cancelled while they run


@task(takes_context=True)
def look_around(context: TaskContext, started: str) -> None:
    """Work until somebody wants this cancelled, or a minute."""
    Path(started).touch()
    ends_at = time.monotonic() + 60
    while not context.cancel_requested() and time.monotonic() < ends_at:
        time.sleep(0.01)
    if not context.cancel_requested():
        return
    raise Cancel("stopped half-way")


@task(isolation="process", takes_context=True)
def look_around_apart(context: TaskContext, started: str) -> None:
    """The same in a process of its own."""
    look_around.func(context, started)


@task
def look_at_nothing(started: str) -> None:
    """Work for ever."""
    Path(started).touch()
    while True:
        sum(range(1000))


@task(isolation="process")
def look_at_nothing_apart(started: str) -> None:
    """The same in a process of its own."""
    look_at_nothing.func(started)


@task(isolation="process")
def wait_apart(path: str, started: str) -> str:
    """Wait for a file in a process of its own."""
    return wait_for_file.func(path, started=started)


@task
def query_for_long(started: str) -> None:
    """Run a query that takes long."""
    Path(started).touch()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@task
async def await_long(started: str) -> None:
    """Wait until cancelled."""
    Path(started).touch()
    await asyncio.Event().wait()


@task
def finish_all_the_same(started: str) -> str:
    """Clean up when cancelled, and return."""
    Path(started).touch()
    try:
        while True:
            time.sleep(0.01)
    except TaskCancelled:
        return "cleaned up"


@task(atomic=True)
def create_group_until_cancelled(name: str, started: str) -> None:
    """Write a row, and wait in the transaction."""
    Group.objects.create(name=name)
    Path(started).touch()
    while True:
        time.sleep(0.01)


@task
def stay_all_the_same(started: str, end: str) -> None:
    """Stay in one call into C until a file exists; the shell ends with this process, which a test may kill."""
    Path(started).touch()
    wait = f"while [ ! -e '{end}' ] && kill -0 $PPID; do sleep 0.05; done"
    os.system(wait)  # noqa: S605 -- a path of the test's


@task
def fail_when_interrupted(started: str) -> None:
    """Raise an error of its own when it is interrupted, as clean-up that meets a closed connection does."""
    Path(started).touch()
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        Path(f"{started}.interrupted").touch()
        raise RuntimeError("cannot clean up")


@task
def catch_every_exception(started: str) -> str:
    """Continue after each `Exception`, as a task does that logs the errors of single items."""
    Path(started).touch()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            time.sleep(0.01)
        except Exception:  # noqa: BLE001 -- the trap that this task is about
            Path(f"{started}.caught").touch()
    return "continued"


@task(timeout=0.3)
def log_behind_another(started: str, end: str) -> None:
    """Log to a handler whose lock another thread holds until a file exists, as one does whose pipe is full."""
    handler = logging.NullHandler()
    handler.lock = lock = threading.RLock()
    is_held = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            wait_for(end)

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    Path(started).touch()
    logging.Handler.handle(handler, logging.LogRecord("a", logging.INFO, "b", 1, "c", (), None))


@task
async def clean_up_for_a_while(started: str, cleaned: str) -> None:
    """Wait until cancelled, and clean up with what has to be waited for."""
    Path(started).touch()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Path(f"{cleaned}.began").touch()
        await asyncio.sleep(3)
        Path(cleaned).touch()
        raise


# ------------------------------------------------------------------------------- progress


def wait_for(path: str, seconds: float = 30) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + seconds
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@task(takes_context=True)
def tell(context: TaskContext, *steps: object) -> list[object]:
    """Tell of steps, each a list of arguments; return what was on record before."""
    before = context.last_progress()
    for step in steps:
        context.progress(*step)  # type: ignore[misc]  # whatever a test says
    return list(before[:3]) if before else []


@task(takes_context=True, max_attempts=2, backoff=0)
def tell_and_fail_once(context: TaskContext) -> float:
    """Fail at three of four, and go on from there."""
    before = context.last_progress()
    if before is None:
        context.progress(3, 4, "so far")
        raise RuntimeError("at three")
    return before.done


@task(takes_context=True, atomic=True)
def tell_atomically(context: TaskContext, name: str) -> None:
    """Tell within the transaction of the finish."""
    context.progress(1, 2, name)
    Group.objects.create(name=name)
    context.progress(2, 2, name)


def _tell_and_wait(context: TaskContext, path: str) -> None:
    context.progress(1, 4, "begun")
    wait_for(path)
    for step in range(1000):
        context.progress(step, 999, "ended")


@task(takes_context=True)
def tell_and_wait(context: TaskContext, path: str) -> None:
    """Tell, wait for a file, and tell a thousand times."""
    _tell_and_wait(context, path)


@task(takes_context=True, isolation="process")
def isolated_tell_and_wait(context: TaskContext, path: str) -> None:
    """Do the same in a process of its own."""
    _tell_and_wait(context, path)


@task(takes_context=True, isolation="process", atomic=True)
def isolated_tell_atomically(context: TaskContext, path: str) -> None:
    """Do the same in a process and a transaction of its own."""
    _tell_and_wait(context, path)


@task(takes_context=True)
async def tell_and_await(context: TaskContext, path: str) -> list[object]:
    """Do the same on the event loop; return what is on record then."""
    context.progress(1, 4, "begun")
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    before = await context.alast_progress()
    for step in range(1000):
        context.progress(step, 999, "ended")
    return list(before[:3]) if before else []


@task(takes_context=True, timeout=0.5, max_attempts=1)
def tell_and_stay(context: TaskContext) -> None:
    """Tell at the last moment, and be stopped."""
    context.progress(1, 4)
    time.sleep(0.2)
    context.progress(2, 4)
    for _ in range(3000):
        time.sleep(0.01)


@task(takes_context=True, max_attempts=1)
def wait_for_another(context: TaskContext, job_id: int) -> object:
    """Wait for a job inside of a job, which is refused."""
    from django_pgqueue.models import Job

    return Job.objects.get(pk=job_id).wait(10)


@task(max_attempts=1)
async def await_another(job_id: int) -> object:
    """Do the same in a coroutine."""
    from django_pgqueue.models import Job

    return await (await Job.objects.aget(pk=job_id)).await_result(10)


# ------------------------------------------------------------------------------- middleware


@task
def current_tenant() -> str | None:
    """Return the context variable that middleware has set."""
    from tests.app.middleware import tenant

    return tenant.get()


@task
async def acurrent_tenant() -> str | None:
    """Return the same on the event loop."""
    from tests.app.middleware import tenant

    await asyncio.sleep(0)
    return tenant.get()


@task(isolation="process")
def isolated_tenant() -> str | None:
    """Return the same in a process of its own."""
    from tests.app.middleware import tenant

    return tenant.get()


@task(takes_context=True)
def describe_result(context: TaskContext, text: str) -> list[object]:
    """Return what the task result in the context says."""
    result = context.task_result
    assert result is context.task_result
    return [result.id, result.status, result.attempts, result.args, result.priority]


@task(takes_context=True)
async def adescribe_result(context: TaskContext, text: str) -> list[object]:
    """Return the same from a coroutine, which must load the result first."""
    result = context.task_result
    assert result.attempts == context.attempt
    await context.task_result.arefresh()
    return [result.id, result.status, result.attempts, result.args, result.priority]


def by_task_result(exception: BaseException, task_result: Job) -> float | None:
    """Return delays for two attempts, from the attributes that a result of Django's framework has too."""
    if isinstance(exception, LookupError) or len(task_result.errors) > 1:
        return None
    return 30.0 * (task_result.attempts - 1)


def by_attempts(exception: BaseException, task_result: Job) -> float | None:
    """Return a delay without a query, as a coroutine's backoff must."""
    return 0 if task_result.attempts < 3 else None


@task(max_attempts=9, backoff=by_task_result)
def fail_by_result(text: str) -> None:
    """Raise what the text says."""
    raise (LookupError if text == "at once" else ValueError)(text)


@task(max_attempts=9, backoff=by_attempts)
async def afail_by_result() -> None:
    """Raise, in a coroutine."""
    raise ValueError


@task(aliases=["tests.app.tasks.known_before_as"])
def renamed() -> None:
    """Do nothing, under a new name."""


@task(takes_context=True)
def headers(context: TaskContext) -> dict[str, object]:
    """Return what the job carries."""
    return dict(context.headers)


@task(max_attempts=1)
async def async_fail(message: str) -> None:
    """Fail, on the event loop."""
    raise RuntimeError(message)


@task(max_attempts=1)
def raise_timeout() -> None:
    """Raise what a timeout throws in."""
    raise TaskTimeout("as if")


@task(max_attempts=1)
def raise_lease_lost() -> None:
    """Raise what a lost lease throws in."""
    from django_pgqueue import LeaseLost

    raise LeaseLost("as if")


# ------------------------------------------------------------------------------- what ends or blocks a process


def exit_in_backoff(attempt: int, exception: BaseException | None) -> float:
    """Exit, as no backoff should."""
    raise SystemExit(0)


def hang_in_backoff(attempt: int, exception: BaseException | None) -> float:
    """Wait for ever."""
    threading.Event().wait()
    return 0.0


@task(backoff=exit_in_backoff, max_attempts=3)
def wait_with_exiting_backoff(path: str, started: str) -> str:
    """Say that it started, then wait."""
    return wait_for_file(path, 30, started)


@task(backoff=hang_in_backoff, max_attempts=3)
def wait_with_hanging_backoff(path: str, started: str) -> str:
    """Do the same."""
    return wait_for_file(path, 30, started)


@task(backoff=0)
def sleep_uninterrupted(seconds: float, started: str) -> None:
    """Sleep in C code, where no exception arrives."""
    Path(started).touch()
    time.sleep(seconds)


@task
def leave_alarm(kind: str) -> None:
    """Leave a timer, or send this process a signal, whose default action ends it."""
    if kind == "alarm":
        signal.alarm(1)
    elif kind == "timers":
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    else:
        os.kill(os.getpid(), getattr(signal, kind))


@task(isolation="process")
def isolated_noop() -> int:
    """Return the process's id."""
    return os.getpid()


@task(isolation="process", timeout=4.0, max_attempts=1)
def isolated_with_timeout() -> None:
    """End at once, well before the timeout."""


@task
def name_on(group: Group, day: date) -> list[str]:
    """Take a row and a date."""
    return [group.name, f"{day:%d.%m.%Y}"]


@task
async def async_name_on(group: Group, day: date) -> list[str]:
    """Do the same on the event loop."""
    return [group.name, f"{day:%d.%m.%Y}"]


@task(atomic=True)
def atomic_name_on(group: Group, day: date) -> list[str]:
    """Do the same in a transaction."""
    return [group.name, f"{day:%d.%m.%Y}"]


@task(timeout=1, max_attempts=1)
def impatient_name_on(group: Group, day: date) -> list[str]:
    """Do the same within a second."""
    return [group.name, f"{day:%d.%m.%Y}"]


@task(isolation="process")
def isolated_name_on(group: Group, day: date) -> list[str]:
    """Do the same in an isolated process."""
    return [group.name, f"{day:%d.%m.%Y}"]


# ------------------------------------------------------------------------------- kept log lines

log = logging.getLogger("tests.app.tasks.kept")
log.setLevel(logging.DEBUG)


@task(keep_logs="INFO", max_attempts=1)
def log_lines(count: int = 1, text: str = "line", error: str | None = None) -> None:
    """Log lines, and fail if there is an error."""
    log.debug("not kept")
    for number in range(count):
        log.info("%s %d", text, number)
    if error is not None:
        raise RuntimeError(error)


@task(keep_logs="INFO")
async def log_in_turns(name: str, other: str, directory: str) -> None:
    """Log a line before and after the other job has, and one in another thread."""
    log.info("%s first", name)
    Path(directory, name).touch()
    while not Path(directory, other).exists():
        await asyncio.sleep(0.01)
    await asyncio.to_thread(log.info, "%s in a thread", name)


@task(keep_logs="INFO", isolation="process", max_attempts=1)
def log_isolated(end: str | None = None) -> None:
    """Log three lines, then end the process if asked to."""
    for number in range(3):
        log.warning("isolated %d", number)
    if end is not None:
        end_process(end)


@task(keep_logs="INFO", atomic=True)
def log_atomically() -> None:
    """Log a line in the transaction of the completion."""
    log.info("atomic")


@task(keep_logs="INFO", retention={"succeeded": 0})
def log_and_go() -> None:
    """Log a line in a job that its success deletes."""
    log.info("gone")


@task
def log_unkept() -> None:
    """Log a line that no execution keeps."""
    log.warning("unkept")


@task
def grow_batch(levels: int) -> None:
    """Add two jobs to the batch of this job, and so on."""
    batch = Batch.current()
    if levels and batch is not None:
        batch.add([grow_batch.s(levels - 1)] * 2)


@task(takes_context=True, max_attempts=1)
def with_step(context: TaskContext) -> int:
    """Use a durable step."""
    return context.step("one", add, 1)


@task
def with_odd_names(self: int, func: int, *, place: int = 0) -> list[int]:
    """Return the arguments, whose names are also those of parameters of methods that pass them on."""
    return [self, func, place]
