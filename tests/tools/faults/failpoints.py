"""Places in a running process where it can be killed, stopped or cut off, and what was answered there.

No product code knows of them: where the environment says so, the suite's app wraps the acts of `lifecycle`, which
every part of the worker calls by that module, and listens to the signal that a job starts. The suite's tasks call
`hit()` in their bodies.

PGQUEUE_FAILPOINT is `name:action[:number]`, several separated by commas. It fires at the `number`th time (1 unless
given) that a process comes by, once in a run, however many processes are armed; with `*` it fires each time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import psycopg

from django_pgqueue import lifecycle, signals
from django_pgqueue.lifecycle import (
    breakers,
    bulk_acts,
    chunks,
    claims,
    completions,
    enqueueing,
    leases,
    limits,
    refused_rows,
    rescues,
    steps,
    ticks,
    unique,
)
from django_pgqueue.worker.runtime.service import Service
from tests.tools.faults import failpoints_workflows, journal

VARIABLE: Final = "PGQUEUE_FAILPOINT"
SECONDS: Final = "PGQUEUE_FAILPOINT_SECONDS"

ACTS: Final = {
    "claim": "claim",
    "extend": "beat",
    "open_executions": "watch",
    "succeed": "finish",
    "succeed_and_discard": "finish",
    "fail": "finish",
    "snooze": "finish",
    "suspend": "suspend",
    "wake": "wake",
    "end_cancelled": "finish",
    "release": "release",
    "rescue": "rescue",
    "enqueue": "enqueue",
    "enqueue_many": "enqueue",
    "enqueue_each": "enqueue",
    "enqueue_each_unique": "enqueue",
    "enqueue_unique": "enqueue",
    "replace": "enqueue",
    "fire": "fire",
    "fire_many": "fire",
}
"""The function of `lifecycle`, and the first word of its two points: `<word>.sent` just before, `<word>.committed` just
after. The succeed of an atomic task, which commits later, is `atomic.sent` and `atomic.finished`."""

MODULES: Final = (claims, completions, enqueueing, leases, rescues, steps, ticks, unique)
"""Where these functions are defined."""

ACTS_ON_KEYS: Final = {"lock_keys": "lock", "claim_keys": "admit"}
"""The same for the two statements that claim jobs with a limit, which share a transaction: `lock.sent` and `lock.done`,
`admit.sent` and `admit.done`, where the second comes before the commit. None is met if no key was locked, or no job
claimed."""
OF_CHUNKS: Final = ("chunk.sent", "chunk.committed")
"""Around the claim of a chunk. The second one is met only if a chunk was claimed."""
ACTS_ON_BREAKERS: Final = {"open_breakers": "open", "close_breakers": "close"}
"""The same for circuit breakers: `open.sent` if one may have to open, `open.done` if one has, before the commit."""
BATCHES: Final = ("batch.sent", "batch.committed")
"""Around a batch of a bulk act."""

POINTS: Final = frozenset(
    {
        *failpoints_workflows.POINTS,
        *BATCHES,
        *OF_CHUNKS,
        *(f"{word}.{place}" for word in ACTS_ON_BREAKERS.values() for place in ("sent", "done")),
        *(f"{word}.{place}" for word in ACTS_ON_KEYS.values() for place in ("sent", "done")),
        *(f"{word}.{place}" for word in ACTS.values() for place in ("sent", "committed")),
        *(
            "commit.done",
            "rescue.mid",
            "atomic.sent",
            "atomic.finished",
            "start",
            "body.begin",
            "body.mid",
            "body.done",
        ),
    }
)


class FailpointError(Exception):
    """Raised at a point where a test asked for it."""


class Failpoint(NamedTuple):
    """What is to happen at a point, and when: at the `number`th time, or each time (None)."""

    name: str
    action: str
    number: int | None


def parse(text: str) -> dict[str, Failpoint]:
    """Return the failpoints of a PGQUEUE_FAILPOINT, by name; raises ValueError for one that is unknown."""
    armed = {}
    for part in filter(None, text.split(",")):
        name, action, number = [*part.split(":"), "1"][:3]
        if name not in POINTS or action not in ACTIONS:
            raise ValueError(f"no failpoint {part!r}: points are {sorted(POINTS)}, actions {sorted(ACTIONS)}")
        armed[name] = Failpoint(name, action, None if number == "*" else int(number))
    return armed


# ------------------------------------------------------------------------------- actions


def _kill(connection: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_all(connection: Any) -> None:
    os.killpg(0, signal.SIGKILL)


def _stop(connection: Any) -> None:
    # Sent to this very thread: to the process, another thread may take it, and this one go on for a moment.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _raise(connection: Any) -> None:
    raise FailpointError("as asked")


def _close(connection: Any) -> None:
    """The statement has been done, and its answer never comes: the connection is gone."""
    raw = getattr(connection, "connection", connection)  # Django's wrapper, or psycopg's own
    with contextlib.suppress(Exception):
        raw.pgconn.finish()
    raise psycopg.OperationalError("the failpoint closed the connection")


ACTIONS: Final[dict[str, Callable[[Any], None]]] = {
    "kill": _kill,
    "killall": _kill_all,
    "stop": _stop,
    "exit": lambda connection: os._exit(0),
    "raise": _raise,
    "sleep": lambda connection: time.sleep(float(os.environ.get(SECONDS, "1"))),
    "close": _close,
}
"""Kill: this process by SIGKILL; killall: its whole group, as when the host is lost; stop: SIGSTOP; exit: with code 0
and without a word; close: the reply is lost, and the connection with it."""

# ------------------------------------------------------------------------------- firing

_armed: dict[str, Failpoint] = {}
_passed: dict[str, int] = {}


def hit(name: str, connection: Any = None) -> None:
    """Come by a point; unless it is armed, that is one look into an empty dict."""
    point = _armed.get(name)
    if point is None:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if point.number is not None and (_passed[name] != point.number or not _is_first(name)):
        return
    journal.write("failpoint", name=name, action=point.action)
    ACTIONS[point.action](connection)


def _is_first(name: str) -> bool:
    """Whether no process of this run has fired this one yet: a child that replaces a killed one is armed too."""
    where = journal.directory()
    if where is None:
        return True
    try:
        os.close(os.open(where / f"fired-{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


# ------------------------------------------------------------------------------- seams


def install() -> None:
    """Wrap the seams of this process, if it is part of a run or armed; else do nothing at all."""
    _armed.update(parse(os.environ.get(VARIABLE, "")))
    if not _armed and journal.directory() is None:
        return
    for act in ACTS:
        [module] = [each for each in MODULES if getattr(getattr(each, act, None), "__module__", "") == each.__name__]
        setattr(module, act, _wrapped(act, getattr(module, act)))
    for act in ACTS_ON_KEYS:
        setattr(limits, act, _wrapped_on_keys(act, getattr(limits, act)))
    for act in ACTS_ON_BREAKERS:
        setattr(breakers, act, _wrapped_on_breakers(act, getattr(breakers, act)))
    chunks.claim_chunk = _wrapped_on_chunks(chunks.claim_chunk)
    bulk_acts.execute_batch = _wrapped_batch(bulk_acts.execute_batch)
    failpoints_workflows.install(hit)
    signals.job_started.connect(lambda **kwargs: hit("start"), weak=False)
    setattr(Service, "_pause_after", with_errors_noted(Service._pause_after))  # noqa: B010 -- mypy refuses a method


def with_errors_noted(
    pause_after: Callable[[Service, BaseException], float],
) -> Callable[[Service, BaseException], float]:
    """Return the method of a service that meets an error, which now writes the error to the journal too.

    The log does not have all errors: each process logs at most one line a second.
    """

    @functools.wraps(pause_after)
    def noted(self: Service, error: BaseException) -> float:
        if not self.stopping:  # a service that stops waits for nothing
            journal.write("error", thread=self.name, error=type(error).__name__)
        return pause_after(self, error)

    return noted


def _wrapped(act: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith(lifecycle.__name__) and caller != refused_rows.__name__:  # `divided()` runs given ones
            return function(connection, *args, **kwargs)  # a part of another transition
        own = act == "succeed" and not isinstance(connection, psycopg.Connection)
        word, after = ("atomic", "finished") if own else (ACTS[act], "committed")
        hit(f"{word}.sent", connection)
        if act == "rescue":
            args = (_with_point(args[0], connection), *args[1:])
        answer = function(connection, *args, **kwargs)
        _tell(act, own, answer, kwargs)
        if answer or act not in ("claim", "fire", "fire_many"):
            hit(f"{word}.{after}", connection)
        return answer

    return wrapped


def _wrapped_on_keys(act: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        hit(f"{ACTS_ON_KEYS[act]}.sent", connection)
        answer = function(connection, *args, **kwargs)
        claimed = answer.claimed if act == "claim_keys" else ()
        _tell("claim", False, claimed, kwargs)
        if claimed or (act == "lock_keys" and answer):
            hit(f"{ACTS_ON_KEYS[act]}.done", connection)
        return answer

    return wrapped


def _wrapped_on_chunks(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(connection: Any, lane: Any, rule: Any, **kwargs: Any) -> Any:
        hit(OF_CHUNKS[0], connection)
        answer = function(connection, lane, rule, **kwargs)
        if answer.first is not None:
            _tell("claim", False, answer.first.members, {**kwargs, "limit": rule.size})
            hit(OF_CHUNKS[1], connection)
        return answer

    return wrapped


def _wrapped_on_breakers(act: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(connection: Any, keys: Any) -> Any:
        if keys:
            hit(f"{ACTS_ON_BREAKERS[act]}.sent", connection)
        answer = function(connection, keys)
        if answer[0]:
            hit(f"{ACTS_ON_BREAKERS[act]}.done", connection)
        return answer

    return wrapped


def _wrapped_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(connection: Any, audit_id: int, **options: Any) -> Any:
        hit(BATCHES[0], connection)
        batch = function(connection, audit_id, **options)
        if batch is not None:
            hit(BATCHES[1], connection)
        return batch

    return wrapped


def _with_point(delay_for: Callable[[Any], Any], connection: Any) -> Callable[[Any], Any]:
    def asked(held: Any) -> Any:
        hit("rescue.mid", connection)
        return delay_for(held)

    return asked


def _tell(act: str, own: bool, answer: Any, kwargs: dict[str, Any]) -> None:
    """Write down what an act of the worker was told: the caller's half of "accepted exactly once"."""
    if act == "claim" and answer:
        journal.write(
            "claim",
            worker=kwargs["worker_id"],
            parent=os.getppid(),
            limit=kwargs["limit"],
            executions=[claimed.execution_id for claimed in answer],
        )
    elif act == "rescue" and answer:
        journal.write("ack", act=act, own=own, fates={held.execution_id: moved.status.value for held, moved in answer})
    elif isinstance(answer, dict) and answer and act not in ("extend", "fire_many"):
        fates = {key: result.status.value for key, result in answer.items()}
        journal.write("ack", act=act, own=own, fates=fates)
