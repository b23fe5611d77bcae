"""Tasks that end a part of the worker process that runs them."""

from __future__ import annotations

import threading
from pathlib import Path

from django_pgqueue import TaskContext, task
from tests.tools.faults.app.tasks import body


@task(takes_context=True, backoff=0)
def end_service(context: TaskContext, tag: str = "", name: str = "", done: str = "") -> None:
    """End a service's thread once, which no error that it meets could."""
    with body(context, "end_service"):
        if not Path(done).exists():
            Path(done).touch()
            [thread] = [one for one in threading.enumerate() if one.name == f"pgqueue-{name}"]
            thread._survive = _end  # type: ignore[attr-defined]
            thread.wake()  # type: ignore[attr-defined]


def _end() -> float:
    raise SystemExit
