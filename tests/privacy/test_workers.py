"""Real workers with codecs: in threads, on the event loop and in isolated processes, with the key and without it."""

from __future__ import annotations

import pytest
from django.test import override_settings

from django_pgqueue.ground.envelope import codec_of
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.process.conftest import start as start

SECRET = "hunter2-correct-horse"
CODEC = {"CODECS": ["tests.app.codecs.Hidden"]}
pytestmark = pytest.mark.process


def enqueue_each_kind() -> list[int]:
    """Enqueue a job for a thread, for the event loop, for an atomic task and for an isolated process."""
    with override_settings(PGQUEUE=CODEC):
        return [
            tasks.use_token.enqueue("a", token=SECRET).pk,
            tasks.use_token_async.enqueue("b", token=SECRET).pk,
            tasks.create_group.enqueue(SECRET).pk,
            tasks.isolated_pid.enqueue().pk,
        ]


def test_worker_with_codec_runs_every_kind_of_task(engine, start):
    ids = enqueue_each_kind()
    worker = start(**CODEC)
    worker.wait_until(lambda: {helpers.state_of(engine, job_id) for job_id in ids} == {"succeeded"})
    texts = [text for row in engine.execute("SELECT arguments::text, result::text FROM pgqueue_job") for text in row]
    assert {codec_of(text) for text in texts} == {"hidden"}
    with override_settings(PGQUEUE=CODEC):
        assert Job.objects.get(pk=ids[0]).result == f"a of {len(SECRET)}"
        assert Job.objects.get(pk=ids[1]).wait(0) == f"b of {len(SECRET)}"


def test_worker_without_codec_releases_and_logs_no_value(engine, start, monkeypatch):
    monkeypatch.setenv("PGQUEUE_TEST_LOG", "DEBUG")
    ids = enqueue_each_kind()
    worker = start(UNKNOWN_TASK_LIMIT=0.1)
    waiting = "SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND unknown_since IS NOT NULL AND attempt = 0"
    worker.wait_until(lambda: helpers.scalar(engine, waiting) == len(ids))
    engine.execute("UPDATE pgqueue_job SET run_after = statement_timestamp()")
    worker.wait_until(lambda: {helpers.state_of(engine, job_id) for job_id in ids} == {"dead"}, 40)
    errors = [error for [error] in engine.execute("SELECT error FROM pgqueue_execution")]
    data = [text for [text] in engine.execute("SELECT arguments ->> 'data' FROM pgqueue_job")]
    assert all("the job's arguments cannot be read: encoded by 'hidden'" in error for error in errors)
    assert not [text for text in (SECRET, *data) if text in worker.said or text in "".join(errors)]
    worker.send(15)
    worker.exit_code()
    with override_settings(PGQUEUE=CODEC):
        assert Job.objects.filter(pk__in=ids).retry() == len(ids)
        assert run_jobs(raising=True) == len(ids)
