"""`django_pgqueue.control.queues` and its commands: their effects, the arguments that they refuse, and their output."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import chain, control
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job, Pause
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks
from tests.framework import tasks as framework
from tests.test_sql import nodes, rows_read

pytestmark = pytest.mark.django_db


def run(*arguments):
    output = StringIO()
    call_command("pgqueue", *arguments, stdout=output)
    return output.getvalue().strip()


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ({}, TypeError, "either a queue name, a task or a limit key"),
        ({"queue_name": "mail", "task": tasks.noop}, TypeError, "only one of them"),
        ({"queue_name": "two words"}, ValueError, "invalid queue name"),
        ({"queue_name": "mail", "limit_key": "stripe"}, TypeError, "only one of them"),
        ({"limit_key": "two words"}, ValueError, "invalid limit key 'two words': pass the name of a limit"),
        ({"limit_key": "stripe:"}, ValueError, "the key of limit 'stripe' is empty"),
        ({"limit_key": 7}, ValueError, "invalid limit key 7"),
        ({"task": ""}, ValueError, "invalid task name"),
        ({"task": 7}, ValueError, "invalid task name"),
    ],
)
@pytest.mark.parametrize("act", [control.pause, control.resume, control.drain, control.clear])
def test_control_invalid_target_is_refused_and_pauses_nothing(act, target, error, words):
    with pytest.raises(error, match=words):
        act(**target)
    assert not Pause.objects.exists()


@pytest.mark.parametrize(
    ("until", "error"),
    [
        (datetime(2030, 1, 1), ValueError),  # noqa: DTZ001 -- deliberately naive
        (datetime(2020, 1, 1, tzinfo=UTC), ValueError),
        (-5, ValueError),
        ("soon", TypeError),
    ],
)
def test_pause_invalid_until_is_refused(until, error):
    with pytest.raises(error):
        control.pause("mail", until=until)
    assert not Pause.objects.exists()


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop.name, framework.add])
def test_pause_accepts_task_framework_task_and_name(task):
    control.pause(task=task, until=timedelta(hours=1), reason="late\0r", by="a" * 300)
    pause = Pause.objects.get()
    assert (pause.kind, pause.name) == ("task", task if isinstance(task, str) else task.module_path)
    assert (pause.reason, len(pause.paused_by)) == ("later", 150)
    assert pause.paused_until is not None


@pytest.mark.parametrize("act", [control.pause, control.resume, control.clear])
def test_misspelled_task_warns_at_the_line_of_the_caller(act, recwarn):
    act(task="tests.app.tasks.nop")
    [warning] = recwarn.list
    assert warning.category is control.UnknownTaskWarning
    assert "this process has no task 'tests.app.tasks.nop': did you mean 'tests.app.tasks.noop'?" in str(
        warning.message
    )
    assert warning.filename == __file__
    act(task="elsewhere.tasks.count_words")  # it resembles no task, so it may belong to other code
    assert len(recwarn.list) == 1


def test_pause_task_covers_jobs_under_its_old_names(monkeypatch):
    monkeypatch.setitem(registry._tasks, "old.name", tasks.noop)
    object.__setattr__(tasks.noop, "aliases", ("old.name",))
    try:
        Job.objects.create(task_name="old.name", arguments={"args": [], "kwargs": {}})
        control.pause(task="old.name")
        assert Pause.objects.get().name == tasks.noop.name
        assert control.waiting(task=tasks.noop).count() == 1
        assert run_jobs() == 0
        assert control.resume(task=tasks.noop)
        assert run_jobs() == 1
    finally:
        object.__setattr__(tasks.noop, "aliases", ())


def test_resume_ends_pause_under_old_task_name(monkeypatch):
    control.pause(task="old.name")
    monkeypatch.setitem(registry._tasks, "old.name", tasks.noop)
    object.__setattr__(tasks.noop, "aliases", ("old.name",))
    try:
        control.pause(task="old.name", until=timedelta(hours=1))
        assert Pause.objects.get().paused_until
        Pause.objects.update(name="old.name")
        assert control.resume(task=tasks.noop)
        assert not Pause.objects.exists()
    finally:
        object.__setattr__(tasks.noop, "aliases", ())


def test_run_jobs_paused_queue_waits_until_pause_ends():
    tasks.noop.using(queue_name="mail").enqueue()
    tasks.noop.enqueue()
    control.pause("mail", until=timedelta(hours=1))
    assert run_jobs() == 1
    with time_travel(minutes=61):
        assert run_jobs() == 1


def test_run_jobs_skips_jobs_of_paused_task():
    tasks.add.enqueue(1, 2)
    tasks.noop.using(run_after=60).enqueue()
    tasks.noop.using(queue_name="other", run_after=60).enqueue()
    control.pause(task=tasks.add)
    assert run_jobs() == 0
    assert run_jobs(until=3600) == 2
    control.pause(task=tasks.add, until=timedelta(minutes=10))
    assert run_jobs(until=300) == 0
    assert run_jobs(until=3600) == 1


def test_pause_rolls_back_with_its_transaction():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        control.pause("mail")
        1 / 0  # noqa: B018 -- only the exception matters
    assert not Pause.objects.exists()


def audited():
    """Return the entries of the audit: action, person, reason and what was chosen."""
    return list(AuditEntry.objects.order_by("id").values_list("action", "done_by", "reason", "filter"))


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        ({"queue_name": "mail"}, {"queue_name": "mail"}),
        ({"task": "app.add"}, {"task_name": "app.add"}),
        ({"limit_key": "stripe:7"}, {"limit_key": "stripe:7"}),
    ],
)
def test_pause_and_resume_are_in_the_audit(target, chosen):
    control.pause(**target, until=timedelta(hours=1), reason="late\0r", by="ada")
    pause = Pause.objects.get()
    until = pause.paused_until.isoformat()
    assert audited() == [("pause", "ada", "later", {**chosen, "until": until})]
    assert control.resume(**target, reason="it is up", by="bob")
    former = {"by": "ada", "since": pause.paused_at.isoformat(), "until": until}
    assert audited()[1:] == [("resume", "bob", "it is up", {**chosen, "paused": former})]
    assert not control.resume(**target, by="bob") and len(audited()) == 2
    assert set(AuditEntry.objects.values_list("outcome", "job_count")) == {("done", 0)}


def test_pause_that_replaces_one_records_both_in_the_audit():
    control.pause("mail", by="ada")
    control.pause("mail", by="bob", until=60)
    since = Pause.objects.get().paused_at.isoformat()
    until = Pause.objects.get().paused_until.isoformat()
    replaced = {"queue_name": "mail", "until": until, "paused": {"by": "ada", "since": since}}
    assert audited()[1:] == [("pause", "bob", "", replaced)]


def test_pause_that_ended_by_itself_is_neither_replaced_nor_resumed():
    control.pause("mail", until=60)
    Pause.objects.update(paused_until=timezone.now() - timedelta(seconds=1))
    assert not control.resume("mail") and len(audited()) == 1
    control.pause("mail", until=60)
    Pause.objects.update(paused_until=timezone.now() - timedelta(seconds=1))
    control.pause("mail", by="bob")
    assert audited()[-1] == ("pause", "bob", "", {"queue_name": "mail"})


def test_pause_that_replaces_one_under_a_former_name_records_its_end(monkeypatch):
    renamed = Task(func=tasks.noop.func, aliases=("old.name",))
    control.pause(task="old.name", by="ada")
    for name in ("old.name", renamed.name):
        monkeypatch.setitem(registry._tasks, name, renamed)
    control.pause(task=renamed, by="bob")
    assert [(action, by, chosen["task_name"]) for action, by, _, chosen in audited()[1:]] == [
        ("resume", "bob", "old.name"),
        ("pause", "bob", tasks.noop.name),
    ]


def test_pause_command_and_resume_command_are_in_the_audit():
    run("pause", "mail", "--until", "2h", "--reason", "deploy")
    run("resume", "mail", "--reason", "deployed")
    assert [(action, reason) for action, _, reason, _ in audited()] == [("pause", "deploy"), ("resume", "deployed")]
    assert len({by for _, by, _, _ in audited()}) == 1 and audited()[0][1]


def test_clear_is_in_the_audit_with_its_jobs(monkeypatch):
    monkeypatch.setattr(control.queues, "CLEAR_BATCH", 2)
    jobs = [tasks.noop.using(queue_name="mail").enqueue() for _ in range(3)]
    tasks.noop.enqueue()
    assert control.clear("empty", by="ada") == 0 and not audited()
    assert control.clear("mail", by="ada", reason="too many") == 3
    assert audited() == [("cancel", "ada", "too many", {"word": "ready", "queue_name": "mail"})]
    entry = AuditEntry.objects.get()
    assert (entry.job_count, entry.outcome) == (3, "done")
    assert {each.job_id for each in entry.jobs.all()} == {job.pk for job in jobs}
    first, dependent = chain(tasks.noop.using(queue_name="mail").s()).then(tasks.noop).enqueue().job_ids
    run("clear", "mail", "--reason", "again", "--yes")
    assert audited()[-1][2] == "again" and audited()[-1][1]
    assert [each.job_id for each in AuditEntry.objects.latest("id").jobs.all()] == [first]
    assert Job.objects.get(pk=dependent).state == "cancelled"


def test_clear_that_is_stopped_leaves_the_other_jobs(monkeypatch):
    monkeypatch.setattr(control.queues, "CLEAR_BATCH", 2)
    for _ in range(5):
        tasks.noop.using(queue_name="mail").enqueue()

    def record(*args, original=audit.record_audit, **options):
        audit.stop_audit(connection, args[1], "bob")
        return original(*args, **options)

    monkeypatch.setattr(audit, "record_audit", record)
    assert control.clear("mail", by="ada") == 2
    assert control.waiting("mail").count() == 3
    assert AuditEntry.objects.get().outcome == "stopped"


def test_drain_inside_transaction_is_refused():
    with pytest.raises(RuntimeError, match="before its transaction is committed"):
        control.drain("mail")
    assert not Pause.objects.exists()


def test_clear_with_many_finished_jobs_reads_only_ready_ones(monkeypatch):
    monkeypatch.setattr(control.queues, "CLEAR_BATCH", 2)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) "
            "SELECT 'noop', '{}', 'succeeded', statement_timestamp() FROM generate_series(1, 5000)"
        )
        cursor.execute("ANALYZE pgqueue_job")
    for queue_name in ("mail", "mail", "other", "mail"):
        tasks.noop.using(queue_name=queue_name).enqueue()
    tasks.add.using(queue_name="mail").enqueue(1)
    with CaptureQueriesContext(connection) as captured:
        assert control.clear("mail") == 4
        assert control.clear(task=tasks.noop) == 1
    pages = [query["sql"] for query in captured if "FROM pgqueue_job" in query["sql"] and "UPDATE" not in query["sql"]]
    assert len(pages) == 6, "of each, two pages of jobs without a limit and one of those with a limit"
    for page in pages:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {page}")
            [[plan]] = cursor.fetchall()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        assert sum(rows_read(node) for node in nodes(plan[0]["Plan"])) <= 10, page


# ------------------------------------------------------------------ the commands


def test_pgqueue_commands_report_what_they_did():
    tasks.noop.using(queue_name="mail").enqueue()
    tasks.noop.using(queue_name="mail", run_after=3600).enqueue()
    assert run("pause", "mail", "--reason", "the server is down", "--until", "2h") == "Paused. 2 jobs are waiting."
    pause = Pause.objects.get()
    assert pause.paused_by
    assert pause.reason == "the server is down"
    assert pause.paused_until - pause.paused_at == timedelta(hours=2)
    preview = f"2 jobs to cancel:\n         2  {tasks.noop.name}"
    assert run("clear", "mail", "--dry-run") == preview
    assert run("clear", "mail", "--yes") == f"{preview}\nCancelled 2 jobs."
    assert run("resume", "mail") == "Resumed."
    assert run("resume", "mail") == "Nothing to resume: it is not paused."


def test_pause_until_without_offset_is_in_project_time_zone():
    run("pause", "--task", tasks.noop.name, "--until", "2030-01-31T08:00+01:00")
    assert Pause.objects.get().paused_until == datetime(2030, 1, 31, 7, tzinfo=UTC)
    run("pause", "--task", tasks.noop.name, "--until", "2030-01-31T08:00")
    assert Pause.objects.get().paused_until == datetime(2030, 1, 31, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pause",), "--task with the name of a task, or --limit-key"),
        (("pause", "mail", "--task", "shop.tasks.one"), "--task with the name of a task, or --limit-key"),
        (("pause", "mail", "--until", "tomorrow"), "Invalid --until 'tomorrow'"),
        (
            ("pause", "mail", "--until", "2020-01-31T08:00"),
            "Invalid --until '2020-01-31T08:00': this time is in the past",
        ),
        (("drain", "mail", "--timeout", "ten"), "Invalid --timeout 'ten'"),
        (("clear", "mail", "--database", "nowhere"), "no alias 'nowhere'"),
    ],
)
def test_pgqueue_command_invalid_arguments_show_the_remedy(arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_drain_invalid_timeout_pauses_nothing(timeout):
    with pytest.raises((TypeError, ValueError), match="duration"):
        control.drain("mail", timeout=timeout)
    assert not Pause.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_drain_without_running_job_ends_at_once():
    assert run("drain", "mail", "--timeout", "1s") == "Paused, and no job of it is running."
    assert Pause.objects.get().reason == "drained"
    Pause.objects.all().delete()
