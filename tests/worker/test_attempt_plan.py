"""Plans of attempts: what is decided once for each task, and when it is decided anew."""

from __future__ import annotations

import dataclasses

import pytest

from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.attempt_plan import AttemptPlans, plan_of
from tests.app import tasks


def test_plan_is_kept_while_nothing_changes():
    plans = AttemptPlans()
    assert plans.of(tasks.add.name) is plans.of(tasks.add.name)
    assert plans.of("unknown") is not plans.of("unknown")  # a row can have any name, so such a plan is not kept


def test_plan_setting_changes_is_made_anew(settings):
    plans = AttemptPlans()
    first = plans.of(tasks.add.name)
    assert (first.timeout_seconds, first.log_level) == (None, None)
    settings.PGQUEUE = {"TIMEOUT": 7, "KEEP_LOGS": "INFO"}
    second = plans.of(tasks.add.name)
    assert (second.timeout_seconds, second.log_level) == (7, 20)


def test_plan_invalid_settings_leave_the_last_valid_ones(settings):
    """A job can override them. An error would lose the jobs that were claimed and wait for a plan."""
    plans = AttemptPlans()
    settings.PGQUEUE = {"TIMEOUT": 7}
    assert plans.of(tasks.add.name).timeout_seconds == 7
    settings.PGQUEUE = {"TIMEOUT": "never"}
    assert plans.of(tasks.add.name).timeout_seconds == plans.of(tasks.noop.name).timeout_seconds == 7


def test_plan_task_is_registered_anew_is_made_anew(monkeypatch):
    plans = AttemptPlans()
    assert plans.of(tasks.add.name).is_called_directly
    atomic = dataclasses.replace(tasks.add, atomic=True, database="default")
    monkeypatch.setitem(registry._tasks, tasks.add.name, atomic)
    plan = plans.of(tasks.add.name)
    assert plan.task is atomic and plan.only_database == "default" and not plan.is_called_directly
    monkeypatch.delitem(registry._tasks, tasks.add.name)
    assert plans.of(tasks.add.name).task is None


@pytest.mark.parametrize("isolates_all", [False, True])
def test_plan_coroutine_task_uses_the_loop_unless_isolated(isolates_all):
    plan = AttemptPlans(isolates_all=isolates_all).of(tasks.async_add.name)
    assert (plan.uses_loop, plan.is_isolated) == (not isolates_all, isolates_all)


def test_plan_of_unknown_task_requires_nothing():
    plan = plan_of("unknown")
    assert plan.task is None
    assert not (plan.uses_loop or plan.is_isolated or plan.makes_chunks or plan.takes_context)
    assert plan.timeout_seconds is plan.log_level is plan.only_database is None
