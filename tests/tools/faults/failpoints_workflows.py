"""The failpoints of workflows, batches, durable steps and compensations: where they lie, and how a process gets them.

`failpoints.install()` calls `install()`. Each `<word>.sent` is just before the act, each `<word>.committed` just after
its commit, and each `<word>.done` after its statement and before its commit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Final

from django_pgqueue.lifecycle import batches, graphs, sagas, steps

Hit = Callable[..., None]

POINTS: Final = frozenset(
    {
        *("advance.sent", "advance.done", "advance.committed"),
        "sweep.done",
        *("settle.sent", "settle.done", "settle.committed"),
        *("compensate.sent", "compensate.committed"),
        *("step.sent", "step.stored"),
    }
)
"""`advance`: of the dependents of nodes that have ended. `sweep`: of the waiting jobs. `settle`: the check of batches,
and the record of an end, in the completer only, because the sweep looks at batches all the time. `step`: a step is
stored; that of an atomic step commits later."""
COMPLETER: Final = "pgqueue-completer"
"""The name of its thread."""


def install(hit: Hit) -> None:
    """Wrap the seams of this process."""
    _wrap(graphs, "advance_page", hit, before="advance.sent", after="advance.committed", only_with_ids=True)
    _wrap(graphs, "_decide", hit, after="advance.done")
    _wrap(graphs, "find_missed", hit, after="sweep.done")
    in_completer = _in_completer(hit)
    _wrap(batches, "batches_to_end", in_completer, before="settle.sent")
    _wrap(batches, "end_batches", in_completer, after="settle.committed")
    own_transaction: Any = getattr(batches, "own_transaction")  # noqa: B009 -- mypy: the module does not export it
    setattr(batches, "own_transaction", _with_point(own_transaction, in_completer))  # noqa: B010 -- as above
    _wrap(sagas, "compensate", hit, before="compensate.sent", after="compensate.committed", only_with_ids=True)
    _wrap(steps, "store_step", hit, before="step.sent", after="step.stored")


def _in_completer(hit: Hit) -> Hit:
    def hit_there(name: str, connection: Any) -> None:
        if threading.current_thread().name == COMPLETER:
            hit(name, connection)

    return hit_there


def _wrap(
    module: ModuleType, name: str, hit: Hit, *, before: str = "", after: str = "", only_with_ids: bool = False
) -> None:
    """Come by points around each call of a function. With `only_with_ids`, calls for no job meet none."""
    function = getattr(module, name)

    @functools.wraps(function)
    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        counts = any([*args, *kwargs.values()]) if only_with_ids else True
        if before and counts:
            hit(before, connection)
        answer = function(connection, *args, **kwargs)
        if after and answer and counts:
            hit(after, connection)
        return answer

    setattr(module, name, wrapped)


def _with_point(
    own_transaction: Callable[[Any], AbstractContextManager[bool]], hit: Hit
) -> Callable[[Any], AbstractContextManager[bool]]:
    @contextmanager
    def wrapped(connection: Any) -> Iterator[bool]:
        with own_transaction(connection) as sees_others:
            yield sees_others
            hit("settle.done", connection)

    return wrapped
