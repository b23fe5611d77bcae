"""`pgqueue jobs list` and `pgqueue jobs show`: the words for states, the filters, and what is printed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError
from django.core.management.base import OutputWrapper
from django.db import connection
from django.utils import timezone

from django_pgqueue import control, stats
from django_pgqueue.job_search import ready_jobs, search
from django_pgqueue.lifecycle import operator, search_keys
from django_pgqueue.management.subcommands import output
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import WORDS
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.documents import blocks, names
from tests.management.conftest import Terminal, claim, die, fail, succeed


@pytest.fixture
def one_of_each(db) -> dict[str, int]:
    """A job in each state that has a word."""
    retrying = helpers.make_job(connection)
    fail(retrying, delay_seconds=60.0)
    jobs = {
        "due": helpers.make_job(connection),
        "scheduled": helpers.make_job(connection, delay_seconds=60.0),
        "retrying": retrying,
        "unknown": helpers.make_job(connection, delay_seconds=60.0),
        "paused": helpers.make_job(connection, queue_name="mail"),
        "waiting": helpers.make_nodes(connection, needs=[helpers.make_job(connection, task_name="gone")])[0],
        "running": helpers.make_job(connection),
        "lost": helpers.make_job(connection),
        "cancelling": helpers.make_job(connection),
        "succeeded": succeed(helpers.make_job(connection)),
        "dead": die(),
        "acknowledged": die(),
        "cancelled": helpers.make_job(connection),
    }
    for word in ("running", "lost", "cancelling"):
        claim(jobs[word])
    Execution.objects.filter(job_id=jobs["lost"]).update(lease_expires_at=timezone.now() - timedelta(seconds=5))
    operator.cancel(connection, [jobs["cancelling"], jobs["cancelled"]])
    Job.objects.filter(task_name="gone")._raw_delete("default")
    operator.acknowledge(connection, [jobs["acknowledged"]])
    Job.objects.filter(pk=jobs["unknown"]).update(unknown_since=timezone.now())
    control.pause("mail")
    return jobs


def ids(answer) -> list[int]:
    return [job["id"] for job in answer.document["jobs"]]


def test_list_state_finds_exactly_its_jobs(pgqueue, one_of_each):
    for word in one_of_each:
        found = pgqueue("jobs", "list", "--state", word, "--json")
        wider = {"running": {"running", "lost", "cancelling"}}.get(word, {word})
        assert set(ids(found)) == {one_of_each[each] for each in wider}, word
    assert set(WORDS) == {*one_of_each, "ready"}
    ready = pgqueue("jobs", "list", "--state", "ready", "--json")
    assert set(ids(ready)) == {one_of_each[word] for word in ("due", "scheduled", "retrying", "unknown", "paused")}


@pytest.mark.parametrize("paused", ["stripe", "stripe:7"])
def test_list_of_paused_jobs_has_those_of_a_paused_limit(pgqueue, db, paused):
    held, behind = (helpers.make_job(connection) for _ in range(2))
    for job_id, limit_key in ((held, "other:7"), (behind, "stripe:7")):
        Job.objects.filter(pk=job_id).update(limit_key=limit_key)
    plain_id = helpers.make_job(connection)
    control.pause(limit_key=paused)
    assert ids(pgqueue("jobs", "list", "--state", "paused", "--json")) == [behind]
    assert set(ids(pgqueue("jobs", "list", "--state", "due", "--json"))) == {held, plain_id}
    words = {job["id"]: job["status"] for job in pgqueue("jobs", "list", "--json").document["jobs"]}
    assert words == {held: "due", behind: "paused", plain_id: "due"}


def test_list_names_the_state_of_each_job(pgqueue, one_of_each):
    jobs = pgqueue("jobs", "list", "--json").document["jobs"]
    assert {job["status"]: job["id"] for job in jobs} == one_of_each
    assert [job["id"] for job in jobs] == sorted(one_of_each.values(), reverse=True)


def test_list_lost_job_says_since_when_its_lease_is_over(pgqueue, one_of_each):
    now = timezone.now()
    Execution.objects.update(started_at=now - timedelta(hours=2))
    Execution.objects.filter(job_id=one_of_each["lost"]).update(lease_expires_at=now - timedelta(minutes=3))
    [line] = [each for each in pgqueue("jobs", "list").out.splitlines() if "  lost  " in each]
    assert "for 3 min" in line and "2 h" not in line


def test_list_filters_by_queue_task_and_error(pgqueue):
    charge = die(task_name="shop.charge", queue_name="mail", error="shop.errors.Declined")
    other = die(task_name="shop.charge")
    for arguments, wanted in (
        (["--queue", "mail"], [charge]),
        (["--task", "shop.charge"], [other, charge]),
        (["--error", "Declined"], [charge]),
        (["--error", "shop.errors.Declined"], [charge]),
        (["--error", "clined"], []),
        (["--error", "errors.Declined"], []),
        (["--id", charge, "--id", other], [charge, other]),
    ):
        assert ids(pgqueue("jobs", "list", *arguments, "--json")) == wanted
        if arguments[0] != "--id":
            assert ids(pgqueue("jobs", "list", "--state", "dead", *arguments, "--json")) == wanted


def test_list_by_task_finds_jobs_under_former_names(pgqueue):
    [former] = tasks.renamed.aliases
    old = helpers.make_job(connection, task_name=former)
    assert ids(pgqueue("jobs", "list", "--task", tasks.renamed.name, "--state", "due", "--json")) == [old]


def test_list_since_and_until_bound_the_end_of_a_job(pgqueue):
    old, new = die(), die()
    at = timezone.now() - timedelta(days=2)
    Job.objects.filter(pk=old).update(finished_at=at)
    assert ids(pgqueue("jobs", "list", "--state", "dead", "--since", "1h", "--json")) == [new]
    assert ids(pgqueue("jobs", "list", "--state", "dead", "--until", "1d", "--json")) == [old]
    exact = [f"--since={at.isoformat()}", f"--until={(at + timedelta(seconds=1)).isoformat()}"]
    assert ids(pgqueue("jobs", "list", "--state", "dead", *exact, "--json")) == [old]


def test_list_since_bounds_the_enqueue_of_waiting_jobs(pgqueue):
    old, new = helpers.make_jobs(connection, 2)
    Job.objects.filter(pk=old).update(enqueued_at=timezone.now() - timedelta(days=2))
    assert ids(pgqueue("jobs", "list", "--since", "1d", "--json")) == [new]
    assert ids(pgqueue("jobs", "list", "--state", "due", "--until", "1d", "--json")) == [old]


def test_list_due_jobs_are_in_claim_order(pgqueue):
    later = helpers.make_job(connection)
    first = helpers.make_job(connection, priority=5)
    last = helpers.make_job(connection)
    Job.objects.filter(pk=later).update(run_after=timezone.now() - timedelta(days=1))
    assert ids(pgqueue("jobs", "list", "--state", "due", "--json")) == [first, later, last]


def test_list_limit_says_that_there_are_more(pgqueue):
    helpers.make_jobs(connection, 3)
    answer = pgqueue("jobs", "list", "--limit", "2", "--json")
    assert len(ids(answer)) == 2 and answer.document["has_more"]
    assert "There are more" in pgqueue("jobs", "list", "--limit", "2").err
    assert not pgqueue("jobs", "list", "--limit", "3", "--json").document["has_more"]


def test_list_jobs_of_paused_task_are_paused_and_not_due(pgqueue, db):
    held, due = helpers.make_job(connection, task_name=tasks.add.name), helpers.make_job(connection)
    control.pause(task=tasks.add.name)
    assert ids(pgqueue("jobs", "list", "--state", "paused", "--json")) == [held]
    assert ids(pgqueue("jobs", "list", "--state", "due", "--json")) == [due]
    assert ids(pgqueue("jobs", "list", "--state", "ready", "--json")) == [held, due]


def test_list_search_of_newest_jobs_says_so(pgqueue, monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 1)
    wanted = die(queue_name="mail")
    for _ in range(4):
        die()
    answer = pgqueue("jobs", "list", "--state", "dead", "--queue", "mail", "--json")
    assert ids(answer) == []
    assert answer.document["searched"] == "among the latest 2 dead jobs"
    assert "among the newest 2 jobs" in pgqueue("jobs", "list", "--queue", "mail").err
    monkeypatch.setattr(search, "SEARCHED", 5)
    answer = pgqueue("jobs", "list", "--state", "dead", "--queue", "mail", "--json")
    assert (ids(answer), answer.document["searched"]) == ([wanted], "all")


def test_list_search_of_lanes_shares_a_bound_and_says_so(pgqueue, db, monkeypatch):
    """In each queue, the wanted job is the third in line."""
    for queue_name in ("default", "mail"):
        helpers.make_jobs(connection, 2, queue_name=queue_name)
    default, mail = (helpers.make_job(connection, task_name="app.t", queue_name=name) for name in ("default", "mail"))
    wanted = ("jobs", "list", "--state", "due", "--task", "app.t", "--json")
    assert (ids(found := pgqueue(*wanted)), found.document["searched"]) == ([default, mail], "all")
    monkeypatch.setattr(ready_jobs, "READY_SEARCHED", 4)
    found = pgqueue(*wanted)
    assert (ids(found), found.document["searched"]) == ([], "among the first 2 jobs of each queue and priority")
    assert ids(pgqueue(*wanted, "--queue", "mail")) == [mail], "one lane has the whole bound"
    monkeypatch.setattr(ready_jobs, "LANES_SEARCHED", 1)
    found = pgqueue(*wanted)
    assert ids(found) == [default]
    assert found.document["searched"] == "among the first 4 jobs of each of the first 1 queues and priorities"


def test_list_finds_jobs_with_a_limit_beside_the_others(pgqueue, db, monkeypatch):
    later = datetime.now(UTC) + timedelta(days=1)
    plain, limited = (helpers.make_job(connection, limit_key=key) for key in (None, "customers:7"))
    urgent = helpers.make_job(connection, limit_key="customers:7", priority=5)
    scheduled = helpers.make_job(connection, limit_key="customers:1", run_after=later)
    retrying = helpers.make_job(connection, limit_key="customers:2", run_after=later)
    Job.objects.filter(pk=retrying).update(attempt=1)
    paused = helpers.make_job(connection, limit_key="customers:3", task_name="app.paused")
    control.pause(task="app.paused")
    expected = {"due": [urgent, plain, limited], "scheduled": [scheduled], "retrying": [retrying], "paused": [paused]}
    for word, wanted in expected.items():
        found = pgqueue("jobs", "list", "--state", word, "--json")
        assert (ids(found), found.document["searched"]) == (wanted, "all"), word
    monkeypatch.setattr(ready_jobs, "READY_SEARCHED", 3)
    found = pgqueue("jobs", "list", "--state", "due", "--json")
    assert ids(found) == [urgent, plain], "one job of each lane was searched, and customers:1 is the first of its lane"
    assert found.document["searched"] == "among the first 1 jobs of each queue and priority"


def test_list_fits_the_terminal_and_is_whole_in_a_pipe(pgqueue, monkeypatch):
    die(task_name="shop." + "x" * 80 + ".charge", text="y" * 150)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = pgqueue("jobs", "list", stdout=Terminal()).out.splitlines()
    assert max(map(len, lines)) == 90
    assert "xxx.charge  default" in lines[1] and lines[1].endswith("yyy…")
    assert "y" * 150 in pgqueue("jobs", "list").out


def test_list_colours_only_a_terminal(pgqueue, monkeypatch):
    die()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mdead" in pgqueue("jobs", "list", stdout=Terminal()).out
    assert "\x1b" not in pgqueue("jobs", "list").out
    assert "\x1b" not in pgqueue("jobs", "list", stdout=Terminal(), no_color=True).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in pgqueue("jobs", "list", stdout=Terminal()).out


def test_summary_has_not_the_colour_of_an_error():
    stream = Terminal()
    wrapper = OutputWrapper(stream)
    wrapper.style_func = lambda text: f"\x1b[31m{text}"
    output.Output({}, wrapper, wrapper).summary("6 jobs.")
    assert stream.getvalue() == "6 jobs.\n"


def test_list_shows_control_characters_as_escapes(pgqueue):
    die(text="\x1b[2Jgone\u202e")
    assert r"\x1b[2Jgone\u202e" in pgqueue("jobs", "list").out


INVALID = (["--since", "yesterday"], ["--until", "2026-99-01T00:00"], ["--limit", "0"], ["--id", "1", "--task", "x"])


@pytest.mark.parametrize("arguments", INVALID)
def test_list_invalid_option_exits_with_2(pgqueue, arguments):
    with pytest.raises(CommandError) as caught:
        pgqueue("jobs", "list", *arguments)
    assert caught.value.returncode == 2


def test_show_opens_with_state_and_error(pgqueue):
    job_id = die(task_name=tasks.add.name, arguments=['{"args":[1,2],"kwargs":{}}'])
    lines = pgqueue("jobs", "show", job_id).out.splitlines()
    assert lines[0] == f"Job {job_id}: tests.app.tasks.add"
    assert lines[1] == stats.why(job_id, time_text=output.date_of).sentence and "after attempt 1 of 10" in lines[1]
    assert re.fullmatch(r"Error of attempt 1, at 20[-0-9]+ [:0-9]+", lines[3])
    assert lines[4] == "  builtins.ValueError: no such card"
    assert lines[6:8] == ["Traceback of attempt 1", "  Trace"]
    assert [line for line in lines if line in ("Arguments", "Facts", "Attempts, latest first")] == [
        *("Arguments", "Facts", "Attempts, latest first")
    ]


def test_show_prints_the_kept_log_lines(pgqueue):
    job = tasks.log_lines.enqueue(2)
    run_jobs()
    shown, document = pgqueue("jobs", "show", job.pk).out, pgqueue("jobs", "show", job.pk, "--json").document
    assert "Log of attempt 1\n" in shown and shown.rstrip().endswith(" INFO tests.app.tasks.kept: line 1")
    assert (document["log"]["attempt"], document["log"]["cut_lines"]) == (1, 0)
    assert [line["message"] for line in document["log"]["lines"]] == ["line 0", "line 1"]


def test_show_hides_sensitive_and_unknown_arguments(pgqueue):
    secret = '{"args":[1,"hunter2"],"kwargs":{}}'
    known = die(task_name=tasks.use_token.name, arguments=[secret])
    unknown = die(task_name="shop.gone", arguments=[secret])
    for job_id in (known, unknown):
        for arguments in ([], ["--json"]):
            out = pgqueue("jobs", "show", job_id, *arguments).out
            assert "hunter2" not in out and "idden" in out


def test_show_cuts_long_values_in_the_database(pgqueue):
    arguments = json.dumps({"args": ["x" * 200_000], "kwargs": {}})
    job_id = die(task_name=tasks.noop.name, arguments=[arguments], text="e" * 50_000)
    shown = pgqueue("jobs", "show", job_id, "--json")
    assert len(shown.document["arguments"]["text"]) < 101_000
    assert len(shown.document["attempts"][0]["error"]) == 2_000
    assert len(shown.out) < 150_000


def test_show_unknown_job_exits_with_3(pgqueue):
    with pytest.raises(CommandError, match="Job 7 does not exist") as caught:
        pgqueue("jobs", "show", 7)
    assert caught.value.returncode == 3


def test_examples_in_the_reference_have_the_printed_headings(pgqueue):
    die()
    examples = [text.splitlines()[0].split() for text in blocks("docs/reference/cli.md", "text")]
    for arguments in (["jobs", "list"], ["dead", "list"]):
        assert pgqueue(*arguments).out.splitlines()[0].split() in examples


def test_keys_of_json_are_those_of_the_reference(pgqueue):
    job_id = die()
    listed = pgqueue("jobs", "list", "--json").document["jobs"][0]
    shown = pgqueue("jobs", "show", job_id, "--json").document
    assert names("docs/reference/cli.md", "key of a job") == list(listed)
    assert names("docs/reference/cli.md", "further key of `jobs show`") == [
        name for name in shown if name not in listed
    ]


# ------------------------------------------------------------------ search keys


def test_list_search_finds_jobs_with_this_key(pgqueue, one_of_each):
    keys = {job_id: {"customer_id": "4711"} for job_id in one_of_each.values()}
    search_keys.add_search_keys(connection, {**keys, 10**9: {"customer_id": "4711"}})
    other = tasks.noop.enqueue().pk
    search_keys.add_search_keys(connection, {other: {"customer_id": "4712"}})

    def found(*options: str) -> set[int]:
        return set(ids(pgqueue("jobs", "list", "--search", "customer_id=4711", *options, "--json")))

    assert found() == set(one_of_each.values())
    assert found("--queue", "mail") == {one_of_each["paused"]}
    for word in ("scheduled", "retrying", "cancelling", "succeeded", "dead", "cancelled"):
        assert found("--state", word) == {one_of_each[word]}, word
    assert found("--state", "ready") == {
        one_of_each[word] for word in ("due", "scheduled", "retrying", "unknown", "paused")
    }
    assert found("--state", "dead", "--until", "1h") == found("--until", "1h") == set()
    assert found("--since", "1h", "--limit", "1") == {max(one_of_each.values())}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--search", "customer_id"], "Invalid --search 'customer_id': write NAME=VALUE"),
        (["--search", "a=1", "--state", "lost"], "cannot be combined with --state lost: use --state running"),
        (["--search", "a=1", "--id", "7"], "either ids of jobs, or filters such as --search"),
    ],
)
def test_list_invalid_search_is_refused(pgqueue, options, words):
    with pytest.raises(CommandError, match=words):
        pgqueue("jobs", "list", *options)


def test_list_search_stops_after_searched_jobs(pgqueue, db, monkeypatch):
    job_ids = helpers.make_jobs(connection, 3)
    search_keys.add_search_keys(connection, {job_id: {"a": "1"} for job_id in job_ids})
    monkeypatch.setattr(search, "SEARCHED", 2)
    found = pgqueue("jobs", "list", "--search", "a=1", "--limit", "2", "--json")
    assert ids(found) == job_ids[:0:-1]
    assert found.document["searched"] == "among the newest 2 jobs with this search key"
