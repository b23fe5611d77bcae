"""`pgqueue jobs retry|cancel|move|delete`: which jobs an action changes, and how it asks, stops and reports."""

from __future__ import annotations

import logging
import re
import signal
from functools import partial
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue.ends import job_operations
from django_pgqueue.lifecycle import operator
from django_pgqueue.management.subcommands import paced_changes
from django_pgqueue.models import AuditEntry, Execution, Job
from tests import helpers
from tests.documents import blocks
from tests.management.conftest import Terminal, claim, die, fail, succeed


def states() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "state"))


def test_example_in_the_reference_is_what_an_action_prints(pgqueue, monkeypatch):
    """The example has other numbers and ids than the test, but the same words."""
    [example] = [text for text in blocks("docs/reference/cli.md", "text") if "to retry" in text]
    for _ in range(6):
        die(task_name="shop.charge")
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "y")
    lines = pgqueue("jobs", "retry", "--state", "dead").out.splitlines()
    printed = [*lines[:2], f"{asked[0]}y", *lines[2:]]
    assert [words(line) for line in printed] == [words(line) for line in example.splitlines()]


def words(line: str) -> list[str]:
    """Return the words of a line, with each number as 0."""
    return re.sub(r"\d[\d,]*\d|\d", "0", line).split()


@pytest.mark.parametrize("action", ["retry", "cancel", "move", "delete"])
def test_action_without_ids_and_filters_is_refused(pgqueue, action):
    with pytest.raises(CommandError, match="at least one filter") as caught:
        pgqueue("jobs", action, "--yes", *(["--to-queue", "mail"] if action == "move" else []))
    assert caught.value.returncode == 2


def test_action_on_missing_job_changes_nothing(pgqueue):
    dead = die()
    with pytest.raises(CommandError, match=f"Job {dead + 1} does not exist") as caught:
        pgqueue("jobs", "retry", dead, dead + 1)
    assert caught.value.returncode == 3
    assert states() == {dead: "dead"}


def test_retry_by_filter_changes_matching_dead_jobs_only(pgqueue):
    wanted = [die(error="shop.Declined") for _ in range(2)]
    others = {die(): "dead", succeed(helpers.make_job(connection)): "succeeded"}
    answer = pgqueue("jobs", "retry", "--error", "Declined", "--yes")
    assert states() == {**dict.fromkeys(wanted, "ready"), **others}
    assert answer.out.startswith("2 jobs to retry:") and answer.out.endswith("Retried 2 jobs.\n")


def test_retry_of_finished_job_needs_an_option(pgqueue):
    done = succeed(helpers.make_job(connection))
    with pytest.raises(CommandError, match=r"Nothing was changed"):
        pgqueue("jobs", "retry", done)
    with pytest.raises(CommandError, match="Pass --finished to retry succeeded jobs"):
        pgqueue("jobs", "retry", "--state", "succeeded", "--yes")
    assert states() == {done: "succeeded"}
    pgqueue("jobs", "retry", "--state", "succeeded", "--finished", "--yes")
    assert states() == {done: "ready"}


@pytest.mark.parametrize("command", [("jobs", "acknowledge"), ("dead", "acknowledge")], ids=" ".join)
def test_acknowledge_by_filter_changes_matching_dead_letters(pgqueue, command):
    wanted = [die(error="shop.Declined") for _ in range(2)]
    known = die(error="shop.Declined")
    Job.objects.get(pk=known).acknowledge()
    other = die()
    with pytest.raises(CommandError, match="Pass --reason"):
        pgqueue(*command, "--error", "Declined", "--yes")
    answer = pgqueue(*command, "--error", "Declined", "--yes", "--reason", "the shop is closed")
    assert answer.out.startswith("2 jobs to acknowledge:") and answer.out.endswith("Acknowledged 2 jobs.\n")
    assert "They stay dead. Their batches still count them as failed" in answer.out
    assert set(Job.objects.acknowledged().values_list("pk", flat=True)) == {known, *wanted}
    assert list(Job.objects.dead().values_list("pk", flat=True)) == [other]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.job_count) == ("acknowledge", "the shop is closed", 2)
    shown = pgqueue("jobs", "show", wanted[0])
    assert ": the shop is closed" in shown.out.split("Acknowledged\n")[1].splitlines()[0]
    document = pgqueue("jobs", "show", wanted[0], "--json").document
    assert (document["status"], document["state"]) == ("acknowledged", "dead")
    assert document["acknowledgement"]["reason"] == "the shop is closed"
    assert document["acknowledgement"]["at"] == document["acknowledged_at"]


def test_acknowledge_of_acknowledged_job_says_so(pgqueue):
    known, ready = die(), helpers.make_job(connection)
    Job.objects.get(pk=known).acknowledge()
    stdout = StringIO()
    with pytest.raises(CommandError, match="Nothing was changed"):
        pgqueue("jobs", "acknowledge", known, ready, "--reason", "gone", stdout=stdout)
    assert "1 job left out: acknowledged already." in stdout.getvalue()
    assert "1 job left out: ready, and acknowledge needs dead." in stdout.getvalue()


def test_retry_takes_acknowledged_jobs_only_if_they_are_named(pgqueue):
    known, letter = die(), die()
    Job.objects.get(pk=known).acknowledge()
    pgqueue("jobs", "retry", "--state", "dead", "--yes")
    assert states() == {known: "dead", letter: "ready"}
    pgqueue("jobs", "retry", "--state", "acknowledged", "--yes")
    assert states() == {known: "ready", letter: "ready"}
    again = die()
    Job.objects.get(pk=again).acknowledge()
    pgqueue("jobs", "retry", again)
    assert states()[again] == "ready"


def test_delete_by_filter_takes_acknowledged_jobs_too(pgqueue):
    known = die(task_name="shop.charge")
    Job.objects.get(pk=known).acknowledge()
    pgqueue("jobs", "delete", "--task", "shop.charge", "--yes")
    assert states() == {}


def test_dry_run_prints_jobs_and_changes_none(pgqueue):
    dead = die(task_name="shop.charge")
    out = pgqueue("jobs", "retry", "--state", "dead", "--dry-run").out
    assert "1 job to retry" in out and f"shop.charge (id {dead})" in out
    assert states() == {dead: "dead"}


def test_action_without_terminal_needs_yes_for_filters(pgqueue):
    dead = die()
    with pytest.raises(CommandError, match="Pass --yes") as caught:
        pgqueue("jobs", "delete", "--state", "dead")
    assert caught.value.returncode == 2 and states() == {dead: "dead"}
    pgqueue("jobs", "delete", dead)
    assert states() == {}


@pytest.mark.parametrize(("typed", "left"), [("y", {}), ("", {"dead"}), ("n", {"dead"})])
def test_action_on_terminal_asks(pgqueue, monkeypatch, typed, left):
    die()
    monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))
    if left:
        with pytest.raises(CommandError, match="Nothing was changed"):
            pgqueue("jobs", "delete", "--state", "dead")
    else:
        pgqueue("jobs", "delete", "--state", "dead")
    assert set(states().values()) == set(left)


@pytest.mark.promise("shell-compares")
def test_action_leaves_jobs_that_changed_after_the_preview(pgqueue, monkeypatch):
    first = die()
    die()

    def answer(prompt: str) -> str:
        operator.retry(connection, [first])
        fail(first)
        return "yes"

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", answer)
    out = pgqueue("jobs", "delete", "--state", "dead").out
    assert states() == {first: "dead"}, "it is dead again, of a failure that nobody saw"
    assert "Deleted 1 job." in out and "Left 1 job unchanged" in out


def test_cancel_stops_waiting_and_running_jobs(pgqueue):
    ready, running = helpers.make_jobs(connection, 2)
    claim(running)
    pgqueue("jobs", "cancel", "--queue", "default", "--yes")
    assert states() == {ready: "cancelled", running: "running"}
    with pytest.raises(CommandError, match="Nothing was changed"):
        pgqueue("jobs", "cancel", running)
    assert "0 jobs to cancel." in pgqueue("jobs", "cancel", "--state", "running", "--yes").out


def test_move_changes_queue_and_priority_of_waiting_jobs(pgqueue):
    due, later, dead = helpers.make_job(connection), helpers.make_job(connection, delay_seconds=60.0), die()
    due_at = Job.objects.get(pk=later).run_after
    pgqueue("jobs", "move", "--queue", "default", "--state", "scheduled", "--to-queue", "mail", "--yes")
    pgqueue("jobs", "move", due, "--to-priority", "-7")
    rows = Job.objects.values_list("pk", "queue_name", "priority")
    assert set(rows) == {(due, "default", -7), (later, "mail", 0), (dead, "default", 0)}
    assert Job.objects.get(pk=later).run_after == due_at


@pytest.mark.parametrize("target", [[], ["--to-queue", "a b"], ["--to-priority", "101"]])
def test_move_invalid_target_exits_with_2(pgqueue, target):
    job_id = helpers.make_job(connection)
    with pytest.raises(CommandError) as caught:
        pgqueue("jobs", "move", job_id, *target)
    assert caught.value.returncode == 2


def test_set_max_attempts_changes_unfinished_jobs_with_audit(pgqueue):
    fresh, tried, dead = helpers.make_job(connection), helpers.make_job(connection), die()
    for _ in range(3):
        fail(tried, delay_seconds=0.0)
    running = helpers.make_job(connection)
    claim(running)
    arguments = ("jobs", "set-max-attempts", "--queue", "default", "--max-attempts", "3")
    out = pgqueue(*arguments, "--reason", "the bank is down", "--yes").out
    assert "1 job left out: it has made 3, so --max-attempts must be 4 or more." in out
    assert "For jobs that run, the number counts when their attempts end." in out
    assert "Changed 2 jobs." in out
    assert dict(Job.objects.values_list("pk", "max_attempts")) == {fresh: 3, tried: 10, dead: 10, running: 3}
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.filter["max_attempts"]) == ("set_max_attempts", "the bank is down", 3)
    assert entry.done_by
    assert set(entry.jobs.values_list("job_id", flat=True)) == {fresh, running}


@pytest.mark.parametrize("number", [[], ["--max-attempts", "0"], ["--max-attempts", "1001"]])
def test_set_max_attempts_invalid_number_exits_with_2(pgqueue, number):
    job_id = helpers.make_job(connection)
    with pytest.raises(CommandError) as caught:
        pgqueue("jobs", "set-max-attempts", job_id, *number)
    assert caught.value.returncode == 2


def test_delete_removes_finished_jobs_with_their_attempts(pgqueue):
    ready = helpers.make_job(connection)
    die()
    succeed(helpers.make_job(connection))
    out = pgqueue("jobs", "delete", "--queue", "default", "--yes").out
    assert states() == {ready: "ready"} and not Execution.objects.exists()
    assert "Deleted 2 jobs." in out


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that only sleeping advances; returns when the jobs of each batch changed."""
    now, changed_at = [0.0], []
    change = job_operations.retry

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def retry(*args, **options):
        changed_at.append(round(now[0], 3))
        return change(*args, **options)

    monkeypatch.setattr(paced_changes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(job_operations, "retry", retry)
    return changed_at


def test_action_keeps_its_rate(pgqueue, clock):
    for _ in range(5):
        die()
    pgqueue("jobs", "retry", "--state", "dead", "--yes", "--rate", "2")
    assert clock == [0.0, 1.0, 2.0]
    assert set(states().values()) == {"ready"}


def test_action_with_slow_rate_takes_one_job_at_a_time(pgqueue, clock):
    for _ in range(3):
        die()
    pgqueue("jobs", "retry", "--state", "dead", "--yes", "--rate", "0.5")
    assert clock == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("rate", ["0", "-1", "nan"])
def test_action_invalid_rate_exits_with_2(pgqueue, rate):
    with pytest.raises(CommandError, match=f"Invalid --rate {rate}: use a number above 0") as caught:
        pgqueue("jobs", "retry", die(), "--rate", rate)
    assert caught.value.returncode == 2


def test_interrupted_action_finishes_its_batch_and_says_how_many(pgqueue, monkeypatch):
    for _ in range(3):
        die()
    change = job_operations.retry

    def interrupted(*args, **options):
        if Job.objects.filter(state="ready").exists():
            signal.raise_signal(signal.SIGINT)
        return change(*args, **options)

    monkeypatch.setattr(job_operations, "retry", interrupted)
    monkeypatch.setattr(paced_changes, "BATCH_SIZE", 1)
    with pytest.raises(CommandError, match=r"Interrupted. Retried 2 of 3 jobs. The others are unchanged.") as caught:
        pgqueue("jobs", "retry", "--state", "dead", "--yes")
    assert caught.value.returncode == 1
    assert sorted(states().values()) == ["dead", "ready", "ready"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_action_above_its_limit_says_that_there_are_more(pgqueue):
    for _ in range(3):
        die()
    out = pgqueue("jobs", "retry", "--state", "dead", "--limit", "2", "--yes").out
    assert "More jobs meet the filters" in out
    assert sorted(states().values()) == ["dead", "ready", "ready"]


def test_action_logs_each_job_with_the_user(pgqueue, caplog, monkeypatch):
    monkeypatch.setattr(paced_changes, "user_name", partial(str, "anna"))
    dead = die()
    with caplog.at_level(logging.INFO, logger="django_pgqueue.operator"):
        pgqueue("jobs", "retry", dead)
    [record] = caplog.records
    assert record.getMessage() == f"job {dead} ({helpers.NOOP}): retry by anna"
    assert (record.job_id, record.action, record.user) == (dead, "retry", "anna")
