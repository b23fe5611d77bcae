"""A suspended job whose call is replaced by a new one with its unique key: it starts again, with the new arguments."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue import registry, send_event, task
from django_pgqueue.models import Job, JobStep
from django_pgqueue.testing import run_jobs

from . import tasks

pytestmark = pytest.mark.django_db


def replaced_task(monkeypatch, unique_while):
    """Return a task that waits for an event after its first step. A new call with its key replaces the old one."""

    def import_file(context, name):
        first = context.step("open", lambda: f"opened {name}")
        answer = context.wait_for_event("go", "key", timeout=timedelta(days=1))
        return [first, answer, name]

    import_file.__module__ = tasks.__name__
    import_file.__qualname__ = "import_file"
    made = task(takes_context=True, unique_key="key", unique_while=unique_while, on_conflict="replace")(import_file)
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, made.name: registry._tasks.pop(made.name)})
    return made


ENQUEUE = {
    "one": lambda replacing, name: replacing.enqueue(name).pk,
    "many": lambda replacing, name: replacing.enqueue_many([((name,), {})])[0],
}


@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_of_suspended_job_removes_its_steps(monkeypatch, unique_while, how):
    replacing = replaced_task(monkeypatch, unique_while)
    first = ENQUEUE[how](replacing, "old")
    run_jobs()
    assert list(JobStep.objects.values_list("name", flat=True).order_by("position")) == ["open", "go"]
    assert ENQUEUE[how](replacing, "new") == first
    assert not JobStep.objects.exists()
    run_jobs()  # it starts from the beginning at once, and waits for the event again
    send_event("go", "key", "yes")
    run_jobs()
    assert Job.objects.get().result == ["opened new", "yes", "new"]
