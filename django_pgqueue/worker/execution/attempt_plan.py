"""Decide once for each task which parts an attempt at one of its jobs has, so that a job pays only for what it uses.

`Pool` has the plans of its process. It looks up the plan of each job that it queues, and the slots make the attempt by
it. A plan is made anew when its task is registered anew or when a setting changes, so no caller discards plans.
"""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured

from django_pgqueue.settings.conf import Settings, get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.tasks.redaction import hides_result


class AttemptPlan:
    """The parts of an attempt that its task and the settings require. The job itself can require more.

    Args:
        task: The task, or None if this process has no task with the name of the job.
        settings: The settings of the project.
        isolates_all: Whether this process runs each job in an isolated process.
    """

    # For an unknown task, these values of the class stay.
    uses_loop = False
    """Whether its jobs run on the event loop."""
    makes_chunks = False
    timeout_seconds: float | None = None
    log_level: int | None = None
    """Level from which the lines that the task logs are kept, or None."""
    only_database: str | None = None
    """The database on which its jobs must be, because their transaction is there. None: each job may be anywhere."""
    has_preparations = True
    """Whether an attempt begins with something: with the last two, or with the error that its task is unknown."""
    takes_context = False
    adapts_context = False
    is_called_directly = False
    """Whether a thread simply calls the function: no transaction, no event loop, nothing to hide."""
    hides_result = False
    """Whether error reports must not show the result."""

    def __init__(self, task: TaskDefinition | None, settings: Settings, *, isolates_all: bool = False) -> None:
        self.task = task
        self.settings = settings
        self.is_isolated = isolates_all or (task is not None and task.isolation is not None)
        """Whether its jobs run in isolated processes. A job that has crashed a worker does so in any case."""
        if task is None:
            return
        self.uses_loop = task.is_async and not self.is_isolated
        self.makes_chunks = task.chunk is not None
        self.timeout_seconds = task.timeout_by(settings)
        self.log_level = task.log_level_by(settings)
        self.only_database = task.fixed_database if task.atomic else None
        self.has_preparations = self.log_level is not None or self.only_database is not None
        self.takes_context = task.takes_context
        self.adapts_context = task.takes_context and task.adapter is not None
        self.hides_result = hides_result(task)
        self.is_called_directly = not (task.atomic or task.is_async or task.sensitive)


class AttemptPlans:
    """The plans of a worker process. Only the thread that submits jobs uses them."""

    def __init__(self, *, isolates_all: bool = False) -> None:
        self._isolates_all = isolates_all
        self._settings = get_settings()
        self._plans: dict[str, AttemptPlan] = {}

    def of(self, task_name: str) -> AttemptPlan:
        """Return the plan of the task with this name or alias. Raise nothing: the caller has claimed the job."""
        with suppress(ImproperlyConfigured):  # a job can override the settings for a moment, also with invalid ones
            self._settings = get_settings()
        task, settings = registry.get(task_name), self._settings
        plan = self._plans.get(task_name)
        if plan is None or plan.task is not task or plan.settings is not settings:
            plan = AttemptPlan(task, settings, isolates_all=self._isolates_all)
            if task is not None:  # a row can have any name
                self._plans[task_name] = plan
        return plan


def plan_of(task_name: str) -> AttemptPlan:
    """Return the plan of a task for one attempt outside of the slots: in an isolated process, or in the foreground."""
    return AttemptPlan(registry.get(task_name), get_settings())
