"""`pgqueue dead list|retry`: groups of dead letters, and the retry that stops at the first repeated failure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.core.management import CommandError

from django_pgqueue.job_search import search
from django_pgqueue.management.subcommands import paced_changes
from django_pgqueue.models import AuditEntry, Job
from tests.documents import names
from tests.management.conftest import die, fail


def test_dead_list_groups_by_task_and_error(pgqueue):
    first = [die(task_name="shop.charge", error="shop.Declined") for _ in range(3)]
    other = die(task_name="shop.charge", error="shop.Timeout")
    document = pgqueue("dead", "list", "--json").document
    assert document["searched"] == "all"
    [declined, timeout] = document["groups"]
    assert names("docs/reference/cli.md", "key of a group") == list(declined)
    assert (declined["jobs"], declined["error_class"], declined["example_id"]) == (3, "shop.Declined", first[-1])
    assert (timeout["jobs"], timeout["error_class"], timeout["example_id"]) == (1, "shop.Timeout", other)
    times = [Job.objects.get(pk=job_id).finished_at for job_id in (first[0], first[-1])]
    assert [declined["first_finished_at"], declined["last_finished_at"]] == [at.isoformat() for at in times if at]
    assert "4 dead jobs." in pgqueue("dead", "list").err
    assert len(pgqueue("dead", "list", "--error", "Timeout", "--json").document["groups"]) == 1


def test_dead_list_and_retry_by_message(pgqueue, monkeypatch):
    wanted = [die(text=f"order {number} not found") for number in (1, 2)]
    other = die(text="order not found")
    for message, jobs in (("NOT FOUND", 3), ("=order # not found", 2), ("order 2", 1)):
        document = pgqueue("dead", "list", "--message", message, "--json").document
        assert (sum(group["jobs"] for group in document["groups"]), document["searched"]) == (jobs, "all")
    pgqueue("dead", "retry", "--message", "=order # not found", "--yes")
    assert dict(Job.objects.values_list("pk", "state")) == {**dict.fromkeys(wanted, "ready"), other: "dead"}
    assert AuditEntry.objects.get().filter["message"] == "=order # not found"
    die(text="order not found")
    monkeypatch.setattr(search, "CLASSES_SEARCHED", 1)
    document = pgqueue("dead", "list", "--message", "order", "--json").document
    assert document["searched"] == "among the latest 1 dead jobs" and len(document["groups"]) == 1


def test_dead_list_beyond_its_bound_says_so(pgqueue, monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 2)
    for _ in range(3):
        die()
    document = pgqueue("dead", "list", "--json").document
    assert [group["jobs"] for group in document["groups"]] == [2]
    assert document["searched"] == "among the latest 2 dead jobs"


def test_dead_retry_changes_one_group(pgqueue):
    declined, timeout = die(error="shop.Declined"), die(error="shop.Timeout")
    with pytest.raises(CommandError, match="at least one filter"):
        pgqueue("dead", "retry", "--yes")
    pgqueue("dead", "retry", "--error", "Declined", "--yes")
    assert dict(Job.objects.values_list("pk", "state")) == {declined: "ready", timeout: "dead"}


@pytest.mark.parametrize(("error", "stops"), [("shop.Declined", True), ("shop.Timeout", False)])
def test_dead_retry_stops_when_a_job_fails_again_with_its_error(pgqueue, monkeypatch, error, stops):
    jobs = [die(error="shop.Declined") for _ in range(3)]
    failed: list[int] = []
    now = [0.0]

    def let_one_fail(seconds: float) -> None:
        now[0] += seconds
        [ready] = set(Job.objects.filter(state="ready").values_list("pk", flat=True)) - set(failed) or {0}
        if ready and not failed:
            fail(ready, delay_seconds=60.0, error=error)
            failed.append(ready)

    monkeypatch.setattr(paced_changes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=let_one_fail))
    arguments = ["dead", "retry", "--error", "Declined", "--rate", "1", "--stop-on-failure", "--yes"]
    if stops:
        with pytest.raises(CommandError, match=r"failed again with shop.Declined. Retried 2 of 3 jobs.") as caught:
            pgqueue(*arguments)
        assert f"job {failed[0]} " in str(caught.value)
        assert Job.objects.filter(state="dead").count() == 1
        [entry] = AuditEntry.objects.all()
        assert (entry.outcome, entry.failed_job_id, entry.error) == ("repeated", failed[0], "shop.Declined")
        assert entry.stops_on_repeat and entry.job_count == 2
    else:
        assert f"Retried {len(jobs)} jobs." in pgqueue(*arguments).out
