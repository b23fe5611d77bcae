"""Names in arguments that nothing uses: the commands refuse them, name what may be meant, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue import Batch, control
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import search_keys
from django_pgqueue.models import AuditEntry, Job, JobBatch, LimitOverride, Pause
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.management.conftest import succeed

TASK, MEANT_TASK = "tests.app.tasks.nop", "tests.app.tasks.noop"
PLACES = {
    TASK: (
        ("pause", "--task", TASK), ("resume", "--task", TASK), ("drain", "--task", TASK), ("clear", "--task", TASK),
        ("jobs", "list", "--task", TASK), ("jobs", "list", "--task", TASK, "--json"), ("dead", "list", "--task", TASK),
        ("jobs", "cancel", "--task", TASK), ("jobs", "retry", "--task", TASK, "--dry-run"),
        ("jobs", "delete", "--task", TASK), ("dead", "retry", "--task", TASK), ("tasks", TASK), ("enqueue", TASK),
        ("dead", "acknowledge", "--task", TASK, "--reason", "why"),
        ("archive", "--task", TASK, "--older-than", "0s", "--table", "--yes"),
        ("archive", "--task", MEANT_TASK, "--task", TASK, "--older-than", "0s", "--table", "--yes"),
        ("erase", "--task", TASK, "--yes"),
    ),
    "reprots": (
        ("pause", "reprots"), ("resume", "reprots"), ("drain", "reprots"), ("clear", "reprots", "--yes"),
        ("jobs", "list", "--queue", "reprots"), ("dead", "list", "--queue", "reprots"),
        ("jobs", "cancel", "--queue", "reprots", "--yes"), ("jobs", "retry", "--queue", "reprots", "--yes"),
        ("dead", "retry", "--queue", "reprots", "--yes"), ("jobs", "move", "{id}", "--to-queue", "reprots"),
        ("jobs", "set-max-attempts", "--queue", "reprots", "--max-attempts", "3"),
        ("enqueue", MEANT_TASK, "--queue", "reprots"),
        ("archive", "--queue", "reprots", "--older-than", "0s", "--table", "--yes"),
        ("erase", "--queue", "reprots", "--yes"),
    ),
    "stirpe": (
        ("pause", "--limit-key", "stirpe:7"), ("resume", "--limit-key", "stirpe"), ("drain", "--limit-key", "stirpe"),
        ("clear", "--limit-key", "stirpe", "--yes"), ("limits", "show", "stirpe"), ("limits", "show", "stirpe:7"),
        ("limits", "set", "stirpe", "--concurrency", "3"), ("limits", "reset", "stirpe"),
        ("limits", "release", "stirpe:7"), ("jobs", "list", "--limit-key", "stirpe"),
        ("jobs", "cancel", "--limit-key", "stirpe:7", "--yes"),
    ),
    "nigthly": tuple(("schedules", word, "nigthly") for word in ("run", "pause", "resume", "skip", "unskip")),
    "custmer": (
        ("jobs", "list", "--search", "custmer=7"), ("jobs", "cancel", "--search", "custmer=7", "--yes"),
        ("dead", "retry", "--search", "custmer=7", "--yes"), ("erase", "--search", "custmer=7", "--yes"),
    ),
}  # fmt: skip
MEANT = {
    TASK: MEANT_TASK, "reprots": "reports", "stirpe": "stripe", "nigthly": "nightly", "custmer": "customer"
}  # fmt: skip


@pytest.fixture
def job_id(db, monkeypatch) -> int:
    """A job in the queue `reports`, a limit, a schedule and a search key with the names that are meant."""
    monkeypatch.setattr(registry, "_limits", {"stripe": Limit("stripe", key="{key}", concurrency=1)})
    monkeypatch.setattr(registry, "all_tasks", lambda: [replace(tasks.noop, search=("customer",)), tasks.add])
    helpers.make_schedule(connection)
    return helpers.make_job(connection, queue_name="reports", task_name=MEANT_TASK)


def refusal(pgqueue, *words: object) -> str:
    with pytest.raises(CommandError) as refused:
        pgqueue(*words)
    assert refused.value.returncode == 3, refused.value
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, calls in PLACES.items() for words in calls], ids=str
)
def test_misspelled_name_is_refused_with_the_name_meant(pgqueue, job_id, name, words):
    text = refusal(pgqueue, *(word.format(id=job_id) for word in words))
    assert f"{name!r}" in text and f"did you mean {MEANT[name]!r}" in text
    assert not (Pause.objects.exists() or LimitOverride.objects.exists())
    assert list(Job.objects.values_list("pk", "state", "queue_name")) == [(job_id, "ready", "reports")]
    assert not AuditEntry.objects.exclude(action="erase").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("clear", "zzz"), "No task, schedule, waiting job or recent job uses the queue 'zzz'. `pgqueue queues`"),
        (("pause", "--task", "zzz"), "No task, schedule or job has the name 'zzz'. `pgqueue tasks` lists what exists."),
        (("clear", "--limit-key", "zzz:1"), "No task or job has the limit 'zzz'. `pgqueue limits list` lists"),
        (("schedules", "run", "zzz"), "There is no schedule 'zzz' in the database 'default'. `pgqueue schedules list`"),
        (("pause", "--task", "noop"), f"did you mean {MEANT_TASK!r}?"),
    ],
)
def test_unknown_name_is_refused_with_what_lists_names(pgqueue, job_id, words, text):
    assert text in refusal(pgqueue, *words)


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (("pause", "reprots"), "Paused. 0 jobs are waiting."),
        (("pause", "zzz"), "Paused. 0 jobs are waiting."),
        (("pause", "--task", TASK), "Paused. 0 jobs are waiting."),
        (("pause", "--limit-key", "stirpe"), "Paused. 0 jobs are waiting."),
        (("limits", "set", "stirpe", "--concurrency", "3"), "Overridden."),
        (("jobs", "move", "{id}", "--to-queue", "reprots"), "Moved 1 job."),
        (("enqueue", MEANT_TASK, "--queue", "reprots"), "in the queue reprots"),
    ],
    ids=str,
)
def test_force_accepts_a_name_that_is_not_used_yet(pgqueue, job_id, words, done):
    filled = [word.format(id=job_id) for word in words]
    assert "Pass --force if the name is right." in refusal(pgqueue, *filled) or words[1] == "zzz"
    assert done in pgqueue(*filled, "--force").out


@pytest.mark.parametrize("kind", ["waiting", "finished", "schedule", "pause"])
def test_name_that_only_old_rows_have_is_accepted(pgqueue, db, monkeypatch, kind):
    """Nothing in the code has the names, and the newest jobs have others."""
    monkeypatch.setattr("django_pgqueue.stats.used_names.RECENT_JOBS", 0)
    if kind == "schedule":
        helpers.make_schedule(connection, task_name="shop.old", queue_name="old")
    elif kind == "pause":
        control.pause("old")
        control.pause(task="shop.old")
    else:
        old = helpers.make_job(connection, queue_name="old", task_name="shop.old")
        if kind != "waiting":
            succeed(old)
        helpers.make_jobs(connection, 3, queue_name="olds")
    pgqueue("clear", "old", "--yes")
    pgqueue("jobs", "retry", "--queue", "old", "--task", "shop.old", "--yes")
    pgqueue("archive", "--queue", "old", "--task", "shop.old", "--older-than", "0s", "--table", "--yes")
    if kind == "pause":
        assert pgqueue("resume", "old").out == pgqueue("resume", "--task", "shop.old").out == "Resumed.\n"


def test_archive_of_a_queue_beyond_the_search_is_done(pgqueue, db, monkeypatch):
    monkeypatch.setattr("django_pgqueue.job_search.search.SEARCHED", 1)
    monkeypatch.setattr("django_pgqueue.stats.used_names.RECENT_JOBS", 0)
    succeed(helpers.make_job(connection, queue_name="old"))
    helpers.make_jobs(connection, 4)
    out = pgqueue("archive", "--queue", "old", "--older-than", "0s", "--table", "--yes").out
    assert out.endswith("Archived 1 job in pgqueue_archived_job.\n")


def test_erase_of_callbacks_of_a_former_task_succeeds(pgqueue, db):
    batch = Batch(on_complete=tasks.noop.s("secret")).open()
    batch.close()
    run_jobs()
    Job.objects.all().delete()
    JobBatch.objects.update(on_complete={**batch.record.on_complete, "task_name": "shop.old"})
    answer = pgqueue("erase", "--task", "shop.old", "--yes")
    assert answer.err.startswith("Warning: No task, schedule or job has the name 'shop.old'")
    assert "secret" not in str(JobBatch.objects.get().on_complete)


def test_search_key_that_only_jobs_have_is_accepted(pgqueue, db):
    search_keys.add_search_keys(connection, {helpers.make_job(connection): {"former": "1"}})
    assert pgqueue("jobs", "list", "--search", "former=2").err == "0 jobs.\n"


def test_known_names_that_find_nothing_are_no_error(pgqueue, job_id):
    assert pgqueue("jobs", "list", "--queue", "reports", "--state", "dead").err == "0 jobs.\n"
    assert pgqueue("dead", "list", "--task", MEANT_TASK, "--limit-key", "stripe:9").err == "0 dead jobs.\n"
    assert pgqueue("jobs", "retry", "--queue", "reports").out == "0 jobs to retry.\n"
    assert pgqueue("clear", "--limit-key", "stripe:9", "--yes").out == "0 jobs to cancel.\n"
