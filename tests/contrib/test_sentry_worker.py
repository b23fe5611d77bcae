"""The integration with Sentry in a real worker: isolated jobs, crashes, and scopes in threads and coroutines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contrib import tasks
from tests.process.conftest import start as start

pytestmark = pytest.mark.process
MODULES = ["tests.contrib.tasks"]


@pytest.mark.promise("sentry-one-event-per-dead-job")
def test_sentry_worker_sends_one_event_for_each_dead_job(start, settings, tmp_path: Path):
    settings.PGQUEUE = {"TASK_MODULES": MODULES}
    jobs = [
        tasks.set_user_and_fail.enqueue("anna"),
        tasks.fail_at_once.enqueue(),
        tasks.set_user_in_coroutine.enqueue("bert"),
        tasks.fail_in_coroutine.enqueue(),
        tasks.fail_apart.enqueue("carl"),
        tasks.crash_apart.enqueue(),
    ]
    sent = tmp_path / "sent"
    variables = {"DJANGO_SETTINGS_MODULE": "tests.contrib.sentry_settings", "PGQUEUE_TEST_SENTRY": str(sent)}
    worker = start("--concurrency", "1", "--until-empty", variables=variables, TASK_MODULES=MODULES)
    assert worker.has_drained()
    events = {event["tags"]["job_id"]: event for event in map(json.loads, sent.read_text().splitlines())}
    assert len(sent.read_text().splitlines()) == len(events)
    plain, clean, coroutine, clean_coroutine, apart, crash = (events.pop(str(job.pk)) for job in jobs)
    assert events == {}
    assert [user_of(event) for event in (plain, clean, coroutine, clean_coroutine)] == ["anna", None, "bert", None]
    *_, cause, last = apart["exception"]["values"]
    assert (cause["value"], last["type"], last["value"]) == ("declined", "RuntimeError", "no money")
    frame = last["stacktrace"]["frames"][-1]
    assert (frame["module"], frame["function"], frame["in_app"]) == ("tests.contrib.tasks", "fail_apart", True)
    assert crash["exception"]["values"][0]["value"].startswith("the job's isolated process died")


def user_of(event: dict[str, Any]) -> str | None:
    user: str | None = event.get("user", {}).get("id")
    return user
