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

from typing import Any, Protocol, cast

from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal

from django_pgqueue import signals
from django_pgqueue.tasks import registry

from . import result_translation
from .compat import Task, TaskResultStatus, task_backends, task_enqueued, task_finished, task_started


class AdaptedTask(Protocol):
    """The `Adapter` of a task."""

    @property
    def task(self) -> Task[Any, Any]: ...
    @property
    def backend_class(self) -> type:
        """The class of the task's backend when the task was registered."""


def connect(task_name: str) -> None:
    """Send Django's signals for the jobs of this task. Idempotent."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, sender=task_name, dispatch_uid=f"django_pgqueue.backend {task_name}")


def enqueued(task: AdaptedTask, job_id: int, database: str, queue_name: str) -> None:
    """Send `task_enqueued` for a job that the scheduler has enqueued."""
    _send_for(task, task_enqueued, TaskResultStatus.READY, job_id, database, {"queue_name": queue_name})


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
    if task is None or task.adapter is None:
        return
    changes = {"queue_name": about["queue_name"]} if "queue_name" in about else {}
    _send_for(cast(AdaptedTask, task.adapter), signal, status, about["job_id"], about["database"], changes)


def _send_for(
    task: AdaptedTask,
    signal: Signal,
    status: TaskResultStatus,
    job_id: int,
    database: str,
    changes: dict[str, Any],
) -> None:
    result = result_translation.new_result(task.task, job_id, database, status, changes)
    signal.send_robust(_sender(result.backend, task), task_result=result)


def _sender(alias: str, task: AdaptedTask) -> type:
    try:
        return type(task_backends[alias])
    except ImproperlyConfigured:  # TASKS no longer has the alias of the task's backend
        return task.backend_class
