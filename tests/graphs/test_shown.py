"""Workflows as operators see them: the graph in the admin, `pgqueue workflow show`, and `stats.why()`."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, Workflow, chain, chord, stats
from django_pgqueue.admin.workflows import graph as drawn
from django_pgqueue.admin.workflows.layout import HEIGHT, WIDTH
from django_pgqueue.management.subcommands import workflow_command
from django_pgqueue.models import Job, JobDependency
from django_pgqueue.states import State
from django_pgqueue.stats import Reason
from django_pgqueue.stats.graphs import figures as graphs
from django_pgqueue.stats.graphs.groups import grouped
from django_pgqueue.testing import run_jobs
from tests.stats.test_explanation import SENTENCES

from . import tasks

pytestmark = pytest.mark.django_db
BATCHES, JOBS = "/admin/pgqueue/jobbatch/", "/admin/pgqueue/job/"
STATES = "UPDATE pgqueue_job SET state = %s, finished_at = CASE WHEN %s THEN now() END WHERE id = ANY(%s)"


@pytest.fixture
def viewer(client: Client) -> Client:
    user = User.objects.create_user("anna", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "view_jobbatch"]))
    client.force_login(user)
    return client


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return str(response.content.decode().split('id="content-main"')[1].replace("<wbr>", ""))


def graph_of(client: Client, workflow: Workflow) -> Any:
    """Return what the page of a workflow draws."""
    graph = {"boxes": [], "rows": [], **client.get(f"{BATCHES}{workflow.id}/change/").context["graph"]}
    lists = {name: [SimpleNamespace(**each) for each in graph.pop(name, [])] for name in ("boxes", "edges", "rows")}
    return SimpleNamespace(**graph, **lists)


def set_state(state: str, *job_ids: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(STATES, [state, state in {"dead", "succeeded", "cancelled"}, list(job_ids)])


def diamond() -> Workflow:
    """Return a workflow whose second job will be dead and cancel the fourth. The last one runs all the same."""
    workflow = Workflow(description="Order <4711>")
    first = workflow.add(tasks.number.s(1))
    dead = workflow.add(tasks.broken.s(), after=[first])
    left = workflow.add(tasks.double.s(first.result))
    cancelled = workflow.add(tasks.note.s("after"), after=[dead])
    workflow.add(tasks.note.s("last"), after=[left, cancelled], if_dependency_fails="ignore")
    return workflow.enqueue()


# ------------------------------------------------------------------ the graph in the admin


def test_graph_shows_states_edges_and_links(viewer: Client) -> None:
    workflow = diamond()
    run_jobs()
    found = graph_of(viewer, workflow)
    assert [box.state for box in found.boxes] == ["succeeded", "dead", "succeeded", "cancelled", "succeeded"]
    assert [box.url for box in found.boxes] == [f"{JOBS}{job_id}/change/" for job_id in workflow.job_ids]
    assert sorted(edge.kind for edge in found.edges) == ["cancel", "cancel", "failed", "ignore", "ignore"]
    assert len({box.x for box in found.boxes}) == 4  # its layers
    assert [kind for kind, _ in found.legend] == ["cancel", "ignore", "failed", "path"] and found.signs == ""
    assert found.summary == "Graph of 5 jobs in 4 layers: 3 succeeded, 1 dead, 1 cancelled"
    text = page(viewer, f"{BATCHES}{workflow.id}/change/")
    assert text.count('class="pgqueue-box ') == 5 and text.count('class="pgqueue-edge ') == 5 + 4  # with the legend
    assert "Order &lt;4711&gt;" in text and "× dead" in text


def test_graph_of_many_alike_jobs_has_one_box_with_counts(viewer: Client) -> None:
    workflow = chord([tasks.number.s(each) for each in range(drawn.MOST_ALIKE + 1)], tasks.total).enqueue()
    set_state("dead", workflow.job_ids[0])
    many, last = graph_of(viewer, workflow).boxes
    assert (many.is_group, many.name, many.line, many.state) == (True, "13 × number", "1 × · 12 ●", "dead")
    assert many.url == f"{JOBS}?batch={workflow.id}&task=tests.graphs.tasks.number"
    assert len(viewer.get(many.url).context["cl"].result_list) == 13
    assert (last.is_group, last.state) == (False, "waiting")
    found = graph_of(viewer, workflow)
    [edge] = found.edges
    assert edge.kind == "failed"
    assert [kind for kind, _ in found.legend] == ["failed"]
    assert found.signs == "✓ succeeded, × dead, – cancelled, ▸ running, ● ready, … waiting"
    assert [row.layer for row in found.rows] == [1, 2]
    assert found.rows[1].needs.replace("<wbr>", "") == "13 × tests.graphs.tasks.number (layer 1)"
    set_state("ready", workflow.job_ids[0])
    assert graph_of(viewer, workflow).boxes[0].line == "all ● ready"


def test_graph_of_few_alike_jobs_has_a_box_for_each(viewer: Client) -> None:
    workflow = chord([tasks.number.s(each) for each in range(drawn.MOST_ALIKE)], tasks.total).enqueue()
    assert len(graph_of(viewer, workflow).boxes) == drawn.MOST_ALIKE + 1


def test_graph_of_a_long_chain_is_a_table(viewer: Client) -> None:
    steps = chain(tasks.number.s(1))
    for _ in range(drawn.MOST_LAYERS):
        steps = steps.then(tasks.double)
    found = graph_of(viewer, steps.enqueue())
    assert found.boxes == [] and len(found.rows) == drawn.MOST_LAYERS + 1
    assert "too large to be drawn" in found.note


def test_graph_beyond_the_limits_is_not_read(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = diamond()
    monkeypatch.setattr(graphs, "NODES_READ", 4)
    found = graph_of(viewer, workflow)
    assert found.boxes == found.rows == [] and "so it is not drawn" in found.note
    monkeypatch.setattr(graphs, "NODES_READ", 5)
    monkeypatch.setattr(graphs, "EDGES_READ", 4)
    assert "so it is not drawn" in graph_of(viewer, workflow).note


def test_batch_that_is_no_workflow_has_no_graph(viewer: Client) -> None:
    batch = Batch().open()
    tasks.number.using(batch=batch).enqueue(1)
    assert 'id="pgqueue-graph"' not in page(viewer, f"{BATCHES}{batch.id}/change/")


def test_graph_without_permission_for_jobs_has_no_links(viewer: Client) -> None:
    workflow = diamond()
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_jobbatch"))
    assert {box.url for box in graph_of(viewer, workflow).boxes} == {""}


def test_graph_takes_two_statements_for_any_number_of_jobs(viewer: Client) -> None:
    few, many = diamond(), chord([tasks.number.s(each) for each in range(300)], tasks.total).enqueue()
    counts = []
    for workflow in (few, few, many):
        with CaptureQueriesContext(connection) as captured:
            page(viewer, f"{BATCHES}{workflow.id}/change/")
        counts.append(sum(bool(re.search("nodes_of_workflow|edges_of_nodes", each["sql"])) for each in captured))
    assert counts == [2, 2, 2]


def test_dependency_that_was_removed_by_sql_is_left_out(viewer: Client) -> None:
    workflow = diamond()
    Job.objects.filter(pk=workflow.job_ids[0])._raw_delete("default")
    assert JobDependency.objects.filter(needs_id=workflow.job_ids[0]).exists()
    assert len(graph_of(viewer, workflow).boxes) == 4
    assert "removed" in page(viewer, f"{JOBS}{workflow.job_ids[1]}/change/")


# ------------------------------------------------------------------ layers and places


def test_layout_places_boxes_of_a_layer_below_each_other(viewer: Client) -> None:
    found = graph_of(viewer, diamond())
    places = [(float(box.x), float(box.y)) for box in found.boxes]
    assert len(set(places)) == 5
    (x_dead, y_dead), (x_left, y_left) = places[1:3]
    assert x_dead == x_left and abs(y_dead - y_left) > HEIGHT
    assert all(
        x >= 0 and x + WIDTH <= float(found.width) and y >= 0 and y + HEIGHT <= float(found.height) for x, y in places
    )


def test_edge_over_several_layers_does_not_cross_boxes(viewer: Client) -> None:
    workflow = Workflow()
    first = workflow.add(tasks.number.s(1))
    middle = workflow.add(tasks.double.s(first.result))
    workflow.add(tasks.note.s("last"), after=[first, middle])
    workflow.enqueue()
    found = graph_of(viewer, workflow)
    [long] = [edge.path for edge in found.edges if "H" in edge.path]
    level = float(re.findall(r" ([\d.]+)H", long)[0])
    top = float(found.boxes[1].y)
    assert not top <= level <= top + HEIGHT


def test_groups_of_a_graph_are_in_the_order_of_its_layers() -> None:
    workflow = diamond()
    found = grouped(graphs.workflow_graph(workflow.id), 1)
    assert [(group.layer, [node.job_id for node in group.nodes]) for group in found] == [
        (layer, [workflow.job_ids[place]]) for layer, place in ((0, 0), (1, 1), (1, 2), (2, 3), (3, 4))
    ]


# ------------------------------------------------------------------ the page of a job


def test_page_of_a_job_lists_dependencies_and_dependents(viewer: Client) -> None:
    workflow = diamond()
    first, dead, left, cancelled, last = workflow.job_ids
    text = page(viewer, f"{JOBS}{left}/change/")
    depends, dependents = text.index("Depends on</h2>"), text.index("Dependents: they wait for it</h2>")
    assert depends < text.index(f'"{JOBS}{first}/change/"', depends) < dependents
    assert dependents < text.index(f'"{JOBS}{last}/change/"', dependents)
    assert "cancels the dependent if it fails" in text and "the dependent runs even if it fails" in text
    assert f"{BATCHES}{workflow.id}/change/" in text
    run_jobs()
    text = page(viewer, f"{JOBS}{cancelled}/change/")
    assert f"because it depends on #{dead} (tests.graphs.tasks.broken), which is dead" in text


def test_page_of_a_job_with_many_dependencies_is_bounded(viewer: Client) -> None:
    workflow = chord([tasks.number.s(each) for each in range(30)], tasks.total).enqueue()
    text = page(viewer, f"{JOBS}{workflow.job_ids[-1]}/change/")
    assert text.count("cancels the dependent if it fails") == 20 and "There are more." in text


# ------------------------------------------------------------------ why


def sentence(job_id: int) -> str:
    """Return the sentence of `why()`. The page for operators has it too."""
    found = stats.why(job_id)
    assert any(re.fullmatch(pattern, found.sentence) for pattern in SENTENCES[found.reason])
    return found.sentence


def test_why_of_a_waiting_job_names_what_it_waits_for() -> None:
    workflow = chord([tasks.number.s(each) for each in range(5)], tasks.total).enqueue()
    *numbers, last = workflow.job_ids
    set_state("succeeded", numbers[0])
    set_state("running", numbers[4])
    why = stats.why(last)
    assert (why.reason, why.state) == (Reason.WAITING, State.WAITING)
    assert sentence(last) == (
        f"It waits for 4 of its 5 dependencies: #{numbers[4]} (tests.graphs.tasks.number), which runs; "
        f"#{numbers[1]} (tests.graphs.tasks.number), which is ready; "
        f"#{numbers[2]} (tests.graphs.tasks.number), which is ready; and 1 more."
    )
    assert why.dependency_ids == tuple(numbers[1:4])


def test_why_of_a_blocked_job_says_what_to_retry() -> None:
    workflow = Workflow()
    dead = workflow.add(tasks.broken.s())
    other = workflow.add(tasks.number.using(queue_name="later").s(1))
    workflow.add(tasks.note.s("last"), after=[dead, other], if_dependency_fails="block")
    workflow.enqueue()
    set_state("dead", workflow.job_ids[0])
    last = workflow.job_ids[2]
    named = f"#{workflow.job_ids[0]} (tests.graphs.tasks.broken), which is dead"
    start = f"It is blocked until a retry of this succeeds: {named}."
    assert (
        sentence(last)
        == f"{start} It also waits for #{workflow.job_ids[1]} (tests.graphs.tasks.number), which is ready."
    )
    set_state("succeeded", workflow.job_ids[1])
    assert sentence(last) == start
    assert stats.why(last).reason == Reason.DEPENDENCY_FAILED


def test_why_of_a_job_between_an_end_and_its_advance() -> None:
    workflow = diamond()
    first, dead, left, cancelled, _ = workflow.job_ids
    set_state("succeeded", first)
    assert sentence(left) == "Its dependencies have ended. A worker will make it ready, within a minute at most."
    set_state("dead", dead)
    assert sentence(cancelled) == (
        f"It depends on #{dead} (tests.graphs.tasks.broken), which is dead. "
        "A worker will cancel it, within a minute at most."
    )
    run_jobs()
    why = stats.why(cancelled)
    assert why.reason == Reason.DEPENDENCY_FAILED and why.state == State.CANCELLED
    assert sentence(cancelled).endswith("which is dead. A retry of the dead job restores it.")


def test_why_of_a_cancelled_job_names_the_job_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between both, jobs are cancelled too. A retry of one of these restores nothing."""
    workflow = Workflow()
    step = workflow.add(tasks.broken.s())
    for _ in range(3):
        step = workflow.add(tasks.note.s("next"), after=[step])
    workflow.add(tasks.note.s("last"), after=[step], if_dependency_fails="block")
    workflow.enqueue()
    ids = workflow.job_ids
    set_state("dead", ids[0])
    run_jobs()
    named = f"#{ids[0]} (tests.graphs.tasks.broken), which is dead"
    for job_id in ids[1:4]:
        assert f"because it depends on {named}. A retry of the dead job" in sentence(job_id), job_id
        assert stats.why(job_id).dependency_ids == (ids[0],)
    assert sentence(ids[4]) == f"It is blocked until a retry of this succeeds: {named}."
    monkeypatch.setattr("django_pgqueue.stats.graphs.explanation.FAILED_LIMIT", 1)
    assert f"because it depends on #{ids[2]} " in sentence(ids[3]), "the search is bounded"


def test_why_of_a_job_that_ignores_a_failure_names_what_is_unfinished() -> None:
    workflow = Workflow()
    dead, other = workflow.add(tasks.broken.s()), workflow.add(tasks.number.s(1))
    workflow.add(tasks.note.s("last"), after=[dead, other], if_dependency_fails="ignore")
    workflow.enqueue()
    set_state("dead", workflow.job_ids[0])
    found = stats.why(workflow.job_ids[2])
    assert (found.reason, found.dependency_ids) == (Reason.WAITING, (workflow.job_ids[1],))
    assert found.sentence.startswith("It waits for 1 of its 2 dependencies: ")


def test_why_of_a_job_that_an_operator_has_cancelled_names_no_dependency() -> None:
    workflow = diamond()
    Job.objects.filter(pk=workflow.job_ids[-1]).cancel()
    assert stats.why(workflow.job_ids[-1]).reason == Reason.FINISHED


# ------------------------------------------------------------------ the command


def shown(capsys: pytest.CaptureFixture[str], workflow_id: int, *options: str) -> str:
    call_command("pgqueue", "workflow", "show", str(workflow_id), *options)
    return capsys.readouterr().out


def test_command_prints_the_layers(capsys: pytest.CaptureFixture[str]) -> None:
    workflow = diamond()
    run_jobs()
    first, dead, left, cancelled, last = workflow.job_ids
    assert shown(capsys, workflow.id).splitlines() == [
        f"Workflow {workflow.id}: Order <4711>, 5 of 5 jobs have ended: 3 succeeded, 1 dead, 1 cancelled",
        "Layer 1",
        f"  succeeded #{first} tests.graphs.tasks.number",
        "Layer 2",
        f"  dead      #{dead} tests.graphs.tasks.broken, needs #{first}",
        f"  succeeded #{left} tests.graphs.tasks.double, needs #{first}",
        "Layer 3",
        f"  cancelled #{cancelled} tests.graphs.tasks.note, needs #{dead}",
        "Layer 4",
        f"  succeeded #{last} tests.graphs.tasks.note, needs #{left}, #{cancelled}",
    ]


def test_command_prints_many_alike_jobs_as_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = chord([tasks.number.s(each) for each in range(9)], tasks.total).enqueue()
    set_state("dead", workflow.job_ids[3])
    lines = shown(capsys, workflow.id).splitlines()
    assert lines[2] == "  9 × tests.graphs.tasks.number: 8 ready, 1 dead"
    needed = ", ".join(f"#{each}" for each in workflow.job_ids[:5])
    assert lines[4] == f"  waiting   #{workflow.job_ids[9]} tests.graphs.tasks.total, needs {needed} and 4 more"
    monkeypatch.setattr(workflow_command, "LINES", 1)
    assert shown(capsys, workflow.id).splitlines()[-1] == "Not printed: 1 more line. --json prints all jobs."


def test_command_says_that_a_workflow_is_blocked(capsys: pytest.CaptureFixture[str]) -> None:
    workflow = Workflow(if_dependency_fails="block")
    workflow.add(tasks.note.s("last"), after=[workflow.add(tasks.broken.s())])
    workflow.enqueue()
    assert "No job is ready or running." not in shown(capsys, workflow.id)
    set_state("dead", workflow.job_ids[0])
    assert shown(capsys, workflow.id).splitlines()[:2] == [
        f"Workflow {workflow.id}, 1 of 2 jobs have ended: 1 waiting, 1 dead",
        "No job is ready or running. Waiting jobs depend on failed ones: retry those, or cancel the rest.",
    ]
    call_command("pgqueue", "batch", "show", str(workflow.id))
    assert "No job is ready or running." in capsys.readouterr().out


def test_command_prints_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = diamond()
    document = json.loads(shown(capsys, workflow.id, "--json"))
    assert (document["workflow_id"], document["description"], document["is_cut"]) == (
        workflow.id,
        "Order <4711>",
        False,
    )
    assert document["jobs"][2] == {
        "job_id": workflow.job_ids[2],
        "task_name": "tests.graphs.tasks.double",
        "state": "waiting",
        "layer": 2,
        "needs": [workflow.job_ids[0]],
    }
    monkeypatch.setattr(graphs, "NODES_READ", 4)
    document = json.loads(shown(capsys, workflow.id, "--json"))
    assert document["is_cut"] and document["jobs"] == []
    assert "so they are not listed" in shown(capsys, workflow.id)


def test_command_refuses_what_is_no_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    batch = Batch().open()
    with pytest.raises(CommandError, match=f"Batch {batch.id} is no workflow: `manage.py pgqueue batch show"):
        shown(capsys, batch.id or 0)
    with pytest.raises(CommandError, match="Workflow 999999 does not exist in the database 'default'"):
        shown(capsys, 999_999)


def test_job_that_waits_for_others_is_not_listed_as_due(capsys: pytest.CaptureFixture[str]) -> None:
    workflow = diamond()
    call_command("pgqueue", "jobs", "list", "--state", "waiting")
    listed = capsys.readouterr().out
    assert "tests.graphs.tasks.double" in listed and "due for" not in listed
    call_command("pgqueue", "jobs", "show", str(workflow.job_ids[2]))
    assert "\nDue " not in capsys.readouterr().out
