"""Send the signals of Django's framework when this package's own signals are sent.

`task_class.adopt()` connects each task. The sender is the backend's class. A receiver that raises changes nothing.

| Django's signal | sent with this package's | status of the result |
|---|---|---|
| task_enqueued | (none: `enqueue()` and the scheduler send it) | READY |
| task_started | job_started, once per attempt | RUNNING |
| task_finished | job_succeeded | SUCCESSFUL |
| task_finished | job_dead, job_cancelled | FAILED |

A failed attempt that will be retried sends no `task_finished`, because the task has not finished.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from django_pgqueue import signals
from django_pgqueue.tasks import registry

from .adapter import Adapter
from .compat import TaskResultStatus, task_finished, task_started


def connect(task_name: str) -> None:
    """Send Django's signals for the jobs of this task. Idempotent."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, sender=task_name, dispatch_uid=f"django_pgqueue.backend {task_name}")


def _started(sender: str, **about: Any) -> None:
    _send(task_started, sender, TaskResultStatus.RUNNING, about)


def _succeeded(sender: str, **about: Any) -> None:
    _send(task_finished, sender, TaskResultStatus.SUCCESSFUL, about)


def _failed(sender: str, exception: BaseException | None = None, **about: Any) -> None:
    """Send the signal while the exception is being handled, because Django's own receiver logs `sys.exc_info()`."""
    if exception is None:
        _send(task_finished, sender, TaskResultStatus.FAILED, about)
        return
    traceback = exception.__traceback__
    try:
        raise exception
    except BaseException:  # noqa: BLE001 -- raised one line above
        exception.__traceback__ = traceback
        _send(task_finished, sender, TaskResultStatus.FAILED, about)


RECEIVERS = (
    (signals.job_started, _started),
    (signals.job_succeeded, _succeeded),
    (signals.job_dead, _failed),
    (signals.job_cancelled, _failed),
)


def _send(signal: Signal, task_name: str, status: TaskResultStatus, about: dict[str, Any]) -> None:
    task = registry.get(task_name)
    if task is not None and isinstance(task.adapter, Adapter):
        changes = {"queue_name": about["queue_name"]} if "queue_name" in about else {}
        task.adapter.send(signal, status, about["job_id"], about["database"], changes)
