"""What a queryset's `retry()` and `cancel()` change if they take several batches, and what they count."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_pgqueue import Workflow
from django_pgqueue.ends import job_operations
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job, operations_link
from django_pgqueue.models.operations_link import ChangeTally, ChosenJobs, JobsToChange
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.management.conftest import Terminal

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(operations_link, "BATCH_SIZE", 2)
    monkeypatch.setattr(operations_link, "ID_PAGE_SIZE", 3)
    monkeypatch.setattr("django_pgqueue.management.subcommands.paced_changes.BATCH_SIZE", 2)
    monkeypatch.setattr("django_pgqueue.acts.job_changes.BATCH_SIZE", 2)


def star(count: int = 6, *, dead: bool = False) -> Workflow:
    """Return a workflow of jobs that all depend on the first one."""
    workflow = Workflow()
    first = workflow.add((tasks.fail if dead else tasks.noop).s())
    for _ in range(count - 1):
        workflow.add(tasks.noop.s(), after=[first])
    workflow.enqueue()
    return workflow


def dead_jobs_of_key(count: int = 5) -> list[int]:
    ids = sorted(tasks.noop.enqueue_many([((), {})] * count))
    Job.objects.update(state="dead", finished_at=timezone.now(), unique_key="one")
    return ids


def test_retry_of_many_jobs_of_a_key_revives_the_latest():
    ids = dead_jobs_of_key()
    assert Job.objects.dead().retry() == 1
    assert Job.objects.get(state="ready").pk == ids[-1]


def edited_jobs(count: int = 5) -> list[int]:
    """Return the ids of dead jobs of which the first two were edited and retried as new jobs."""
    ids = sorted(tasks.noop.enqueue_many([((), {})] * count))
    Job.objects.update(state="dead", finished_at=timezone.now())
    for job_id in ids[:2]:
        new_id = tasks.noop.using(queue_name="new").enqueue().pk
        audit.add_audit(connection, "edit_and_retry", {"jobs": [job_id]}, [job_id, new_id])
    return ids


def test_retry_of_many_leaves_edited_jobs():
    ids = edited_jobs()
    assert Job.objects.dead().retry() == 3
    assert sorted(Job.objects.dead().values_list("pk", flat=True)) == ids[:2]
    assert Job.objects.get(pk=ids[0]).retry(), "this call names the one job"


def test_command_retry_leaves_edited_jobs_and_counts_them(capsys):
    ids = edited_jobs()
    call_command("pgqueue", "jobs", "retry", "--state", "dead", "--yes")
    out = capsys.readouterr().out
    new_ids = sorted(Job.objects.filter(queue_name="new").values_list("pk", flat=True))
    pairs = [f"{old} as {new}" for old, new in zip(ids, new_ids, strict=False)]
    assert out.startswith("3 jobs to retry:")
    [shown] = re.findall(
        r"^2 jobs left out: edited and retried as new jobs in the admin \((.*)\)\.$", out, re.MULTILINE
    )
    assert sorted(shown.split(", "), key=lambda pair: int(pair.partition(" ")[0])) == pairs
    assert "Retried 3 jobs.\nLeft out 2 jobs: edited and retried as new jobs in the admin.\n" in out
    entry = AuditEntry.objects.get(action="retry")
    assert (entry.total, entry.job_count, entry.left_count, entry.filter["edited"]) == (3, 3, 2, 2)
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("pgqueue", "jobs", "retry", str(ids[0]))
    assert "Pass --with-edited to retry such jobs too.\n" in capsys.readouterr().out
    assert sorted(Job.objects.dead().values_list("pk", flat=True)) == ids[:2]


def test_command_retry_leaves_jobs_that_are_edited_while_it_asks(monkeypatch, capsys):
    ids = edited_jobs()
    monkeypatch.setattr("django_pgqueue.management.subcommands.changing_actions.edited_jobs", lambda *args: {})
    call_command("pgqueue", "jobs", "retry", "--state", "dead", "--yes")
    out = capsys.readouterr().out
    assert "Retried 3 jobs.\nLeft 2 jobs unchanged" in out and "were edited and retried meanwhile" in out
    assert sorted(Job.objects.dead().values_list("pk", flat=True)) == ids[:2]


def test_command_retries_edited_jobs_by_their_ids(monkeypatch, capsys):
    ids, asked = edited_jobs(), []
    new_id = Job.objects.filter(queue_name="new").earliest("pk").pk
    with pytest.raises(CommandError, match="Pass the ids of the jobs with --with-edited"):
        call_command("pgqueue", "jobs", "retry", "--state", "dead", "--yes", "--with-edited")
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "y")
    call_command("pgqueue", "jobs", "retry", str(ids[0]), str(ids[-1]), "--with-edited")
    out = capsys.readouterr().out
    edited = f"1 job among them: edited and retried as new jobs in the admin ({ids[0]} as {new_id})."
    assert edited in out and "Retried 2 jobs.\n" in out and "eft" not in out
    assert asked == ["Retry 2 jobs? [y/N] "]
    assert sorted(Job.objects.dead().values_list("pk", flat=True)) == ids[1:-1]
    entry = AuditEntry.objects.get(action="retry")
    assert (entry.total, entry.job_count, entry.left_count, "edited" in entry.filter) == (2, 2, 0, False)


def test_cancel_counts_dependents_of_later_batches():
    workflow = star()
    assert workflow.jobs.exclude(state__in=["succeeded"]).cancel() == 6
    assert set(workflow.jobs.values_list("state", flat=True)) == {"cancelled"}


def test_cancel_counts_only_jobs_of_the_queryset():
    workflow = star()
    assert workflow.jobs.filter(state="ready").cancel() == 1
    assert workflow.jobs.filter(state="cancelled").count() == 6


def test_cancel_counts_no_dependent_that_was_not_chosen():
    first = star().nodes[0].job_id
    ended = tasks.noop.enqueue().pk
    assert Job.objects.filter(pk=ended).cancel() == 1
    assert Job.objects.filter(pk__in=[first, ended]).cancel() == 1


def test_workflow_cancel_counts_all_jobs():
    assert star().cancel() == 6


def test_retry_counts_restored_jobs_of_later_batches():
    workflow = star(dead=True)
    run_jobs()
    assert sorted(set(workflow.jobs.values_list("state", flat=True))) == ["cancelled", "dead"]
    assert workflow.jobs.retry() == 6
    assert workflow.jobs.filter(state="waiting").count() == 5


def test_retry_one_by_one_counts_restored_jobs(monkeypatch):
    monkeypatch.setattr(operations_link, "BATCH_SIZE", 100)
    star(dead=True)
    run_jobs()
    refused = tasks.noop.enqueue().pk
    Job.objects.filter(pk=refused).update(state="dead", finished_at=timezone.now())
    with connection.cursor() as cursor, helpers.users_trigger(cursor, f"OLD.id = {refused}"):
        assert Job.objects.all().retry() == 6


def test_retry_of_one_node_counts_one():
    workflow = star(dead=True)
    run_jobs()
    assert workflow.jobs.dead().retry() == 1


def test_retry_takes_jobs_that_finish_later_not_in():
    """They can have been retried by another operator, and died again."""
    jobs = [tasks.noop.enqueue() for _ in range(3)]
    Job.objects.filter(pk=jobs[0].pk).cancel()
    chosen = ChosenJobs(Job.objects.all(), finished_before=True)
    Job.objects.filter(pk=jobs[1].pk).update(state="cancelled", finished_at="2999-01-01T00:00:00Z")
    assert [list(names) for names, _ in chosen.batches()] == [[jobs[0].pk]]


def test_operations_return_restored_jobs_and_others():
    workflow = star(dead=True)
    run_jobs()
    first, second, *others = (node.job_id for node in workflow.nodes)
    names = {first: tasks.fail.name, second: tasks.noop.name}
    found: set[int] = set()
    assert job_operations.retry(JobsToChange(connection, names, others=found)) == {
        first: State.READY,
        second: State.WAITING,
    }
    assert found >= set(others)
    found = set()
    cancelled = job_operations.cancel(JobsToChange(connection, {first: tasks.fail.name}, others=found))
    assert cancelled == {first: State.CANCELLED}
    assert found == {second, *others}


def test_command_counts_dependents_of_later_batches(capsys):
    workflow = star()
    call_command("pgqueue", "jobs", "cancel", "--task", tasks.noop.name, "--yes")
    assert "Cancelled, or asked to stop, 6 jobs." in capsys.readouterr().out
    assert workflow.jobs.filter(state="cancelled").count() == 6


def test_command_retry_of_a_key_revives_the_latest():
    ids = dead_jobs_of_key()
    call_command("pgqueue", "jobs", "retry", "--state", "dead", "--yes")
    assert Job.objects.get(state="ready").pk == ids[-1]


def test_tally_counts_a_job_once_whichever_batch_changes_it():
    tally = ChangeTally([1, 2, 3, 4])
    assert tally.add([1, 2], [2]) == ([2], 1)
    assert tally.add([3], [1, 2, 3, 4, 5]) == ([1, 3, 4], -1)
    assert tally.add([4], []) == ([], 0)
    assert tally.changed == {1, 2, 3, 4}


def change_of_other_batches(jobs):
    """Change nothing in the first batch. The second one changes all jobs, as the dependents of its own."""
    is_first = change_of_other_batches.first_ids is None
    change_of_other_batches.first_ids = change_of_other_batches.first_ids or list(jobs.task_names)
    changed = {} if is_first else dict.fromkeys(jobs.task_names, State.CANCELLED)
    jobs.record([*changed, *([] if is_first else change_of_other_batches.first_ids)])
    return changed


def test_command_counts_jobs_of_earlier_batches(monkeypatch, capsys):
    monkeypatch.setattr(job_operations, "cancel", change_of_other_batches)
    change_of_other_batches.first_ids = None
    ids = tasks.noop.enqueue_many([((), {})] * 4)
    call_command("pgqueue", "jobs", "cancel", *map(str, ids), "--yes")
    assert "Cancelled, or asked to stop, 4 jobs." in capsys.readouterr().out
    entry = AuditEntry.objects.get()
    assert (entry.job_count, entry.left_count, entry.jobs.count()) == (4, 0, 4)


def test_command_audit_counts_dependents_of_later_batches():
    star()
    call_command("pgqueue", "jobs", "cancel", "--task", tasks.noop.name, "--yes")
    entry = AuditEntry.objects.get()
    assert (entry.job_count, entry.left_count, entry.jobs.count()) == (6, 0, 6)
