"""The audit: each act of the shell, the admin and an erasure names its user and its jobs, and old rows are removed."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_pgqueue import history
from django_pgqueue.ends import job_operations
from django_pgqueue.lifecycle import audit, operator, orphans
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.management.subcommands import changing_actions, paced_changes
from django_pgqueue.models import ArchivedJob, AuditedJob, AuditEntry, Job
from django_pgqueue.models.operations_link import JobsToChange
from django_pgqueue.states import ActOutcome
from tests import helpers
from tests.history.finished import make

pytestmark = pytest.mark.django_db


def run(*arguments: Any) -> None:
    call_command("pgqueue", *map(str, arguments))


def audited(entry: AuditEntry) -> list[int]:
    return list(entry.jobs.order_by("id").values_list("job_id", flat=True))


def test_shell_act_names_user_reason_filter_and_jobs(monkeypatch, capsys):
    monkeypatch.setattr(changing_actions, "user_name", lambda: "ada")
    dead = make(connection, 2, state="dead")
    run("jobs", "retry", "--task", helpers.NOOP, "--rate", "1e9", "--reason", "fixed it", "--yes")
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.done_by, entry.reason, entry.rate) == ("retry", "ada", "fixed it", 1e9)
    assert entry.filter == {"states": ["dead"], "tasks": [helpers.NOOP]}
    assert (entry.total, entry.job_count, entry.left_count, entry.outcome) == (2, 2, 0, "done")
    assert audited(entry) == dead and entry.ended_at is not None
    assert not entry.stops_on_repeat and entry.next_batch_at is None


def test_shell_act_counts_jobs_that_it_left(capsys):
    first, second = make(connection, 2, state="dead")
    retry = job_operations.retry

    def retry_after_a_change(*args: Any, **options: Any) -> Any:
        operator.retry(connection, [first])
        return retry(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_operations, "retry", retry_after_a_change)
        run("jobs", "retry", first, second)
    [entry] = AuditEntry.objects.all()
    assert (entry.total, entry.job_count, entry.left_count) == (2, 1, 1)
    assert (audited(entry), entry.filter) == ([second], {"jobs": [first, second]})


def test_shell_act_stops_when_an_operator_asks(monkeypatch, capsys):
    make(connection, 3, state="dead")
    asked = iter([False, True])
    sleep = paced_changes.Interruption.sleep_until

    def ask_before_second(self: Any, instant: float) -> None:
        if next(asked):
            audit.stop_audit(connection, AuditEntry.objects.get().pk, "grace")
        sleep(self, 0.0)

    monkeypatch.setattr(paced_changes.Interruption, "sleep_until", ask_before_second)
    with pytest.raises(CommandError, match=r"Stopped in the admin\. Retried 2 of 3 jobs"):
        run("jobs", "retry", "--state", "dead", "--rate", "1", "--yes")
    [entry] = AuditEntry.objects.all()
    assert (entry.outcome, entry.stop_asked_by, entry.job_count) == ("stopped", "grace", 2)
    assert entry.ended_at is not None


def test_change_that_fails_leaves_no_job_in_the_audit():
    [job_id] = make(connection, state="dead")
    audit_id = audit.begin_audit(connection, "retry", {})

    def record(changed: Any) -> None:
        audit.record_audit(connection, audit_id, sorted(changed))
        assert AuditEntry.objects.get().job_count == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job_operations.retry(JobsToChange(connection, {job_id: helpers.NOOP}, record=record))
    assert Job.objects.get(pk=job_id).state == "dead"
    assert not AuditedJob.objects.exists() and AuditEntry.objects.get().job_count == 0


def test_ended_entry_is_not_ended_or_stopped_again():
    audit_id = audit.add_audit(connection, "move", {}, [1, 2], done_by="x" * 200, details={2: {"a": 1}})
    audit.end_audit(connection, audit_id, ActOutcome.FAILED, error="late")
    assert not audit.stop_audit(connection, audit_id, "ada")
    [entry] = AuditEntry.objects.all()
    assert (entry.outcome, entry.error, entry.done_by, entry.stop_asked_by) == ("done", "", "x" * 150, "")
    assert dict(entry.jobs.values_list("job_id", "detail")) == {1: None, 2: {"a": 1}}


@pytest.mark.parametrize("arguments", [True, False])
def test_erase_of_arguments_removes_details_of_the_whole_act(arguments):
    """The difference of two jobs' arguments is stored with both jobs."""
    first, second, other = make(connection, 3, state="dead")
    detail = {"amount": ["secret 1", "secret 2"]}
    both = audit.add_audit(connection, "edit", {}, [first, second], details={first: detail, second: detail})
    audit.add_audit(connection, "edit", {}, [other], details={other: detail})
    erased = history.erase(jobs=[first], arguments=arguments)
    found = dict(AuditedJob.objects.filter(entry=both).values_list("job_id", "detail"))
    assert found == dict.fromkeys((first, second), None if arguments else detail)
    assert AuditedJob.objects.get(job_id=other).detail == detail
    assert audited(AuditEntry.objects.get(pk=erased.audit_id)) == [first]


def test_archive_moves_the_acts_with_the_job():
    first, second = make(connection, 2)
    audit_id = audit.add_audit(connection, "retry", {}, [first, second], done_by="ada", details={first: [1]})
    seen = dict(Job.objects.filter(pk=first).values_list("pk", "finished_at"))
    assert lifecycle_history.archive(connection, seen) == [first]
    [act] = ArchivedJob.objects.get().document["acts"]
    assert (act["audit_id"], act["action"], act["done_by"], act["detail"]) == (audit_id, "retry", "ada", [1])
    assert list(AuditedJob.objects.values_list("job_id", flat=True)) == [second]
    with transaction.atomic():
        seen = dict(Job.objects.values_list("pk", "finished_at"))
        [(_, _, line)] = lifecycle_history.read_for_archive(connection, seen)
        assert '"action" : "retry"' in line and lifecycle_history.remove_archived(connection, seen) == [second]
    assert not AuditedJob.objects.exists()


def test_rows_of_removed_jobs_are_removed_except_of_deletions():
    kept, gone = make(connection, 2)
    audit.add_audit(connection, "retry", {}, [kept, gone])
    deletion = audit.add_audit(connection, "delete", {}, [gone])
    Job.objects.filter(pk=gone).delete()
    assert orphans.prune_orphans(connection, "audited jobs", limit=3).removed == 1
    assert list(AuditedJob.objects.order_by("id").values_list("job_id", flat=True)) == [kept, gone]
    AuditEntry.objects.get(pk=deletion).delete()
    orphans.prune_orphans(connection, "audited jobs")
    assert list(AuditedJob.objects.values_list("job_id", flat=True)) == [kept]


def test_old_entries_are_removed_unless_workers_execute_them():
    ended, waits, young = (audit.begin_audit(connection, "retry", {}) for _ in range(3))
    old = AuditEntry.objects.filter(pk__in=[ended, waits])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_audit SET began_at = began_at - interval '2 days' WHERE id < %s", [young])
        cursor.execute("UPDATE pgqueue_audit SET next_batch_at = began_at WHERE id = %s", [waits])
    assert audit.prune_audit(connection, 86_400.0) == 1
    assert old.get().pk == waits and AuditEntry.objects.count() == 2
