"""The attributes that `Job` shares with the `TaskResult` of Django's tasks framework.

A task can then move from Django's decorator to this package's by changing its import: the code that reads its results
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from django.db import models

from django_pgqueue.ground.task_results import OF_ERRORS, STATUS, AttemptError, argument_part, errors_of
from django_pgqueue.states import FINISHED, State

from .operations_link import operations


class TaskResultAttributes(models.Model):
    """Attributes and methods of a job that the framework's `TaskResult` has too. They read the row as last loaded."""

    if TYPE_CHECKING:
        id: int
        state: str
        attempt: int
        arguments: Any
        result: Any
        executions: Any

    _is_partial = False

    class Meta:
        abstract = True

    @classmethod
    def partial(cls, database: str, **known: Any) -> Self:
        """Return the job with these columns, without a query. The first use of another one loads all of them."""
        names = [field.attname for field in cls._meta.concrete_fields if field.attname in known]
        job = cls.from_db(database, names, [known[name] for name in names])
        job._is_partial = True
        return job

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Self] | None = None,
    ) -> None:
        """Reload the job's columns. Django calls this for a column that is not loaded yet."""
        if self._is_partial:
            names = {field.attname for field in self._meta.concrete_fields}
            fields = names if fields is None else {*fields, *self.get_deferred_fields()}
        super().refresh_from_db(using=using, fields=fields, from_queryset=from_queryset)
        self._is_partial = False

    @property
    def status(self) -> str:
        """`"READY"`, `"RUNNING"`, `"SUCCESSFUL"` or `"FAILED"`: equal to the member of `TaskResultStatus`."""
        return STATUS.get(self.state, "FAILED")

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended: its status is SUCCESSFUL or FAILED."""
        return self.state in FINISHED

    @property
    def return_value(self) -> Any:
        """The result as the return annotation of the task reads it; `result` has it as plain JSON.

        If this process does not know the task, or the result does not fit the annotation, this is `result` unchanged.
        Raises `ValueError` if the job has failed or is not finished, and `CannotDecode` if this process lacks the codec
        or the key that the result needs.
        """
        if self.state == State.SUCCEEDED:
            return operations().return_value(self)
        raise ValueError("Task failed" if self.status == "FAILED" else "Task has not finished yet")

    @property
    def attempts(self) -> int:
        """Number of attempts so far. Attempts that were released or snoozed do not count."""
        return self.attempt

    @property
    def args(self) -> list[Any]:
        """Positional arguments of the call. Raise `CannotDecode` if this process cannot decode them."""
        args: list[Any] = argument_part(self.arguments, "args", [])
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the call. Raise `CannotDecode` if this process cannot decode them."""
        kwargs: dict[str, Any] = argument_part(self.arguments, "kwargs", {})
        return kwargs

    @property
    def errors(self) -> list[AttemptError]:
        """The errors of the failed attempts, the oldest first. Each use runs one query."""
        return errors_of(self.state, self.executions.using(self._state.db).order_by("id").values(*OF_ERRORS))

    def refresh(self) -> None:
        """Reload the job, with one query on the database that it was read from or written to."""
        self.refresh_from_db(using=self._state.db)

    async def arefresh(self) -> None:
        """Reload the job from asynchronous code."""
        await self.arefresh_from_db(using=self._state.db)
