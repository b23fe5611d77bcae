"""Test which execution is recorded if application code in a thread of its own ends the process by `os._exit()`."""

from __future__ import annotations

from types import SimpleNamespace

from django_pgqueue.lifecycle.types import EPOCH, Claimed
from django_pgqueue.worker.completion.receivers import PendingCalls
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.runtime import exit_cause
from django_pgqueue.worker.runtime.shared_memory import NO_EXECUTION


def test_exit_cause_of_a_function_of_a_schedule_is_nobody():
    assert PendingCalls(20.0).ask(exit_cause._cause, "schedule", 1, lambda: "the key") == NO_EXECUTION


def test_exit_cause_of_a_backoff_is_the_job_that_failed(monkeypatch):
    causes = []
    task = SimpleNamespace(name="t", backoff=len, delay_after=lambda *args: causes.append(exit_cause._cause()))
    monkeypatch.setattr(retry_policy.registry, "get", lambda name: task)
    job = Claimed(1, 77, "t", "default", 0, EPOCH, "{}", 1, 5, 0, False, None, 0.0)
    retry_policy.delay_after_failure(job, ValueError(), in_time=True)
    assert causes == [77]


def test_exit_cause_of_another_thread_is_unknown():
    assert exit_cause._cause() == 0
