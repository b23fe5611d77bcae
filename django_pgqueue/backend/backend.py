"""The backend class: it enqueues tasks of Django's framework into this package's tables and reads their results.

Django creates one instance per thread from TASKS. Instances have no state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, router

from django_pgqueue import exceptions
from django_pgqueue.db.transactions import raise_if_aborted, run_after_commits_elsewhere
from django_pgqueue.enqueue.mistaken_calls import called_in_coroutine
from django_pgqueue.options.task_options import BACKEND_DEFAULTS
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.task import Task as EngineTask

from . import result_translation
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
from .result_translation import JobResult
from .task_class import PgQueueTask, adopt, for_engine

if TYPE_CHECKING:
    from django_pgqueue.models import Job

ID = re.compile(r"[0-9]{1,19}", re.ASCII)
OPTIONS = frozenset({"DATABASE"}) | BACKEND_DEFAULTS
BESIDE = frozenset({"MAX_ATTEMPTS", "BACKOFF", "TIMEOUT"})
"""Options that an entry of TASKS can also contain beside BACKEND, where Django plans to read them."""


class PgQueueBackend(BaseTaskBackend):
    """A backend of Django's tasks framework that stores jobs in PostgreSQL. `manage.py runworker` runs them.

    `enqueue()` is one INSERT in the caller's transaction. For a duplicate of a unique job, further statements read the
    existing job. The backend accepts these OPTIONS:

    * `DATABASE`: alias of the database of the jobs. By default the database routers choose it.
    * `MAX_ATTEMPTS`, `BACKOFF`, `TIMEOUT`, `RETENTION`: defaults for tasks that do not set them. The first three can
      also be beside `BACKEND`. If an option is in both places, the value beside `BACKEND` is used, and `manage.py
      check` reports an error if the two differ.
    """

    task_class = PgQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read an entry of TASKS. Django creates an instance for each thread."""
        super().__init__(alias, params)
        beside = {name: params[name] for name in BESIDE & set(params)}
        self._differing = sorted(name for name in beside if self.options.get(name, beside[name]) != beside[name])
        self.options = {**self.options, **beside}

    @property
    def database(self) -> str:
        """The alias of the database of the jobs. The routers are asked each time if OPTIONS do not name it."""
        from django_pgqueue.models import Job  # task modules are imported before models can be

        return str(self.options.get("DATABASE") or router.db_for_write(Job))

    def enqueue(self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobResult:
        """Enqueue a job in the caller's transaction, if one is open.

        Only a database error, `DuplicateJob` or `QueueError` can be raised after the INSERT was sent. All other errors
        are raised before anything is written.

        Args:
            task: A task of this backend.
            args: Positional arguments of the call, encodable as JSON.
            kwargs: Named arguments of the call, encodable as JSON.

        Returns:
            The result of the new job. If another job has the task's unique key, the result of that job with
            `is_duplicate` set; no signal is sent in that case.

        Raises:
            InvalidTask: No worker would find the task.
            TypeError: The arguments do not fit the function, or cannot be encoded as JSON.
            ValueError: PostgreSQL cannot store the arguments.
            DuplicateJob: Another job has the unique key, and the task has `on_conflict="raise"`.
            QueueError: With another `on_conflict`: 20 times, another job had the unique key, and was gone when it was
                to be read. No job was added.
        """
        engine_task = self._checked(task)
        try:
            job = engine_task.insert(_in_json_types(args), _in_json_types(kwargs))
        except exceptions.InvalidTask as error:
            raise InvalidTask(str(error)) from error
        return self._announced(task, engine_task, job)

    def enqueue_on_commit(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> JobResult | None:
        """Enqueue a job that workers see when the open transactions have committed, whichever database they are on.

        If transactions are open on other databases than the job's only, the job is added after they have committed.
        Otherwise this does the same as `enqueue()`. The arguments and the errors are those of `enqueue()`.

        Returns:
            The result of the new job; None if the job will be added after a commit.
        """
        engine_task = self._checked(task)
        try:
            alias, insert = engine_task.prepare_insert(_in_json_types(args), _in_json_types(kwargs))
            return run_after_commits_elsewhere(alias, lambda: self._announced(task, engine_task, insert()))
        except exceptions.InvalidTask as error:
            raise InvalidTask(str(error)) from error
        except SynchronousOnlyOperation as error:
            raise called_in_coroutine(engine_task.name, "task.aenqueue_on_commit(…)") from error

    def _checked(self, task: Task[Any, Any]) -> EngineTask[Any, Any]:
        """Return the engine's task for this task. Raise Django's `InvalidTask` if it cannot be enqueued here."""
        self.validate_task(task)
        if not isinstance(task, PgQueueTask):
            raise InvalidTask(
                f"{task.module_path} belongs to another backend, so no worker of {self.alias!r} would find it: "
                f"decorate it with @task(backend={self.alias!r})"
            )
        try:
            return self._engine_task(task)
        except exceptions.InvalidTask as error:
            raise InvalidTask(str(error)) from error

    def _announced(self, task: Task[Any, Any], engine_task: EngineTask[Any, Any], job: Job) -> JobResult:
        """Send the signals of a new job, and return its result."""
        if job.is_duplicate:
            return self._result_of_duplicate(task, job)
        result = result_translation.of_job_row(job, self.alias, [])
        raise_if_aborted(connections[str(job._state.db)], task_enqueued.send_robust(type(self), task_result=result))
        engine_task.send_enqueued(job)
        if get_settings().IMMEDIATE:
            with suppress(TaskResultDoesNotExist):  # the row is gone if the task keeps no finished jobs
                result = self.get_result(result.id)
        return result

    def _result_of_duplicate(self, task: Task[Any, Any], job: Job) -> JobResult:
        """Return the result of the existing job; only its id if its row is gone and its uniqueness window lasts."""
        database = str(job._state.db)
        try:
            result = result_translation.load(database, job.pk, self.alias)
        except TaskResultDoesNotExist:
            result = result_translation.new_result(task, job.pk, database, TaskResultStatus.READY, {})
        object.__setattr__(result, "is_duplicate", True)
        return result

    def get_result(self, result_id: str) -> JobResult:
        """Return the result of any job in the backend's database, in one query.

        Args:
            result_id: The id of a job, as text or as a number.

        Raises:
            TaskResultDoesNotExist: There is no such job, or it has been pruned.
        """
        if not ID.fullmatch(str(result_id)):
            raise TaskResultDoesNotExist(result_id)
        return result_translation.load(self.database, int(result_id), self.alias)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return an error `pgqueue.E004` for each problem with this backend's entry in TASKS."""
        return [checks.Error(f"TASKS[{self.alias!r}]: {problem}", id="pgqueue.E004") for problem in self._problems()]

    def _engine_task(self, task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
        """Return the engine's task with the options of this task: the registered one if it has the same options."""
        engine_task = adopt(task)
        adapter = engine_task.adapter
        if not isinstance(adapter, Adapter) or adapter.task is not task or adapter.options != self.options:
            engine_task = for_engine(task)
        return replace(engine_task, database=self.database) if "DATABASE" in self.options else engine_task

    def _problems(self) -> Iterable[str]:
        if not apps.is_installed("django_pgqueue"):
            yield "add 'django_pgqueue' to INSTALLED_APPS"
            return
        if unknown := set(self.options) - OPTIONS:
            yield f"unknown OPTIONS {sorted(unknown)}: use {sorted(OPTIONS)}"
        for name in self._differing:
            yield f"{name} beside BACKEND and in OPTIONS have different values: remove one of them"
        if self.database not in connections:
            yield f"OPTIONS['DATABASE'] is {self.database!r}, which is not in DATABASES: use one of {[*connections]}"
        elif connections[self.database].vendor != "postgresql":
            yield f"the database {self.database!r} is not PostgreSQL: set OPTIONS['DATABASE'] to an alias that is"
        try:
            EngineTask(
                func=adopt, **{name.lower(): self.options[name] for name in BACKEND_DEFAULTS & set(self.options)}
            )
        except exceptions.InvalidTask as error:
            yield f"OPTIONS: {str(error).partition(': ')[2]}"


def _in_json_types(values: Any) -> Any:
    """Return arguments in JSON types, as Django's framework does. For example, bytes become text."""
    return normalize_json(values)
