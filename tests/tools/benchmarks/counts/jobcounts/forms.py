"""The six forms of a job that are counted: four that a worker runs, and two ways to enqueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from . import tasks
from .batches import BATCH
from .clock import Clock
from .engine import Engine

APART_SECONDS: Final = 0.01
"""The time from one `enqueue()` to the next one: each of them notifies the workers."""


class Form(NamedTuple):
    """One form. The jobs of `task` are enqueued before the count. `run()` runs or enqueues one batch."""

    name: str
    task: Any
    run: Callable[[Clock, Engine | None], None]

    def prepare(self, batches: int) -> None:
        """Enqueue the jobs of so many batches, if a worker shall run them."""
        for _ in range(0 if self.task is None else batches):
            enqueue_batch(self.task)


def enqueue_batch(task: Any) -> None:
    """Enqueue jobs that are due at once."""
    task.enqueue_many([((number,), {}) for number in range(BATCH)])


def _work(clock: Clock, engine: Engine | None) -> None:
    assert engine is not None
    engine.run_batch()


def _enqueue_each(clock: Clock, engine: Engine | None) -> None:
    for number in range(BATCH):
        clock.advance(APART_SECONDS)
        tasks.plain.enqueue(number)


def _enqueue_many(clock: Clock, engine: Engine | None) -> None:
    clock.advance(APART_SECONDS)
    enqueue_batch(tasks.plain)


APPLICATION_FORMS: Final = (
    Form("enqueue", None, _enqueue_each),
    Form("enqueue_many", None, _enqueue_many),
)
WORKER_FORMS: Final = (
    Form("thread", tasks.plain, _work),
    Form("coroutine", tasks.coroutine, _work),
    Form("atomic", tasks.atomic, _work),
    Form("orm", tasks.orm, _work),
)
