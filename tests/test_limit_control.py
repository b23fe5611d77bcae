"""Changes and pauses of limits by `control`: their effects, what they refuse, and their commands."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from types import MappingProxyType

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_pgqueue import control
from django_pgqueue.control.limits import end_hold, override_limit, restore_limit
from django_pgqueue.control.targets import UnknownLimitWarning
from django_pgqueue.db import notifications
from django_pgqueue.declared.limits import Limit
from django_pgqueue.models import AuditEntry, Job, LimitOverride, LimitState, Pause
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs, time_travel
from tests import helpers

pytestmark = pytest.mark.django_db

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("stripe", key="customer:{customer_id}", rate="100/m", burst=10),
        Limit("imports", key="{key}", ordered=True),
        Limit("exports", concurrency=2),
    )
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def make_job(limit_key, **changes):
    values = {"task_name": helpers.NOOP, "arguments": {"args": [], "kwargs": {}}, "limit_key": limit_key}
    return Job.objects.create(**values | changes)


def stored(limit_key):
    return LimitOverride.objects.values("concurrency", "rate", "burst", "share").get(limit_key=limit_key)


# ------------------------------------------------------------------ overrides


def test_override_limit_stores_values_reason_and_end():
    override_limit("stripe:customer:7", rate="5/m", until=timedelta(hours=2), reason="a\0b", by="a" * 200)
    found = LimitOverride.objects.get()
    assert (found.rate, found.concurrency, found.burst, found.share) == ("5/m", None, None, None)
    assert (found.reason, found.changed_by) == ("ab", "a" * 150)
    assert timedelta(hours=1, minutes=59) < found.valid_until - found.changed_at <= timedelta(hours=2)


def test_override_limit_keeps_fields_and_replaces_the_end():
    override_limit("stripe", rate="5/m", burst=2, until=60, reason="first")
    override_limit("stripe", burst=3)
    assert stored("stripe") == {"concurrency": None, "rate": "5/m", "burst": 3, "share": None}
    override_limit("stripe", rate=None)
    assert stored("stripe") == {"concurrency": None, "rate": None, "burst": 3, "share": None}
    found = LimitOverride.objects.get()
    assert (found.valid_until, found.reason) == (None, "")
    override_limit("stripe", burst=None)
    assert not LimitOverride.objects.exists()


def test_override_limit_without_values_changes_the_end_only_of_an_override():
    with pytest.raises(ValueError, match="nothing to override: pass concurrency, rate, burst or share"):
        override_limit("stripe", until=60)
    override_limit("stripe", burst=3)
    override_limit("stripe", until=60, reason="later")
    assert LimitOverride.objects.get().valid_until is not None
    assert stored("stripe")["burst"] == 3


@pytest.mark.parametrize(
    ("limit_key", "values", "words"),
    [
        ("stripe", {"concurrency": 0}, "limit 'stripe': concurrency 0 must be a whole number from 1 to"),
        ("stripe", {"concurrency": True}, "concurrency True must be a whole number"),
        ("stripe", {"burst": 2.5}, "burst 2.5 must be a whole number"),
        ("stripe", {"share": -1}, "share -1 must be a whole number"),
        ("stripe", {"rate": "often"}, "rate 'often' must be like"),
        ("stripe", {"rate": 5}, "rate 5 must be like"),
        ("stripe", {"rate": "1/999999d"}, "needs more than 100 years"),
        ("stripe:customer:7", {"rate": "1/d", "burst": 1_000_000_000}, "needs more than 100 years"),
        ("exports", {"burst": 3}, "burst needs a rate"),
        ("imports", {"concurrency": 2}, "limit 'imports' is ordered, so it runs one job of a key at a time"),
        ("stripe", {"rate": "5/m", "until": -5}, "invalid duration -5"),
        ("stripe:", {"burst": 2}, "the key of limit 'stripe' is empty"),
        ("two words", {"burst": 2}, "invalid limit key 'two words': pass the name of a limit"),
        ("stripe:" + "x" * 200, {"burst": 2}, "has more than 193 characters"),
    ],
)
def test_override_limit_invalid_values_are_refused_and_nothing_is_written(limit_key, values, words):
    with pytest.raises(ValueError, match=words):
        override_limit(limit_key, **values)
    assert not LimitOverride.objects.exists()
    assert not AuditEntry.objects.exists()


def test_override_limit_of_key_is_checked_with_the_override_of_its_limit():
    override_limit("stripe", rate="1/d")
    with pytest.raises(ValueError, match="needs more than 100 years"):
        override_limit("stripe:customer:7", burst=1_000_000_000)
    override_limit("exports", rate="1/s")
    override_limit("exports", burst=3)
    assert stored("exports")["burst"] == 3


@pytest.mark.parametrize(
    "act",
    [
        lambda key: override_limit(key, concurrency=2),
        restore_limit,
        end_hold,
        lambda key: control.pause(limit_key=key),
        lambda key: control.resume(limit_key=key),
        lambda key: control.clear(limit_key=key),
    ],
    ids=["override", "restore", "end_hold", "pause", "resume", "clear"],
)
def test_mistyped_limit_warns_at_the_line_of_the_caller(act, recwarn):
    act("stirpe:customer:7")
    [warning] = recwarn.list
    assert warning.category is UnknownLimitWarning
    assert "no task of this process has the limit 'stirpe': did you mean 'stripe'?" in str(warning.message)
    assert warning.filename == __file__
    act("elsewhere")  # it resembles no limit, so it may belong to other code
    assert len(recwarn.list) == 1


def test_override_is_part_of_the_callers_transaction():
    with pytest.raises(RuntimeError), transaction.atomic():
        override_limit("stripe", burst=3)
        raise RuntimeError
    assert not LimitOverride.objects.exists()


@pytest.mark.parametrize(
    "act",
    [
        lambda: override_limit("stripe", burst=3),
        lambda: restore_limit("stripe"),
        lambda: end_hold("stripe"),
        lambda: control.pause(limit_key="stripe"),
        lambda: control.resume(limit_key="stripe"),
    ],
)
def test_change_of_limit_wakes_workers(act, monkeypatch, django_capture_on_commit_callbacks):
    payloads = []
    monkeypatch.setattr(notifications, "_wake_workers", lambda connection, payload, channel: payloads.append(payload))
    with django_capture_on_commit_callbacks(execute=True):
        act()
    assert payloads == [notifications.PAUSES_CHANGED]


def test_restore_limit_removes_the_override_and_returns_whether_it_was_in_force():
    override_limit("stripe", burst=3)
    override_limit("stripe:customer:7", burst=4)
    assert restore_limit("stripe", by="ada", reason="over")
    assert not restore_limit("stripe")
    assert [each.limit_key for each in LimitOverride.objects.all()] == ["stripe:customer:7"]
    entry = AuditEntry.objects.get(action="restore limit")
    assert (entry.done_by, entry.reason, entry.outcome) == ("ada", "over", "done")
    assert entry.filter == {"limit_key": "stripe", "before": {"burst": 3}, "after": None}
    override_limit("stripe", burst=3, until=60)
    with time_travel(seconds=61):
        assert not restore_limit("stripe")


def hold(limit_key):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
            "VALUES (%s, now(), statement_timestamp() + interval '1 h')",
            [limit_key],
        )


def test_end_hold_returns_whether_a_key_was_held_and_is_audited():
    hold("stripe:customer:7")
    assert not end_hold("stripe:customer:8")
    assert end_hold("stripe", by="ada")
    assert not end_hold("stripe")
    assert not LimitState.objects.exists()
    entry = AuditEntry.objects.get(action="end hold")
    assert (entry.done_by, entry.filter["limit_key"], entry.filter["keys"]) == ("ada", "stripe", 1)


# ------------------------------------------------------------------ run_jobs and the foreground


def test_run_jobs_obeys_overrides_and_pauses():
    for _ in range(3):
        make_job("exports")
    [other] = [make_job("stripe:customer:7")]
    override_limit("exports", rate="1/h")
    control.pause(limit_key="stripe")
    assert run_jobs() == 1
    restore_limit("exports")
    assert run_jobs() == 2
    control.resume(limit_key="stripe")
    assert run_jobs() == 1
    other.refresh_from_db()
    assert other.state == "succeeded"


def test_run_jobs_until_waits_for_the_end_of_a_pause_of_a_limit():
    make_job("exports")
    control.pause(limit_key="exports", until=60)
    assert run_jobs(until=59) == 0
    assert run_jobs(until=62) == 1


# ------------------------------------------------------------------ pauses


def test_clear_cancels_only_waiting_jobs_of_the_key_or_limit(monkeypatch):
    monkeypatch.setattr(control.queues, "CLEAR_BATCH", 2)
    kept = [make_job(key) for key in ("stripe-x:1", "stripes", "exports", "stripe:customer:70")]
    of_key = [make_job("stripe:customer:7", priority=n % 2) for n in range(5)]
    assert control.waiting(limit_key="stripe:customer:7").count() == 5
    assert control.clear(limit_key="stripe:customer:7") == 5
    later = make_job("stripe:customer:9", queue_name="mail")
    without_key = make_job("stripe")
    assert control.waiting(limit_key="stripe").count() == 3
    assert control.clear(limit_key="stripe") == 3
    cancelled = {job.pk for job in (*of_key, later, without_key, kept.pop())}
    assert set(Job.objects.filter(state="cancelled").values_list("pk", flat=True)) == cancelled
    assert Job.objects.filter(state="ready").count() == len(kept)


def test_running_counts_jobs_of_the_key_or_limit():
    with connection.cursor() as cursor:
        for execution_id, key in enumerate(("stripe:customer:7", "stripe:customer:8", "stripe-x:1", None), start=1):
            cursor.execute(
                "INSERT INTO pgqueue_job (task_name, arguments, state, worker_id, execution_id, limit_key) "
                "VALUES ('noop', '{}', 'running', 1, %s, %s)",
                [execution_id, key],
            )
    assert control.running(limit_key="stripe").count() == 2
    assert control.running(limit_key="stripe:customer:7").count() == 1


# ------------------------------------------------------------------ commands


def pgqueue(*arguments):
    output, errors = StringIO(), StringIO()
    call_command("pgqueue", *arguments, stdout=output, stderr=errors)
    return output.getvalue().strip() + errors.getvalue().strip()


def test_pause_commands_accept_a_limit_key():
    make_job("stripe:customer:7")
    words = pgqueue("pause", "--limit-key", "stripe:customer:7", "--until", "2h", "--reason", "refunds")
    assert words == "Paused. 1 job is waiting."
    found = Pause.objects.get()
    assert (found.kind, found.name, found.reason) == ("limit", "stripe:customer:7", "refunds")
    assert pgqueue("resume", "--limit-key", "stripe:customer:7") == "Resumed."
    assert pgqueue("clear", "--limit-key", "stripe", "--dry-run").startswith("1 job to cancel:")
    assert pgqueue("clear", "--limit-key", "stripe", "--yes").endswith("Cancelled 1 job.")
    assert "did you mean 'stripe'?" in pgqueue("pause", "--limit-key", "stirpe", "--force")


def test_limits_commands_override_reset_and_release():
    hold("stripe:customer:7")
    words = pgqueue("limits", "set", "stripe", "--rate", "20/m", "--burst", "2", "--until", "2h", "--reason", "busy")
    assert words == "Overridden. Workers apply it within a second."
    assert stored("stripe") == {"concurrency": None, "rate": "20/m", "burst": 2, "share": None}
    assert LimitOverride.objects.get().reason == "busy"
    pgqueue("limits", "set", "stripe", "--rate", "none", "--concurrency", "3", "--share", "4")
    assert stored("stripe") == {"concurrency": 3, "rate": None, "burst": 2, "share": 4}
    assert pgqueue("limits", "reset", "stripe") == "Reset: the override is removed."
    assert pgqueue("limits", "reset", "stripe") == "Nothing to reset: it is not overridden."
    assert pgqueue("limits", "release", "stripe:customer:7") == "Released: the hold has ended."
    assert pgqueue("limits", "release", "stripe:customer:7") == "Nothing to release: no key is held."
    assert "did you mean 'stripe'?" in pgqueue("limits", "set", "stirpe", "--burst", "2", "--force")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stripe"], "nothing to override"),
        (["stripe", "--burst", "many"], "Invalid --burst 'many': pass a whole number, or none"),
        (["stripe", "--burst", "0"], "burst 0 must be a whole number"),
        (["stripe", "--rate", "often"], "rate 'often' must be like"),
        (["stripe", "--burst", "2", "--until", "2020-01-01T00:00Z"], "in the past"),
        (["two words", "--burst", "2"], "invalid limit key"),
    ],
)
def test_limits_set_invalid_arguments_show_the_remedy(arguments, words):
    with pytest.raises(CommandError, match=words) as caught:
        pgqueue("limits", "set", *arguments)
    assert caught.value.returncode == 2
    assert not LimitOverride.objects.exists()


def test_limits_list_shows_jobs_values_and_changes():
    make_job("stripe:customer:7")
    override_limit("stripe", rate="20/m", reason="busy", by="ada")
    control.pause(limit_key="imports", by="bob")
    lines = pgqueue("limits", "list").splitlines()
    of_stripe = next(line for line in lines if line.startswith("stripe"))
    assert "rate 20/m, burst 10" in of_stripe
    assert "override rate 20/m by ada: busy" in of_stripe
    assert any(line.startswith("imports") and "ordered" in line and "imports paused by bob" in line for line in lines)
    assert lines[-1].endswith("3 limits.")
    document = json.loads(pgqueue("limits", "list", "--json"))
    [stripe] = [each for each in document["limits"] if each["name"] == "stripe"]
    assert stripe["due"] == {"value": 1, "is_exact": True}
    assert (stripe["values"]["rate"], stripe["override"]["by"]) == ("20/m", "ada")


def test_limits_show_pages_through_the_keys():
    for number in range(3):
        make_job(f"stripe:customer:{number}")
    override_limit("stripe:customer:1", share=3)
    words = pgqueue("limits", "show", "stripe", "--count", "2")
    assert "stripe:customer:0" in words and "override share 3" in words and "stripe:customer:2" not in words
    assert words.endswith("2 keys. Next page: --after 'stripe:customer:1'")
    words = pgqueue("limits", "show", "stripe", "--after", "stripe:customer:1")
    assert "stripe:customer:2" in words and words.endswith("1 key.")
    document = json.loads(pgqueue("limits", "show", "stripe", "--prefix", "customer:2", "--json"))
    assert [key["limit_key"] for key in document["keys"]] == ["stripe:customer:2"]
    assert (document["limit"]["name"], document["next_after"]) == ("stripe", None)


def test_limits_show_describes_one_key():
    job = make_job("stripe:customer:7")
    hold("stripe:customer:7")
    words = pgqueue("limits", "show", "stripe:customer:7")
    assert f"Next job         {job.pk}" in words
    assert "Waits for        hold" in words
    assert "rate 100/m, burst 10" in words
    document = json.loads(pgqueue("limits", "show", "stripe:customer:7", "--json"))
    assert document["key"]["waits_for"] == "hold"
    assert document["key"]["next_job_id"] == job.pk


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["elsewhere"], "No task declares the limit 'elsewhere'", 3),
        (["stirpe"], "did you mean 'stripe'", 3),
        (["two words"], "invalid limit key", 2),
        (["stripe", "--count", "201"], "Invalid --count 201: pass 1 to 200", 2),
    ],
)
def test_limits_show_invalid_arguments_show_the_remedy(arguments, words, code):
    with pytest.raises(CommandError, match=words) as caught:
        pgqueue("limits", "show", *arguments)
    assert caught.value.returncode == code


def test_limits_show_finds_an_undeclared_limit_that_is_overridden():
    override_limit("elsewhere", burst=2)
    assert "override burst 2" in pgqueue("limits", "show", "elsewhere")
