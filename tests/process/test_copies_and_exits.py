"""Application code forks a worker process or ends it by `os._exit()`: no copy stays, and no other job is charged."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_pgqueue.models import Execution, Job
from tests.app import hostile, tasks
from tests.app.hostile import MODULES

from .harness import descendants, is_alive

pytestmark = pytest.mark.process


@pytest.fixture
def start(start, settings):
    """Return a function that starts a worker that knows the hostile tasks."""
    settings.PGQUEUE = {"TASK_MODULES": MODULES}
    return lambda *arguments, **options: start(*arguments, **{"TASK_MODULES": MODULES} | options)


def receiver(name: str, file: Path) -> dict[str, str]:
    return {"PGQUEUE_TEST_RECEIVER": name, "PGQUEUE_TEST_RECEIVER_FILE": str(file)}


@pytest.mark.promise("copies-of-a-worker-end")
def test_receiver_that_forks_leaves_no_copy(start, tmp_path):
    file = tmp_path / "pids"
    jobs = hostile.work.enqueue_many([((number,), {}) for number in range(5)])
    worker = start("--concurrency", "2", variables=receiver("fork", file))
    process = worker.wait_until_ready()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == len(jobs))
    copies = worker.wait_until(lambda: set(map(int, file.read_text().split())) - {process})
    worker.wait_until(lambda: not any(map(is_alive, copies)))
    later = hostile.work.enqueue(1)
    worker.wait_until(lambda: Job.objects.get(pk=later.pk).state == "succeeded")
    worker.wait_until(lambda: not any(is_alive(pid) for pid in map(int, file.read_text().split()) if pid != process))
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}
    assert worker.children == [process]


@pytest.mark.promise("copies-of-a-worker-end")
@pytest.mark.parametrize("name", ["ForksAtEntry", "ForksAtExit"])
@pytest.mark.parametrize("task", ["note_run", "note_run_atomically", "note_run_isolated"])
def test_middleware_that_forks_runs_each_job_once(start, tmp_path, name, task):
    file = tmp_path / "runs"
    jobs = [getattr(hostile, task).enqueue(str(file)) for _ in range(4)]
    worker = start("--concurrency", "2", MIDDLEWARE=[f"tests.app.hostile.{name}"])
    worker.wait_until(lambda: Job.objects.exclude(finished_at=None).count() == len(jobs))
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}
    [process] = worker.children
    worker.wait_until(lambda: sum(map(is_alive, descendants(process))) <= 3)
    assert len(file.read_text().split()) == len(jobs)


@pytest.mark.promise("receiver-that-exits-charges-nobody")
def test_receiver_that_ends_its_process_charges_no_job(start, tmp_path):
    hostile.work.using(max_attempts=1).enqueue_many([((number,), {}) for number in range(60)])
    worker = start("--concurrency", "6", variables=receiver("end process", tmp_path / "ends"))
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 60)
    assert worker.said.count("a signal receiver has called os._exit()") == 3
    assert set(Job.objects.values_list("attempt", "crashes")) == {(1, 0)}
    assert set(Execution.objects.values_list("outcome", flat=True)) <= {"succeeded", "released"}


def test_job_that_exits_charges_only_itself(start, tmp_path):
    started, may_end = tmp_path / "started", tmp_path / "may end"
    neighbour = tasks.wait_for_file.enqueue(str(may_end), started=str(started))
    worker = start("--concurrency", "2")
    worker.wait_until(started.exists)
    exiting = tasks.exit_at_once.using(max_attempts=1).enqueue(3)
    worker.wait_until(lambda: Job.objects.get(pk=exiting.pk).state == "dead")
    may_end.touch()
    worker.wait_until(lambda: Job.objects.get(pk=neighbour.pk).state == "succeeded")
    neighbour.refresh_from_db()
    assert (neighbour.attempt, neighbour.crashes) == (1, 0)
