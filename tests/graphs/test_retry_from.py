"""Retry a workflow from one of its nodes: the node and everything that depends on it, in one act."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Workflow, chain
from django_pgqueue.acts import workflow_retries
from django_pgqueue.acts.workflow_retries import CannotRetryFromError, plan_retry, retry_from
from django_pgqueue.admin.workflows.graph import failed_path
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.stats.graphs.downstream import RetryEffect
from django_pgqueue.testing import run_jobs

from . import tasks
from .test_run import states
from .test_shown import BATCHES, diamond, graph_of, set_state

pytestmark = pytest.mark.django_db
PERMISSIONS = ("view_job", "view_jobbatch", "retry_job")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    tasks.RAN.clear()
    tasks.FIXED.clear()


@pytest.fixture
def operator(client: Client) -> Client:
    user = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=PERMISSIONS))
    client.force_login(user)
    return client


def ids_of(workflow: Workflow) -> list[int]:
    return [int(node.job_id or 0) for node in workflow.nodes]


def failed_in_the_middle() -> Workflow:
    """Return a workflow: first → broken → after → last, and beside, which runs in spite of a failure, before last."""
    workflow = Workflow()
    first = workflow.add(tasks.note.s("first"))
    broken = workflow.add(tasks.broken_until_fixed.s(), after=[first])
    after = workflow.add(tasks.note.s("after"), after=[broken])
    beside = workflow.add(tasks.note.s("beside"), after=[broken], if_dependency_fails="ignore")
    workflow.add(tasks.note.s("last"), after=[after, beside])
    workflow.enqueue()
    run_jobs()
    assert states(workflow) == ["succeeded", "dead", "cancelled", "succeeded", "cancelled"]
    return workflow


def plan_of(workflow: Workflow, place: int) -> workflow_retries.WorkflowRetryPlan:
    return plan_retry(workflow.id, ids_of(workflow)[place], "default")


# ------------------------------------------------------------------ the act


def test_retry_from_runs_the_node_and_all_that_depends_on_it() -> None:
    workflow = failed_in_the_middle()
    ids = ids_of(workflow)
    plan = plan_of(workflow, 1)
    assert [node.job_id for node in plan.nodes] == ids[1:] == list(plan.seen) and plan.succeeded == [ids[3]]
    assert set(plan.effects.values()) == {RetryEffect.RUNS} and plan.failed_before == {}
    tasks.FIXED.append(True)
    assert retry_from(plan, "default", by="ada", reason="fixed") == (4, 0)
    assert states(workflow) == ["succeeded", "ready", "waiting", "waiting", "waiting"]
    run_jobs()
    assert states(workflow) == ["succeeded"] * 5
    assert sorted(tasks.RAN) == sorted(["first", "beside", "after", "beside", "last"])
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.reason) == ("retry", "ada", "fixed")
    assert entry.filter == {"batch_id": workflow.id, "from_job": ids[1]}
    assert sorted(each.job_id for each in entry.jobs.all()) == ids[1:]


def test_retry_from_a_cancelled_node_leaves_what_is_before_it() -> None:
    workflow = chain(tasks.note.s("a")).then(tasks.note, "b").then(tasks.note, "c").enqueue()
    run_jobs(max_jobs=1)
    Job.objects.get(pk=ids_of(workflow)[1]).cancel()
    assert states(workflow) == ["succeeded", "cancelled", "cancelled"]
    assert retry_from(plan_of(workflow, 1), "default", by="ada") == (2, 0)
    run_jobs()
    assert states(workflow) == ["succeeded"] * 3 and len(tasks.RAN) == 3


def test_retry_from_takes_jobs_that_a_plain_retry_leaves_cancelled() -> None:
    """A person has cancelled the last job. A retry of the dead one alone would not restore it."""
    workflow = Workflow()
    dead = workflow.add(tasks.broken_until_fixed.s())
    workflow.add(tasks.note.using(run_after=600).s("last"), after=[dead], if_dependency_fails="ignore")
    workflow.enqueue()
    run_jobs()
    Job.objects.get(pk=ids_of(workflow)[1]).cancel()
    assert states(workflow) == ["dead", "cancelled"]
    assert retry_from(plan_of(workflow, 0), "default", by="ada") == (2, 0)
    assert states(workflow) == ["ready", "waiting"]


def test_retry_from_of_a_changed_node_changes_nothing() -> None:
    workflow = failed_in_the_middle()
    plan = plan_of(workflow, 1)
    Job.objects.filter(pk=ids_of(workflow)[1]).update(finished_at="2026-01-01T00:00Z")
    with pytest.raises(CannotRetryFromError, match="was not retried: it has changed"):
        retry_from(plan, "default", by="ada")
    assert states(workflow) == ["succeeded", "dead", "cancelled", "succeeded", "cancelled"]
    assert not AuditEntry.objects.exists()


def test_retry_from_leaves_a_dependent_that_has_changed() -> None:
    workflow = failed_in_the_middle()
    plan = plan_of(workflow, 1)
    Job.objects.filter(pk=ids_of(workflow)[3]).update(finished_at="2026-01-01T00:00Z")
    assert retry_from(plan, "default", by="ada") == (3, 1)
    assert states(workflow)[3] == "succeeded"


def test_plan_says_what_is_cancelled_again_or_stays_blocked() -> None:
    workflow = Workflow()
    root, other = workflow.add(tasks.broken.s()), workflow.add(tasks.broken.s())
    both = workflow.add(tasks.note.s("both"), after=[root, other])
    workflow.add(tasks.note.s("behind"), after=[both])
    workflow.add(tasks.note.s("blocked"), after=[root, other], if_dependency_fails="block")
    workflow.add(tasks.note.s("free"), after=[root])
    workflow.enqueue()
    run_jobs()
    ids, plan = ids_of(workflow), plan_of(workflow, 0)
    cancelled, blocked, runs = RetryEffect.CANCELLED, RetryEffect.BLOCKED, RetryEffect.RUNS
    assert plan.effects == dict(zip([ids[0], *ids[2:]], [runs, cancelled, cancelled, blocked, runs], strict=True))
    assert plan.failed_before == {ids[1]: [ids[2], ids[4]]}
    assert retry_from(plan, "default", by="ada") == (2, 2)
    assert states(workflow) == ["ready", "dead", "cancelled", "cancelled", "waiting", "waiting"]


def test_plan_refuses_what_cannot_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = failed_in_the_middle()
    ids = ids_of(workflow)
    with pytest.raises(CannotRetryFromError, match=f"Job #{ids[0]} is succeeded: only a dead or cancelled job"):
        plan_of(workflow, 0)
    with pytest.raises(CannotRetryFromError, match="is not a part of this workflow"):
        plan_retry(workflow.id, 10**9, "default")
    monkeypatch.setattr(workflow_retries, "MOST", 3)
    with pytest.raises(CannotRetryFromError, match="3 jobs depend on"):
        plan_of(workflow, 1)


def test_plan_refuses_a_node_that_would_be_cancelled_again() -> None:
    workflow = Workflow()
    dead, later = workflow.add(tasks.broken.s()), workflow.add(tasks.number.using(run_after=600).s(2))
    workflow.add(tasks.note.s("last"), after=[dead, later])
    workflow.enqueue()
    run_jobs()
    with pytest.raises(CannotRetryFromError, match=f"also depends on job #{ids_of(workflow)[0]}, which has failed"):
        plan_of(workflow, 2)


# ------------------------------------------------------------------ the pages


def given_by(client: Client, url: str) -> dict[str, str]:
    text = client.get(url).content.decode()
    return dict(re.findall(r'<input type="hidden" name="(shown)" value="([^"]*)"', text))


def test_page_names_the_jobs_and_retries_them(operator: Client) -> None:
    workflow = failed_in_the_middle()
    ids = ids_of(workflow)
    url = f"{BATCHES}{workflow.id}/retry_from/{ids[1]}/"
    boxes = graph_of(operator, workflow).boxes
    assert [box.retry_url for box in boxes] == [
        "",
        url,
        f"{BATCHES}{workflow.id}/retry_from/{ids[2]}/",
        "",
        boxes[4].retry_url,
    ]
    text = operator.get(url).content.decode()
    assert "<strong>4</strong> jobs are retried" in text and "1 of them has succeeded already" in text
    assert all(f">#{each}<" in text for each in ids[1:]) and f">#{ids[0]}<" not in text
    given = given_by(operator, url)
    answer = operator.post(url, {**given, "reason": "fixed"}, follow=True).content.decode()
    assert "4 jobs are retried." in answer
    assert states(workflow) == ["succeeded", "ready", "waiting", "waiting", "waiting"]
    assert AuditEntry.objects.get().reason == "fixed" and LogEntry.objects.count() == 1
    again = operator.post(url, given, follow=True).content.decode()
    assert "Nothing was changed: Job" in again and AuditEntry.objects.count() == 1


def test_page_of_the_workflow_says_who_retried_it(operator: Client) -> None:
    workflow, other = failed_in_the_middle(), failed_in_the_middle()
    assert "Retried" not in operator.get(f"{BATCHES}{workflow.id}/change/").content.decode()
    node = ids_of(workflow)[1]
    retry_from(plan_retry(workflow.id, node, "default"), "default", by="eve", reason="key renewed")
    page = operator.get(f"{BATCHES}{workflow.id}/change/").content.decode()
    act = AuditEntry.objects.get()
    shown = rf'bulk_act/\?id={act.pk}">from job #{node} at [-0-9]+ [:0-9]+ by eve, 4 jobs: key renewed</a>'
    assert re.search(shown, page), "the retry is not on the page"
    assert "Retried" not in operator.get(f"{BATCHES}{other.id}/change/").content.decode()


def test_page_of_a_changed_workflow_asks_again(operator: Client) -> None:
    workflow = failed_in_the_middle()
    url = f"{BATCHES}{workflow.id}/retry_from/{ids_of(workflow)[1]}/"
    given = given_by(operator, url)
    Job.objects.filter(pk=ids_of(workflow)[3]).update(finished_at="2026-01-01T00:00Z")
    for each in (given, {}, {"shown": "x"}):
        assert "the workflow has changed since" in operator.post(url, each, follow=True).content.decode()
    assert states(workflow)[1] == "dead"


@pytest.mark.parametrize("missing", PERMISSIONS)
def test_page_needs_each_permission(operator: Client, missing: str) -> None:
    workflow = failed_in_the_middle()
    User.objects.get().user_permissions.set(
        Permission.objects.filter(codename__in=[each for each in PERMISSIONS if each != missing])
    )
    url = f"{BATCHES}{workflow.id}/retry_from/{ids_of(workflow)[1]}/"
    assert operator.get(url).status_code == operator.post(url).status_code == 403
    if missing != "view_jobbatch":
        assert not any(box.retry_url for box in graph_of(operator, workflow).boxes)


def test_page_runs_as_many_queries_for_a_large_workflow(operator: Client) -> None:
    counts = []
    for size in (3, 60):
        workflow = Workflow()
        root = workflow.add(tasks.broken.s())
        for _ in range(size):
            workflow.add(tasks.note.s("x"), after=[root])
        workflow.enqueue()
        run_jobs()
        url = f"{BATCHES}{workflow.id}/retry_from/{ids_of(workflow)[0]}/"
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(url).status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1]


# ------------------------------------------------------------------ the path to what has failed


def test_failed_path_has_all_boxes_before_a_failure() -> None:
    #      0 → 1 → 2(dead) → 3(cancelled)     4 → 5(succeeded)     6(cancelled by a person)
    states_of = dict(enumerate(["succeeded", "succeeded", "dead", "cancelled", "succeeded", "succeeded", "cancelled"]))
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (4, 6)]
    assert failed_path(states_of, edges) == ({2, 6}, {0, 1, 4})
    assert failed_path({0: "succeeded", 1: "ready"}, [(0, 1)]) == (set(), set())


def test_graph_marks_failed_jobs_and_the_path_to_them(operator: Client) -> None:
    workflow = diamond()
    run_jobs()
    found: Any = graph_of(operator, workflow)
    assert [box.is_failed for box in found.boxes] == [False, True, False, False, False]
    assert [box.is_on_path for box in found.boxes] == [True, False, False, False, False]
    assert [edge.is_on_path for edge in found.edges].count(True) == 1
    assert "path" in dict(found.legend) and found.failed_count == 1
    text = operator.get(f"{BATCHES}{workflow.id}/change/").content.decode()
    assert text.count("data-failed ") == 1 and "data-next-failed" in text and "pgqueue/graph.js" in text
    assert "Retry from here…" in text
    set_state("succeeded", *ids_of(workflow))
    assert "data-next-failed" not in operator.get(f"{BATCHES}{workflow.id}/change/").content.decode()


# ------------------------------------------------------------------ the command


def said_by(*arguments: object) -> str:
    out = StringIO()
    call_command("pgqueue", "jobs", "retry", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_command_retries_a_node_with_its_dependents() -> None:
    workflow = failed_in_the_middle()
    ids = ids_of(workflow)
    said = said_by(ids[1], "--with-dependents", "--dry-run")
    assert f"4 jobs of workflow {workflow.id} to retry, in one step or not at all:" in said
    assert f"{ids[1]}  dead      {tasks.broken_until_fixed.name}: will run" in said
    assert "1 job among them have succeeded already" not in said and "1 job among them has succeeded already" in said
    assert states(workflow)[1] == "dead" and not AuditEntry.objects.exists()
    with pytest.raises(CommandError, match="Pass --yes"):
        said_by(ids[1], "--with-dependents")
    assert "Retried 4 jobs." in said_by(ids[1], "--with-dependents", "--yes", "--reason", "fixed")
    assert states(workflow) == ["succeeded", "ready", "waiting", "waiting", "waiting"]
    entry = AuditEntry.objects.get()
    assert (entry.filter, entry.reason) == ({"batch_id": workflow.id, "from_job": ids[1]}, "fixed")


def test_command_with_dependents_refuses_what_does_not_fit() -> None:
    workflow = failed_in_the_middle()
    first, dead, *_others = ids_of(workflow)
    plain = tasks.note.enqueue("x").id
    refused: dict[tuple[object, ...], str] = {
        (first,): f"Nothing was changed: Job #{first} is succeeded",
        (plain,): "is not a part of a workflow",
        (10**9,): "does not exist",
        (dead, first): "Pass the id of one job",
        (): "Pass the id of one job",
        (dead, "--state", "dead"): "Pass only --reason",
        (dead, "--rate", "5"): "Pass only --reason",
        (dead, "--finished"): "Pass only --reason",
    }
    for arguments, reason in refused.items():
        with pytest.raises(CommandError, match=reason):
            said_by(*arguments, "--with-dependents", "--yes")
    assert states(workflow)[1] == "dead"
