"""`pgqueue enqueue`, `queues`, `schedules`, `workers` and `tasks`."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError
from django.db import connection
from django.utils import timezone

from django_pgqueue import control, stats
from django_pgqueue.control.workers import AUDITED_AS
from django_pgqueue.lifecycle import claims, worker_requests
from django_pgqueue.lifecycle import workers as lifecycle_workers
from django_pgqueue.management.subcommands import workers_command
from django_pgqueue.models import AuditEntry, Job, Schedule, ScheduleRun, Worker, WorkerRequest
from django_pgqueue.states import RequestKind
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.documents import names
from tests.framework import tasks as framework_tasks
from tests.management.conftest import Terminal, claim, die


def keys(heading: str) -> list[str]:
    return names("docs/reference/cli.md", heading)


# ------------------------------------------------------------------ enqueue


def test_enqueue_adds_a_job_with_the_given_options(pgqueue):
    arguments = ["--args", "[1]", "--kwargs", '{"b": 2}', "--queue", "mail", "--priority", "4", "--run-after", "5m"]
    out = pgqueue("enqueue", tasks.add.name, *arguments).out
    job = Job.objects.get()
    assert (job.arguments, job.queue_name, job.priority) == ({"args": [1], "kwargs": {"b": 2}}, "mail", 4)
    assert timedelta(minutes=4, seconds=50) < job.run_after - timezone.now() <= timedelta(minutes=5)
    assert out.startswith(f"Enqueued job {job.pk} (tests.app.tasks.add) in the queue mail, due at ")


def test_enqueue_reads_arguments_by_their_annotations(pgqueue):
    group = Group.objects.create(name="staff")
    pgqueue("enqueue", tasks.name_on.name, "--args", json.dumps([group.pk, "2026-01-31"]))
    assert run_jobs() == 1
    assert Job.objects.get().result == ["staff", "31.01.2026"]


def test_enqueue_of_framework_task_uses_its_options(pgqueue):
    pgqueue("enqueue", framework_tasks.add.module_path, "--args", "[1, 2]")
    job = Job.objects.get()
    assert (job.queue_name, job.priority, job.max_attempts) == ("mail", 7, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tests.app.tasks.ad"], 3, "did you mean 'tests.app.tasks.add'?"),
        ([tasks.add.name], 2, "missing a required argument: 'a'"),
        ([tasks.add.name, "--args", "[1, 2, 3]"], 2, "too many positional arguments"),
        ([tasks.add.name, "--args", "["], 2, "Invalid --args"),
        ([tasks.add.name, "--kwargs", "[1]"], 2, "Invalid --kwargs"),
        ([tasks.use_token_on.name, "--args", '["soon", ""]'], 2, "argument 'day'"),
        ([tasks.name_on.name, "--args", '[777, "2026-01-31"]'], 2, "row of auth.Group"),
        ([tasks.add.name, "--args", "[1]", "--priority", "1000"], 2, "priority"),
        ([tasks.add.name, "--args", "[1]", "--run-after", "soon"], 2, "Invalid --run-after"),
    ],
)
def test_enqueue_invalid_call_adds_no_job(pgqueue, arguments, code, message):
    with pytest.raises(CommandError) as caught:
        pgqueue("enqueue", *arguments)
    assert message in str(caught.value) and caught.value.returncode == code
    assert not Job.objects.exists()


def test_enqueue_dry_run_adds_no_job(pgqueue):
    assert "No job was added" in pgqueue("enqueue", tasks.add.name, "--args", "[1]", "--dry-run").out
    assert not Job.objects.exists()


# ------------------------------------------------------------------ queues


def test_queues_shows_jobs_by_state_and_pauses(pgqueue):
    helpers.make_job(connection, queue_name="mail")
    helpers.make_job(connection, queue_name="mail", priority=5)
    helpers.make_job(connection, queue_name="mail", delay_seconds=60.0)
    claim(helpers.make_job(connection, queue_name="pdf"))
    control.pause("mail", reason="server down", by="anna")
    queues = {queue["name"]: queue for queue in pgqueue("queues", "--json").document["queues"]}
    mail = queues["mail"]
    assert sorted(mail) == sorted(keys("key of a queue"))
    assert (mail["paused"]["value"], mail["scheduled"]["value"], mail["due"]["value"]) == (2, 1, 0)
    assert (mail["pause"]["by"], mail["pause"]["reason"]) == ("anna", "server down")
    assert (queues["pdf"]["running"], queues["pdf"]["pause"]) == ({"value": 1, "is_exact": True}, None)
    assert "paused by anna: server down" in pgqueue("queues").out


# ------------------------------------------------------------------ schedules


def test_schedules_list_shows_next_and_last_run(pgqueue):
    helpers.make_schedule(connection, due_in=3630.0)
    pgqueue("schedules", "run", "nightly")
    [schedule] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert list(schedule) == keys("key of a schedule")
    job = Job.objects.get()
    assert (schedule["last_job_id"], schedule["last_job_state"], schedule["state"]) == (job.pk, "ready", "on")
    line = pgqueue("schedules", "list").out.splitlines()[1]
    assert line.startswith("nightly") and "in 1 h" in line and f"#{job.pk} ready" in line


def test_schedules_list_says_which_schedules_fail(pgqueue):
    now = timezone.now()
    schedule_id = helpers.make_schedule(connection)
    for minutes in range(3):
        ScheduleRun.objects.create(schedule_id=schedule_id, tick_at=now - timedelta(minutes=minutes), job_id=die())
    [schedule] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert (schedule["state"], schedule["failed_in_a_row"]) == ("failing", {"value": 3, "is_exact": True})
    assert "failing, 3 in a row  " in pgqueue("schedules", "list").out
    coloured = pgqueue("schedules", "list", stdout=Terminal(), force_color=True).out
    assert "\x1b[31mfailing, 3 in a row\x1b[0m" in coloured
    ScheduleRun.objects.filter(job_id=Job.objects.latest("pk").pk).update(job_id=10**9)
    [schedule] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert schedule["failed_in_a_row"] == {"value": 2, "is_exact": False}
    assert "failing, 2+ in a row" in pgqueue("schedules", "list").out
    pgqueue("schedules", "pause", "nightly")
    [schedule] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert (schedule["state"], schedule["failed_in_a_row"]["value"]) == ("paused", 2)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"problem": "the unique key raised KeyError"}, "cannot run"),
        ({"expression": "whenever", "enabled": False}, "cannot run"),
        ({"origin": "code", "confirmed_at": timezone.now() - timedelta(hours=1)}, "in no worker's code"),
    ],
)
def test_schedules_list_has_the_words_of_the_admin(pgqueue, change, word):
    helpers.make_schedule(connection)
    Schedule.objects.update(**change)
    [schedule] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert schedule["state"] == word
    assert word in pgqueue("schedules", "list").out


def test_schedules_pause_and_resume_switch_it(pgqueue):
    helpers.make_schedule(connection)
    assert pgqueue("schedules", "pause", "nightly").out == "Paused.\n"
    assert not Schedule.objects.get().enabled
    assert pgqueue("schedules", "pause", "nightly").out == "It was paused already.\n"
    assert pgqueue("schedules", "resume", "nightly").out == "Resumed.\n"
    assert Schedule.objects.get().enabled
    assert "Nothing to resume" in pgqueue("schedules", "resume", "nightly").out
    schedule = Schedule.objects.get()
    entries = AuditEntry.objects.order_by("id").values_list("action", "filter")
    chosen = {"schedule": "nightly", "schedule_id": schedule.pk}
    assert list(entries) == [("pause_schedule", chosen), ("resume_schedule", chosen)]
    assert all(AuditEntry.objects.values_list("done_by", flat=True))


def test_schedules_pause_until_ends_by_itself(pgqueue):
    helpers.make_schedule(connection, due_in=60.0)
    assert pgqueue("schedules", "pause", "nightly", "--until", "2h").out == "Paused.\n"
    schedule = Schedule.objects.get()
    assert schedule.enabled and timedelta(hours=1) < schedule.paused_until - timezone.now() < timedelta(hours=3)
    entry = AuditEntry.objects.get()
    assert entry.filter["until"] == schedule.paused_until.isoformat()
    [shown] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert (shown["state"], shown["next_run_at"]) == ("paused", None) and shown["paused_until"]
    assert "paused until" in pgqueue("schedules", "list").out
    assert pgqueue("schedules", "resume", "nightly").out == "Resumed.\n"
    assert Schedule.objects.get().paused_until is None
    with pytest.raises(CommandError, match="in the past"):
        pgqueue("schedules", "pause", "nightly", "--until", "2001-01-01T00:00")


def test_schedules_pause_until_after_pause_makes_up_for_nothing(pgqueue):
    helpers.make_schedule(connection, due_in=60.0, missed="all")
    pgqueue("schedules", "pause", "nightly")
    Schedule.objects.update(next_run_at=timezone.now() - timedelta(days=30))
    pgqueue("schedules", "pause", "nightly", "--until", "2h")
    schedule = Schedule.objects.get()
    assert schedule.enabled and schedule.next_run_at > timezone.now()


def test_schedules_skip_names_the_run_and_skips_it(pgqueue, monkeypatch):
    helpers.make_schedule(connection, due_in=3600.0)
    at = Schedule.objects.get().next_run_at
    text = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    with pytest.raises(CommandError, match=f"skip the run at {text}"):
        pgqueue("schedules", "skip", "nightly")
    monkeypatch.setattr("django_pgqueue.management.subcommands.subcommand.has_terminal", lambda: True)
    questions = []
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "y")
    assert pgqueue("schedules", "skip", "nightly").out == f"The run at {text} is skipped.\n"
    assert questions == [f"Skip the run of nightly at {text}? [y/N] "]
    assert ScheduleRun.objects.get().tick_at == at
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.filter["tick_at"]) == ("skip_run", at.isoformat())
    [shown] = pgqueue("schedules", "list", "--json").document["schedules"]
    assert shown["skipped_run_at"] < shown["next_run_at"]
    assert "one skipped" in pgqueue("schedules", "list").out
    with pytest.raises(CommandError, match="skipped already"):
        pgqueue("schedules", "skip", "nightly", "--yes")
    assert pgqueue("schedules", "unskip", "nightly").out == f"The run at {text} is not skipped any more.\n"
    assert not ScheduleRun.objects.exists()
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.filter["tick_at"]) == ("undo_skip", at.isoformat())
    with pytest.raises(CommandError, match="is not skipped, is due"):
        pgqueue("schedules", "unskip", "nightly")


def test_schedules_pause_and_skip_store_the_reason(pgqueue):
    helpers.make_schedule(connection, due_in=3600.0)
    pgqueue("schedules", "skip", "nightly", "--yes", "--reason", "holiday")
    pgqueue("schedules", "pause", "nightly", "--reason", "migration")
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "reason")) == [
        ("skip_run", "holiday"),
        ("pause_schedule", "migration"),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"next_run_at": timezone.now() + timedelta(hours=5)}, "another one now, at"),
        ({"next_run_at": timezone.now() - timedelta(hours=5)}, "is due already"),
        ({"enabled": False}, "is paused"),
    ],
)
def test_schedules_skip_refuses_another_run_with_the_reason(pgqueue, monkeypatch, change, reason):
    helpers.make_schedule(connection, due_in=3600.0)
    monkeypatch.setattr("django_pgqueue.management.subcommands.subcommand.has_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: Schedule.objects.update(**change) and "y")
    with pytest.raises(CommandError, match=reason):
        pgqueue("schedules", "skip", "nightly")
    assert not ScheduleRun.objects.exists() and not AuditEntry.objects.exists()


def test_schedules_run_is_in_the_audit_with_its_job(pgqueue):
    helpers.make_schedule(connection)
    pgqueue("schedules", "run", "nightly")
    entry = AuditEntry.objects.get(action="run_schedule")
    assert [each.job_id for each in entry.jobs.all()] == [Schedule.objects.get().last_job_id]
    assert entry.done_by


def test_schedules_run_refuses_with_the_reason(pgqueue):
    helpers.make_schedule(connection, is_unique=True, task_name="shop.gone")
    with pytest.raises(CommandError, match="Nothing was changed: its jobs are unique"):
        pgqueue("schedules", "run", "nightly")
    with pytest.raises(CommandError, match="There is no schedule 'weekly'") as caught:
        pgqueue("schedules", "run", "weekly")
    assert caught.value.returncode == 3 and not Job.objects.exists()


# ------------------------------------------------------------------ workers and tasks


def test_workers_shows_busy_slots_and_silence(pgqueue):
    one, lost, stopped = (
        lifecycle_workers.register_worker(
            connection, hostname="web1", pid=pid, version="1.0", queue_names="mail,pdf", concurrency=4
        )
        for pid in (11, 12, 13)
    )
    Worker.objects.filter(pk=lost).update(last_heartbeat_at=timezone.now() - timedelta(hours=1))
    Worker.objects.filter(pk__in=(one, stopped)).update(resident_mib=96, release="v\n2")
    lifecycle_workers.unregister_worker(connection, stopped)
    claims.claim_one(connection, helpers.make_job(connection), worker_id=one, lease_seconds=60.0)
    workers = pgqueue("workers", "--json").document["workers"]
    left_out = {"heartbeat_age_seconds", "is_live", "supervisor_pid"}
    of_stats = {field.name for field in fields(stats.WorkerStats)}
    assert set(workers[0]) == {*keys("key of a worker"), *(of_stats - left_out)}
    shown = {worker["id"]: (worker["state"], worker["slots_busy"], worker["slots_total"]) for worker in workers}
    assert shown == {one: ("working", 1, 4), lost: ("silent", 0, 4)}
    assert workers[0]["queues"] == ["mail", "pdf"]
    assert workers[0]["queue_concurrency"] == {}
    Worker.objects.filter(pk=workers[0]["id"]).update(queue_names="mail=2,pdf=")
    [limited] = [each for each in pgqueue("workers", "--json").document["workers"] if each["queue_concurrency"]]
    assert (limited["queues"], limited["queue_concurrency"]) == (["mail", "pdf"], {"mail": 2, "pdf": None})
    assert "mail (2), pdf" in pgqueue("workers").out
    every = pgqueue("workers", "--all", "--json").document["workers"]
    assert {worker["id"]: worker["resident_mib"] for worker in every} == {one: 96, lost: None, stopped: 96}
    assert {worker["id"]: worker["release"] for worker in every} == {one: "v\n2", lost: "", stopped: "v\n2"}
    assert pgqueue("workers", "--all").out.count("v\\n2") == 2
    assert pgqueue("workers").out.count("96 MiB") == 1 and pgqueue("workers", "--all").out.count("96 MiB") == 2
    assert "stopped" in pgqueue("workers", "--all").out and "1 of 4" in pgqueue("workers").out


def test_tasks_counts_jobs_under_former_names(pgqueue):
    for name in (tasks.renamed.name, "tests.app.tasks.known_before_as"):
        helpers.make_job(connection, task_name=name)
    [shown] = pgqueue("tasks", tasks.renamed.name, "--json").document["tasks"]
    assert shown["depth"]["due"] == {"value": 2, "is_exact": True}
    assert list(shown["depth"]) == [field.name for field in fields(stats.Depth)]


def test_tasks_shows_signature_options_and_schedule(pgqueue):
    [shown] = pgqueue("tasks", tasks.use_token.name, "--json").document["tasks"]
    assert list(shown) == keys("key of a task")
    assert shown["signature"] == "(order_id: object, token: str = '', *, fail: bool = False)"
    assert shown["options"] == {"sensitive": "token", "max_attempts": "1", "backoff": "0"}
    assert tasks.attempt_number.name in pgqueue("tasks").out
    [with_context] = pgqueue("tasks", tasks.attempt_number.name, "--json").document["tasks"]
    assert with_context["signature"] == "()"
    with pytest.raises(CommandError, match=r"No task is named 'shop\.gone'"):
        pgqueue("tasks", "shop.gone")


@pytest.fixture
def worker_that_answers(monkeypatch):
    """Register a worker, and answer each request to it at once, as a running process would."""
    worker_id = lifecycle_workers.register_worker(
        connection, hostname="web1", pid=11, supervisor_pid=10, version="1.0", queue_names="", concurrency=4
    )
    original = worker_requests.request_of_worker

    def answered(*args, **options):
        added = original(*args, **options)
        if added is not None:
            worker_requests.answer_request(connection, added.request_id, f"frames of {added.request_id}\x1b[31m")
        return added

    monkeypatch.setattr(worker_requests, "request_of_worker", answered)
    return worker_id


@pytest.mark.parametrize("action", ["stop", "stack"])
def test_workers_action_prints_the_answer(pgqueue, worker_that_answers, action):
    out = pgqueue("workers", action, str(worker_that_answers)).out
    asked = WorkerRequest.objects.get()
    assert out == f"frames of {asked.pk}\\x1b[31m\n"
    assert (asked.kind, asked.execution_id) == (action, 0) and asked.requested_by
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by) == (AUDITED_AS[RequestKind(action)], asked.requested_by)


def test_workers_action_without_worker_or_answer_fails(pgqueue, monkeypatch):
    monkeypatch.setattr(workers_command, "ANSWER_SECONDS", 0.1)
    silent = lifecycle_workers.register_worker(
        connection, hostname="web1", pid=11, supervisor_pid=10, version="1.0", queue_names="", concurrency=4
    )
    for arguments, code in (([], 2), (["1"], 3), ([str(silent)], 1)):
        with pytest.raises(CommandError) as caught:
            pgqueue("workers", "stack", *arguments)
        assert caught.value.returncode == code, arguments
