"""The integration with Sentry in a real worker: isolated jobs, crashes, and scopes in threads and coroutines."""

from __future__ import annotations

import json
import signal
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
    worker = start("--concurrency", "1", variables=variables, TASK_MODULES=MODULES, CRASH_BUDGET=1)

    def events() -> list[dict[str, Any]]:
        written = sent.read_text().split("\n")[:-1] if sent.exists() else []  # the last line can be incomplete
        return [json.loads(line) for line in written]

    worker.wait_until(lambda: len(events()) == len(jobs))
    jobs.append(tasks.crash_worker.enqueue())
    worker.wait_until(lambda: any(of_job(event) == str(jobs[-1].pk) for event in events()))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    found = {of_job(event): event for event in events() if of_job(event)}
    assert len(found) == len([event for event in events() if of_job(event)])
    lines = [event["logentry"]["message"] for event in events() if not of_job(event)]
    assert [line for line in lines if "died" not in line] == []  # the supervisor's line about the process
    plain, clean, coroutine, clean_coroutine, apart, crash, lost = (found.pop(str(job.pk)) for job in jobs)
    assert found == {}
    assert [user_of(event) for event in (plain, clean, coroutine, clean_coroutine)] == ["anna", None, "bert", None]
    *_, cause, last = apart["exception"]["values"]
    assert (cause["value"], last["type"], last["value"]) == ("declined", "RuntimeError", "no money")
    frame = last["stacktrace"]["frames"][-1]
    assert (frame["module"], frame["function"], frame["in_app"]) == ("tests.contrib.tasks", "fail_apart", True)
    assert crash["exception"]["values"][0]["value"].startswith("the job's isolated process died")
    assert lost["exception"]["values"][0]["value"] == "the worker process died while the job was running"
    assert lost["transaction"] == "tests.contrib.tasks.crash_worker"


def of_job(event: dict[str, Any]) -> str | None:
    job_id: str | None = event.get("tags", {}).get("job_id")
    return job_id


def user_of(event: dict[str, Any]) -> str | None:
    user: str | None = event.get("user", {}).get("id")
    return user
