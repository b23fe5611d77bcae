"""Translate a job's row into the `TaskResult` of Django's framework.

Called by `backend` and `adapter`. One query reads the job with the errors and workers of all its attempts. A
row never makes this fail: whatever it contains, the result shows what can be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from django.contrib.postgres.expressions import ArraySubquery
from django.core.exceptions import ImproperlyConfigured
from django.db.models import OuterRef
from django.db.models.functions import JSONObject

from django_pgqueue.declared.key_templates import escaped, reads_arguments
from django_pgqueue.durations import seconds
from django_pgqueue.exceptions import CannotDecode
from django_pgqueue.ground.envelope import EncodedValue
from django_pgqueue.ground.task_results import errors_of
from django_pgqueue.options.task_options import SAME_COLUMN
from django_pgqueue.states import UNCOUNTED, State
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import HIDDEN, hides_result, redacted_call

from .compat import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_backends

if TYPE_CHECKING:
    from django_pgqueue.models import Job

OF_EXECUTION: Final = ("worker_id", "outcome", "claimed_at", "started_at", "exception_class", "error", "traceback")


class JobResult(TaskResult):  # type: ignore[type-arg]  # Django's own class takes no types
    """The result of a job.

    The result that a signal sends has only the fields that are known without a query. The first use of another field
    loads all missing ones in one query, and raises `TaskResultDoesNotExist` if the job's row is gone. Call `refresh()`
    to update all fields to the job's present state.

    Attributes:
        args: The positional arguments. An `EncodedValue` if this process cannot decode them.
        kwargs: The keyword arguments, likewise.
        is_duplicate: Whether `enqueue()` returned an existing job with the same unique key instead of adding one.
    """

    __slots__ = ("_attempts", "_database", "is_duplicate")

    is_duplicate: bool

    @property
    def return_value(self) -> Any:
        """The return value. Raise `CannotDecode` if it is encoded and this process cannot decode it."""
        value = super().return_value
        if isinstance(value, EncodedValue):
            raise CannotDecode(f"the result of job {self.id} cannot be read: {value.problem}")
        return value

    def __repr__(self) -> str:
        """Return the text of Django's own class, without the sensitive arguments and without a sensitive result."""
        known = registry.get(getattr(self.task, "module_path", ""))
        if known is None or not known.sensitive:
            return super().__repr__()
        values = {name: getattr(self, name) for name in sorted(FIELDS)}
        if not isinstance(values["args"], EncodedValue):
            values["args"], values["kwargs"] = redacted_call(known, values["args"], values["kwargs"])
        values["_return_value"] = HIDDEN if hides_result(known) else values["_return_value"]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def __getattr__(self, name: str) -> Any:
        """Load the missing fields. Python calls this for an attribute that is not set."""
        if name == "is_duplicate":
            return False
        if name not in FIELDS:
            raise AttributeError(name)
        self.load()
        return object.__getattribute__(self, name)

    @property
    def attempts(self) -> int:
        """The number of attempts, known without a query in a running task and in a backoff."""
        try:
            return len(object.__getattribute__(self, "worker_ids"))
        except AttributeError:
            known = getattr(self, "_attempts", None)
            return len(self.worker_ids) if known is None else known

    def load(self) -> None:
        """Load the fields that are not set, in one query."""
        loaded = load(self._database, int(self.id), self.backend)
        for field in FIELDS:
            try:
                object.__getattribute__(self, field)
            except AttributeError:
                object.__setattr__(self, field, getattr(loaded, field))


FIELDS: Final = frozenset(field.name for field in fields(TaskResult))


def load(database: str, job_id: int, backend: str) -> JobResult:
    """Return the result of a job in one query. Raise `TaskResultDoesNotExist` if there is no such job."""
    from django_pgqueue.models import Execution, Job  # task modules are imported before models can be

    of_job = Execution.objects.filter(job_id=OuterRef("pk")).order_by("id")
    history = ArraySubquery(of_job.values(record=JSONObject(**{name: name for name in OF_EXECUTION})))
    job = Job.objects.using(database).annotate(history=history).filter(pk=job_id).first()
    if job is None:
        raise TaskResultDoesNotExist(str(job_id))
    return of_job_row(job, backend, job.history)  # type: ignore[attr-defined]  # annotated above


def of_job_row(job: Job, backend: str, history: list[dict[str, Any]]) -> JobResult:
    """Return the result of a job from its row and its executions."""
    attempts = [record for record in history if record["outcome"] not in UNCOUNTED]
    is_encoded = isinstance(job.arguments, EncodedValue)
    result = JobResult(
        task=_task_of(job, backend, history),
        id=str(job.pk),
        status=TaskResultStatus(job.status),
        enqueued_at=job.enqueued_at,
        started_at=_started_at(attempts[0]) if attempts else None,
        finished_at=job.finished_at,
        last_attempted_at=_started_at(attempts[-1]) if attempts else None,
        args=[] if is_encoded else job.args,
        kwargs={} if is_encoded else job.kwargs,
        backend=backend,
        errors=_errors(job.state, history),
        worker_ids=[str(record["worker_id"]) for record in attempts],
    )
    object.__setattr__(result, "_return_value", job.result)
    if is_encoded:  # empty arguments would look like another call
        for name in ("args", "kwargs"):
            object.__setattr__(result, name, job.arguments)
    return result


def new_result(
    task: Task[Any, Any], job_id: int, database: str, status: TaskResultStatus, changes: Mapping[str, Any]
) -> JobResult:
    """Return a result with what is known without a query. Its other fields are loaded on first use."""
    result = object.__new__(JobResult)
    backend = alias_for(task.backend, database)
    known = {"task": _copy_with(task, {"backend": backend, **changes}), "id": str(job_id), "status": status}
    for name, value in {**known, "backend": backend, "_database": database}.items():
        object.__setattr__(result, name, value)
    return result


def alias_for(preferred: str, database: str) -> str:
    """Return an alias of TASKS whose jobs are in this database: `preferred` if possible.

    Return `preferred` if no alias of TASKS uses this database.
    """
    aliases: list[str] = [preferred, *task_backends]
    for alias in aliases:
        with suppress(ImproperlyConfigured):  # skip an alias that was removed or cannot be created
            if getattr(task_backends[alias], "database", None) == database:
                return alias
    return preferred


# ------------------------------------------------------------------------------- the task


def _task_of(job: Job, backend: str, history: list[dict[str, Any]]) -> Task[Any, Any]:
    """Return the task of a row as it was enqueued. After a retry the original `run_after` is unknown, and None.

    Nothing is validated, because a removed task, or a queue that is no longer in QUEUES, must not hide a result.
    """
    known = registry.get(job.task_name)
    was_rescheduled = len(history) > 1 or (history and job.state == State.READY)
    row: dict[str, Any] = {
        "run_after_delay": None,
        **{name: getattr(job, name) for name in SAME_COLUMN},
        "run_after": None if was_rescheduled or job.run_after == job.enqueued_at else job.run_after,
        "backend": backend,
        "expires": job.expires_at,
        "headers": job.headers if isinstance(job.headers, dict) else None,
    }
    if job.unique_key is not None:
        row["unique_key"] = escaped(job.unique_key)
    if known is not None and known.adapter is not None:
        if job.max_attempts != known.max_attempts:
            row["max_attempts"] = job.max_attempts
        if _is_expiry_of(job, known.expires):
            row["expires"] = known.expires
        if reads_arguments(known.unique_key):
            row["unique_key"] = known.unique_key
        return _copy_with(known.adapter.task, row)
    task_class: Any = task_backends[backend].task_class
    defaults = {field.name: field.default for field in fields(task_class)}
    func = _unknown(job.task_name) if known is None else known.func
    takes_context = known is not None and known.takes_context
    return _new_task(task_class, {**defaults, **row, "func": func, "takes_context": takes_context})


def _is_expiry_of(job: Job, expires: Any) -> bool:
    """Return whether a job's expiry is the one that its task's `expires` gives, counted from its enqueue."""
    if job.expires_at is None or expires is None or isinstance(expires, datetime):
        return bool(job.expires_at == expires)
    return abs((job.expires_at - job.enqueued_at).total_seconds() - seconds(expires)) < 0.001


def _copy_with(task: Task[Any, Any], changes: Mapping[str, Any]) -> Task[Any, Any]:
    return _new_task(type(task), {**{field.name: getattr(task, field.name) for field in fields(task)}, **changes})


def _new_task(task_class: type[Task[Any, Any]], values: Mapping[str, Any]) -> Task[Any, Any]:
    """Return a task with these fields, without the validation in `__post_init__()`."""
    task = object.__new__(task_class)
    for name, value in values.items():
        object.__setattr__(task, name, value)
    return task


def _unknown(name: str) -> FunctionType:
    """Return a stand-in for the function of a task that is not registered in this process."""

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise LookupError(
            f"no task {name!r} is registered in this process: "
            "if it was renamed, add the old name to aliases=... of its task; otherwise it was removed"
        )

    module, _, qualname = name.rpartition(".")
    unknown.__module__, unknown.__qualname__, unknown.__name__ = module, qualname, qualname
    return unknown  # type: ignore[return-value]  # mypy sees only a callable


# ------------------------------------------------------------------------------- the attempts


def _started_at(record: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(record["started_at"] or record["claimed_at"])


def _errors(state: str, history: list[dict[str, Any]]) -> list[TaskError]:
    return [
        TaskError(exception_class_path=error.exception_class_path, traceback=error.traceback)
        for error in errors_of(state, history)
    ]
