"""Names of queues that are probably mistyped: what warns, what is an error with `QUEUES`, and what is silent."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_pgqueue import control, queues, stats
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.management import queue_arguments
from django_pgqueue.models import Job, Pause, Schedule
from django_pgqueue.queues import UnknownQueueWarning, is_slip, mistyped
from django_pgqueue.testing import delete_all_jobs
from tests import helpers
from tests.app import tasks

LIKE_DEFAULT = "no task, schedule, waiting job or recent job uses the queue 'defualt': did you mean 'default'?"


@pytest.mark.parametrize(
    ("typed", "meant", "expected"),
    [
        ("defualt", "default", True),  # two letters in the wrong order
        ("defult", "default", True),
        ("defaultt", "default", True),
        ("dexault", "default", True),
        ("edfault", "default", True),
        ("default", "default", False),
        ("dealt", "default", False),
        ("faultde", "default", False),
        ("mail-1", "mail-2", False),
        ("mail1", "mail", False),
        ("mail-eu", "mail_eu", False),
        ("reports", "default", False),
    ],
)
def test_is_slip_is_true_for_one_wrong_letter(typed, meant, expected):
    assert is_slip(typed, meant) is expected
    assert is_slip(meant, typed) is expected


# ---------------------------------------------------------------------------- using()


@pytest.mark.promise("mistyped-queue-warns")
def test_using_mistyped_queue_warns_without_query(django_assert_num_queries, db):
    with django_assert_num_queries(0), pytest.warns(UnknownQueueWarning) as caught:
        changed = tasks.noop.using(queue_name="defualt")
    [warning] = caught
    assert str(warning.message).startswith("no task has the queue 'defualt': did you mean 'default'?")
    assert warning.filename == __file__
    assert changed.queue_name == "defualt"


@pytest.mark.parametrize("name", ["default", "default2", "mail", "tenant-42", "dflt"])
def test_using_other_queue_is_silent(name):
    assert tasks.noop.using(queue_name=name).queue_name == name


@pytest.mark.pgqueue(QUEUES=["default", "defualt"])
def test_using_listed_queue_is_silent():
    assert tasks.noop.using(queue_name="defualt").queue_name == "defualt"


@pytest.mark.pgqueue(QUEUES=["default"])
def test_using_unlisted_queue_is_refused():
    with pytest.raises(InvalidTask, match="did you mean 'default'"):
        tasks.noop.using(queue_name="defualt")


# ---------------------------------------------------------------------------- with the database


@pytest.mark.django_db
def test_mistyped_message_says_whether_due_jobs_wait():
    assert mistyped("defualt", "default") == LIKE_DEFAULT
    tasks.noop.using(run_after=60).enqueue()
    assert mistyped("defualt", "default") == LIKE_DEFAULT
    tasks.noop.enqueue()
    assert mistyped("defualt", "default") == LIKE_DEFAULT.replace("?", ", where due jobs wait?")


def insert_ready(**columns):
    Job.objects.create(task_name=helpers.NOOP, arguments={}, **columns)


@pytest.mark.django_db
def test_mistyped_message_knows_due_jobs_with_limit():
    where = LIKE_DEFAULT.replace("?", ", where due jobs wait?")
    for limit_key in ("import:7", chunk_key(helpers.NOOP)):
        delete_all_jobs()
        insert_ready(limit_key=limit_key, run_after=timezone.now() + timedelta(hours=1))
        insert_ready(limit_key=limit_key, queue_name="mail")
        assert mistyped("defualt", "default") == LIKE_DEFAULT, limit_key
        insert_ready(limit_key=limit_key)
        assert mistyped("defualt", "default") == where, limit_key
    control.pause("default")
    assert mistyped("defualt", "default") == LIKE_DEFAULT


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["default", "default7", "reports"])
def test_mistyped_of_other_names_is_empty(name):
    assert mistyped(name, "default") == ""


@pytest.mark.django_db
@pytest.mark.parametrize("user", ["waiting", "finished", "schedule"])
def test_mistyped_of_used_queue_is_empty(user):
    if user == "schedule":
        times = {"expression": "@daily", "next_run_at": timezone.now()}
        Schedule.objects.create(name="a", task_name="a", arguments={}, queue_name="defualt", **times)
    else:
        helpers.make_jobs(connection, 1, queue_name="defualt")
    if user == "finished":
        Job.objects.get().cancel()
    assert mistyped("defualt", "default") == ""


@pytest.mark.django_db
def test_mistyped_of_queue_behind_many_other_queues_is_empty():
    """The list of queues ends at 200 names, and the newest 1,000 jobs are in other queues."""
    connection.cursor().execute(
        "INSERT INTO pgqueue_job (task_name, arguments, queue_name) SELECT 'noop', '{}', "
        "CASE n WHEN 1 THEN 'zdefault' ELSE 'a' || n % 300 END FROM generate_series(1, 1301) AS n"
    )
    assert "zdefault" not in stats.names(connection).queues
    assert mistyped("zdefault", "default") == ""


@pytest.mark.django_db
def test_mistyped_without_right_to_read_omits_or_is_silent():
    connection.cursor().execute("ALTER TABLE pgqueue_schedule RENAME TO hidden")
    assert mistyped("defualt", "default") == LIKE_DEFAULT.replace("schedule, waiting job or", "waiting or")
    connection.cursor().execute("ALTER TABLE pgqueue_job RENAME TO hidden_too")
    assert mistyped("defualt", "default") == ""
    assert not Pause.objects.exists()  # the transaction still works


@pytest.mark.django_db
def test_waiting_jobs_of_a_queue_are_found_by_an_index():
    connection.cursor().execute(
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) "
        "SELECT 'noop', '{}', 'dead', statement_timestamp() FROM generate_series(1, 20000)"
    )
    connection.cursor().execute("ANALYZE pgqueue_job")
    plan = queues.waiting("defualt", "default").explain()
    assert "pgqueue_job_ready" in plan
    assert "Seq Scan" not in plan


# ---------------------------------------------------------------------------- control and commands

ACTS = [control.pause, control.drain, control.resume, control.clear]


@pytest.mark.promise("mistyped-queue-warns")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", ACTS)
def test_control_mistyped_queue_warns_once(act, committing):
    options = {"timeout": 0} if act is control.drain else {}
    with pytest.warns(UnknownQueueWarning, match=re.escape(LIKE_DEFAULT)) as caught:
        act("defualt", **options)
    [warning] = caught
    assert warning.filename == __file__
    assert Pause.objects.count() == (act in (control.pause, control.drain))


@pytest.mark.django_db(transaction=True)
@pytest.mark.pgqueue(QUEUES=["default"])
@pytest.mark.parametrize("act", ACTS)
def test_control_unlisted_queue_raises_and_pauses_nothing(act, committing):
    with pytest.raises(ValueError, match="'defualt' is not in PGQUEUE\\['QUEUES'\\]: did you mean 'default'"):
        act("defualt")
    assert not Pause.objects.exists()


@pytest.mark.django_db
@pytest.mark.pgqueue(QUEUES=["default"])
def test_resume_and_clear_still_work_for_unlisted_queue():
    """A project that removes a queue from the list may still have jobs and a pause there."""
    Pause.objects.create(kind="queue", name="former")
    helpers.make_jobs(connection, 2, queue_name="former")
    assert control.resume("former")
    assert control.clear("former") == 2


@pytest.mark.django_db
def test_control_known_queue_needs_no_query_for_its_name(django_assert_num_queries):
    with django_assert_num_queries(0):
        queues.check("default", "default")


@pytest.mark.django_db
def test_pause_command_with_force_warns_on_stderr_and_pauses():
    output, errors = StringIO(), StringIO()
    with warnings.catch_warnings(record=True) as caught:
        call_command("pgqueue", "pause", "defualt", "--force", stdout=output, stderr=errors)
    assert errors.getvalue() == f"Warning: {LIKE_DEFAULT}\n"
    assert output.getvalue() == "Paused. 0 jobs are waiting.\n"
    assert not caught
    assert Pause.objects.get().name == "defualt"


@pytest.mark.django_db
@pytest.mark.pgqueue(QUEUES=["default"])
def test_commands_unlisted_queue_is_an_error():
    with pytest.raises(CommandError, match="did you mean 'default'"):
        call_command("pgqueue", "pause", "defualt")
    with pytest.raises(CommandError, match=r"--queues 'defualt' is not in PGQUEUE\['QUEUES'\]: did you mean 'default'"):
        queue_arguments.queue_names("default,defualt")
    with pytest.raises(CommandError, match=r"--queue 'defualt' is not in PGQUEUE\['QUEUES'\]: did you mean 'default'"):
        queue_arguments.served_queues(None, ["*", "defualt=2"])
    assert not Job.objects.exists()
