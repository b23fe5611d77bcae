"""The attempts of `pgqueue jobs show`: whose error is printed, lost attempts, and the retries before them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F
from django.utils import timezone

from django_pgqueue.ground.attempt_ends import LEASE_RAN_OUT
from django_pgqueue.lifecycle import audit, claims, operator, workers
from django_pgqueue.management.subcommands.output import date_of
from django_pgqueue.models import AuditEntry, Execution, Job, Worker
from django_pgqueue.stats.sentences import utc_text
from tests import helpers
from tests.management.conftest import claim, die, fail, succeed


def test_show_of_running_job_names_the_attempt_of_the_error(pgqueue):
    job_id = helpers.make_job(connection)
    fail(job_id, delay_seconds=0.0, text="no such card")
    claim(job_id)
    lines = pgqueue("jobs", "show", job_id).out.splitlines()
    assert lines[1].startswith("It has been running on ")
    assert lines[3].startswith("Error of attempt 1, the last that failed before attempt 2, at 20")


def test_show_of_lost_attempt_has_no_run_time(pgqueue):
    worker_id = workers.register_worker(connection, hostname="box", pid=7, version="1", queue_names="", concurrency=1)
    job_id = helpers.make_job(connection)
    claims.claim_one(connection, job_id, worker_id=worker_id, lease_seconds=60.0)
    Execution.objects.update(
        outcome="crashed", started_at=F("claimed_at") + timedelta(seconds=1),
        finished_at=F("claimed_at") + timedelta(seconds=62), error=LEASE_RAN_OUT,
    )  # fmt: skip
    Worker.objects.update(last_heartbeat_at=Execution.objects.get().claimed_at + timedelta(seconds=4))
    Job.objects.filter(pk=job_id).update(state="cancelled", finished_at=Execution.objects.get().finished_at)
    out, seen = pgqueue("jobs", "show", job_id).out, date_of(Worker.objects.get().last_heartbeat_at)
    assert re.search(rf"crashed .* not known .*started at 20[^;]+, last seen {seen}, found lost at 20[^;]+; the", out)
    [attempt] = pgqueue("jobs", "show", job_id, "--json").document["attempts"]
    assert (attempt["is_lost"], attempt["may_still_run"]) == (True, False)
    assert datetime.fromisoformat(attempt["last_seen_at"]) == Worker.objects.get().last_heartbeat_at
    assert "may still run" not in out, "no heartbeat has come after the loss"
    Execution.objects.update(finished_at=timezone.now() - timedelta(seconds=5))
    Worker.objects.update(last_heartbeat_at=timezone.now())
    assert "The code of attempt 1 may still run on box:7.\n" in pgqueue("jobs", "show", job_id).out
    Worker.objects.update(stopped_at=timezone.now())
    assert "may still run" not in pgqueue("jobs", "show", job_id).out


def test_show_of_retried_job_has_no_error_before_its_success(pgqueue):
    job_id = helpers.make_job(connection)
    fail(job_id, delay_seconds=0.0, text="no such card")
    succeed(job_id)
    audit.add_audit(connection, "retry", {}, [job_id], done_by="anna")
    operator.retry(connection, [job_id])
    claim(job_id)
    assert "Error of attempt" not in pgqueue("jobs", "show", job_id).out
    Execution.objects.filter(outcome="succeeded").update(outcome="failed", error="too late")
    heading = "Error of attempt 2, the last that failed before attempt 1 (after the retry of anna), at 20"
    assert heading in pgqueue("jobs", "show", job_id).out


def test_show_of_running_job_says_only_of_ended_attempts_that_they_may_run(pgqueue):
    worker_id = workers.register_worker(connection, hostname="box", pid=7, version="1", queue_names="", concurrency=1)
    job_id = helpers.make_job(connection)
    fail(job_id, delay_seconds=0.0)
    claim(job_id)
    Execution.objects.update(worker_id=worker_id)
    Execution.objects.filter(outcome="failed").update(outcome="crashed", error=LEASE_RAN_OUT)
    Worker.objects.filter(pk=worker_id).update(last_heartbeat_at=timezone.now())
    document = pgqueue("jobs", "show", job_id, "--json").document
    assert [(each["outcome"], each["may_still_run"]) for each in document["attempts"]] == [
        (None, False),
        ("crashed", True),
    ]


def test_show_has_all_times_in_the_current_time_zone(pgqueue):
    job_id = helpers.make_job(connection, delay_seconds=3600.0)
    due = Job.objects.get().run_after
    with timezone.override(timezone.get_fixed_timezone(330)):
        out = pgqueue("jobs", "show", job_id).out
        sentence = pgqueue("jobs", "show", job_id, "--json").document["why"]["sentence"]
        local = date_of(due)
    assert out.splitlines()[1] == f"It is scheduled: it is due at {local}." and out.count(local) == 2
    assert sentence == f"It is scheduled: it is due at {utc_text(due)}."


def test_show_names_ten_retries_and_says_that_there_are_earlier_ones(pgqueue):
    job_id = die()
    for number in range(12):
        audit.add_audit(connection, "retry", {}, [job_id], done_by=f"ben{number}")
        operator.retry(connection, [job_id])
        fail(job_id)
    AuditEntry.objects.update(began_at=F("began_at") - timedelta(hours=1))
    for entry, execution in zip(AuditEntry.objects.order_by("pk"), Execution.objects.order_by("pk")[1:], strict=True):
        AuditEntry.objects.filter(pk=entry.pk).update(began_at=execution.claimed_at)
    out = pgqueue("jobs", "show", job_id).out
    assert out.count("retried by ben") == 10 and "retried by ben2\n" in out
    attempts = out.partition("Attempts, latest first\n")[2].splitlines()[1:14]
    assert attempts[-3].endswith("  the retry of ben1") and attempts[-2].endswith("  an earlier retry")
    assert "retry" not in attempts[-1]
    document = pgqueue("jobs", "show", job_id, "--json").document
    assert len(document["retries"]) == 10 and document["attempts"][-1]["after_retry"] is None
    assert document["attempts"][-2]["after_retry"] == {"at": None, "by": "", "reason": ""}


def test_show_names_the_retry_before_an_attempt(pgqueue):
    job_id = die()
    assert "after" not in pgqueue("jobs", "show", job_id).out.partition("Attempts")[2]
    audit.add_audit(connection, "retry", {}, [job_id], done_by="anna", reason="the card\nis new")
    operator.retry(connection, [job_id])
    fail(job_id, delay_seconds=3600.0)
    out = pgqueue("jobs", "show", job_id).out
    heading, latest, first = out.partition("Attempts, latest first\n")[2].splitlines()[:3]
    assert heading.endswith("  after") and latest.endswith("  the retry of anna") and "anna" not in first
    assert out.partition("\nRetries\n")[2].splitlines()[0].endswith("  retried by anna: the card\\nis new")
    document = pgqueue("jobs", "show", job_id, "--json").document
    [retry] = document["retries"]
    assert (retry["by"], retry["reason"]) == ("anna", "the card\nis new")
    assert [each["after_retry"] for each in document["attempts"]] == [retry, None]
