"""The backend: Django's framework on this package's tables and worker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.db import connections, router

from django_pgqueue import exceptions
from django_pgqueue.conf import get_settings
from django_pgqueue.task import Task as EngineTask

from . import results
from .adapter import Adapter
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from .results import JobResult
from .tasks import DEFAULTS, PgQueueTask, adopt, for_engine

if TYPE_CHECKING:
    from django_pgqueue.models import Job

ID = re.compile(r"[0-9]{1,19}", re.ASCII)
OPTIONS = frozenset({"DATABASE"}) | DEFAULTS


class PgQueueBackend(BaseTaskBackend):
    """Enqueues by one INSERT in the caller's transaction; `manage.py runworker` runs the tasks.

    OPTIONS: `DATABASE`, the alias that jobs are in (by default what the routers say); `MAX_ATTEMPTS`, `BACKOFF`,
    `TIMEOUT` and `RETENTION` for tasks that do not say it themselves. One instance a thread: it has no state.
    """

    task_class = PgQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def database(self) -> str:
        """The alias of the database that jobs are in, as the routers say now."""
        from django_pgqueue.models import Job  # tasks load before the apps are ready

        return str(self.options.get("DATABASE") or router.db_for_write(Job))

    def enqueue(self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobResult:
        """Add a job in the transaction that the caller has open; raises before anything is written.

        `InvalidTask` for a task that no worker would find, `TypeError` for arguments that do not fit the function or
        have no form in JSON, `ValueError` for what cannot be stored, `DuplicateJob` where the task says so. With a
        unique key that another job has, that one's result is returned, `is_duplicate`, and nobody is told.
        """
        self.validate_task(task)
        if not isinstance(task, PgQueueTask):
            raise InvalidTask(
                f"{task.module_path} was made for another backend, and no worker of {self.alias!r} would know it: "
                f"decorate it with @task(backend={self.alias!r})"
            )
        try:
            words = self._as_enqueued(task)
            job = words.insert(_plain(args), _plain(kwargs))
        except exceptions.InvalidTask as error:
            raise InvalidTask(str(error)) from error
        if job.is_duplicate:
            return self._of_duplicate(task, job)
        result = results.of_job_row(job, self.alias, [])
        task_enqueued.send_robust(type(self), task_result=result)
        words.tell(job)
        if get_settings().IMMEDIATE:
            with suppress(TaskResultDoesNotExist):  # a task may keep nothing
                result = self.get_result(result.id)
        return result

    def _of_duplicate(self, task: PgQueueTask[Any, Any], job: Job) -> JobResult:
        """Return the result of a job that was there; of one that is gone, and whose key is held still, its id."""
        database = str(job._state.db)
        try:
            result = results.load(database, job.pk, self.alias)
        except TaskResultDoesNotExist:
            result = results.told(task, job.pk, database, TaskResultStatus.READY, {})
        object.__setattr__(result, "is_duplicate", True)
        return result

    def get_result(self, result_id: str) -> JobResult:
        """Return the result of any job of this database, by one query; raises `TaskResultDoesNotExist`."""
        if not ID.fullmatch(str(result_id)):  # a number will do
            raise TaskResultDoesNotExist(result_id)
        return results.load(self.database, int(result_id), self.alias)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """pgqueue.E004: this backend's entry in TASKS cannot work."""
        return [checks.Error(f"TASKS[{self.alias!r}]: {problem}", id="pgqueue.E004") for problem in self._problems()]

    def _as_enqueued(self, task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
        known = adopt(task)
        words, made = known, known.adapter
        if not isinstance(made, Adapter) or made.task is not task or made.options != self.options:
            words = for_engine(task)
        return replace(words, database=self.database) if "DATABASE" in self.options else words

    def _problems(self) -> Iterable[str]:
        if not apps.is_installed("django_pgqueue"):
            yield "add 'django_pgqueue' to INSTALLED_APPS"
            return
        if unknown := set(self.options) - OPTIONS:
            yield f"OPTIONS has no {sorted(unknown)}: there are {sorted(OPTIONS)}"
        if self.database not in connections:
            yield f"OPTIONS['DATABASE'] is {self.database!r}, which DATABASES does not have"
        elif connections[self.database].vendor != "postgresql":
            yield f"the database {self.database!r} is not PostgreSQL"
        try:
            EngineTask(func=adopt, **{name.lower(): self.options[name] for name in DEFAULTS & set(self.options)})
        except exceptions.InvalidTask as error:
            yield f"OPTIONS: {str(error).partition(': ')[2]}"


def _plain(values: Any) -> Any:
    """Return arguments in the types of JSON, as Django's framework does."""
    return normalize_json(values)
