"""What a bulk act counts and records if its changes also change dependents, which other batches of it visit."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import bulk_acts, completions, graphs, operator
from django_pgqueue.lifecycle.bulk_acts import Selection, execute_batch
from django_pgqueue.states import State
from django_pgqueue.worker.maintenance.bulk_acts import BulkActs
from tests import helpers
from tests.worker.test_bulk_acts import audited, entry, finish, request, states

CANCELLED = Selection("cancelled")
BATCHES = [1, 2, 3, 100]


@pytest.fixture(autouse=True, params=BATCHES)
def batch_size(request, monkeypatch):
    monkeypatch.setattr(bulk_acts, "BATCH", request.param)


def tree(engine: EngineConnection, policy: str = "cancel") -> list[int]:
    """Return the ids of a node, of four nodes that depend on it, and of one that depends on the last of these."""
    first = helpers.make_nodes(engine)
    others = helpers.make_nodes(engine, 4, needs=first, policy=policy)
    return [*first, *others, *helpers.make_nodes(engine, needs=others[-1:], policy=policy)]


def cancel(engine: EngineConnection, *job_ids: int) -> None:
    for job_id in job_ids:
        operator.cancel(engine, [job_id])


def counts(engine: EngineConnection, audit_id: int) -> tuple[int, int, str]:
    row = entry(engine, audit_id)
    return row["job_count"], row["left_count"], row["outcome"]


@pytest.mark.promise("bulk-act-counts-once")
def test_cancel_of_a_list_counts_each_dependent_once(engine):
    nodes = tree(engine)
    audit_id = request(engine, "cancel", Selection(job_ids=tuple(nodes)))
    finish(engine)
    assert set(states(engine).values()) == {"cancelled"}
    assert counts(engine, audit_id) == (6, 0, "done")
    assert sorted(audited(engine, audit_id)) == nodes


@pytest.mark.promise("bulk-act-counts-once")
def test_cancel_of_some_nodes_counts_only_those(engine):
    first, second, *_, last = tree(engine)
    audit_id = request(engine, "cancel", Selection(job_ids=(first, last)))
    finish(engine)
    assert states(engine)[second] == "cancelled"
    assert counts(engine, audit_id) == (2, 0, "done")
    assert sorted(audited(engine, audit_id)) == [first, last]


@pytest.mark.promise("bulk-act-counts-once")
@pytest.mark.parametrize("selection", ["filter", "list"])
@pytest.mark.parametrize("reverse", [False, True])
def test_retry_counts_each_restored_job_once(engine, selection, reverse):
    """In reverse order, each dependent is visited first, and cancelled again because its dependency is cancelled."""
    nodes = tree(engine)
    cancel(engine, *(reversed(nodes) if reverse else nodes))
    chosen = CANCELLED if selection == "filter" else Selection(job_ids=tuple(nodes))
    audit_id = request(engine, "retry", chosen)
    finish(engine)
    assert list(states(engine).values()) == ["ready", *["waiting"] * 5]
    assert counts(engine, audit_id) == (6, 0, "done")
    assert sorted(audited(engine, audit_id)) == nodes


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_counts_only_jobs_of_its_filter(engine):
    nodes = tree(engine)
    cancel(engine, nodes[0])
    engine.execute("UPDATE pgqueue_job SET queue_name = 'other' WHERE id = ANY (%s)", [nodes[2:4]])
    audit_id = request(engine, "retry", Selection("cancelled", queue_name="default"))
    finish(engine)
    assert list(states(engine).values()) == ["ready", *["waiting"] * 5]
    assert counts(engine, audit_id) == (4, 0, "done")
    assert sorted(audited(engine, audit_id)) == [*nodes[:2], *nodes[4:]]


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_of_dead_jobs_leaves_dependents_uncounted(engine):
    first, *others = tree(engine)
    [claimed] = helpers.claim_all(engine)
    completions.fail(engine, helpers.failed(claimed.key, None))
    graphs.advance(engine, [first])
    audit_id = request(engine, "retry", Selection("dead"))
    finish(engine)
    assert states(engine) == {first: "ready"} | dict.fromkeys(others, "waiting")
    assert (counts(engine, audit_id), audited(engine, audit_id)) == ((1, 0, "done"), [first])


def join(engine: EngineConnection) -> tuple[int, int, int]:
    """Return the ids of a ready node, a dead one, and one that depends on both and died before that one."""
    first, second = helpers.make_nodes(engine, 2)
    [node] = helpers.make_nodes(engine, needs=[first, second])
    ended = "UPDATE pgqueue_job SET state = 'dead', finished_at = clock_timestamp() WHERE id = %s"
    for job_id in (node, second):
        engine.execute(ended, [job_id])
    return first, second, node


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_of_a_node_before_its_dependency_counts_it(engine):
    """The first batch retries the node, which is cancelled again. The second batch restores it."""
    first, second, node = join(engine)
    audit_id = request(engine, "retry", Selection("dead"))
    finish(engine)
    assert states(engine) == {first: "ready", second: "ready", node: "waiting"}
    assert counts(engine, audit_id) == (2, 0, "done")
    assert sorted(audited(engine, audit_id)) == [second, node]


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_of_a_node_that_is_cancelled_again_leaves_it(engine):
    first, second, node = join(engine)
    audit_id = request(engine, "retry", Selection(job_ids=(first, node)))
    finish(engine)
    assert states(engine) == {first: "ready", second: "dead", node: "cancelled"}
    assert (counts(engine, audit_id), audited(engine, audit_id)) == ((0, 1, "done"), [])


@pytest.mark.promise("bulk-act-counts-once")
def test_dependent_that_the_act_cancels_again_counts_as_left(engine):
    """The retry of one dependency restores the node, and the other one cancels it again before the act visits it."""
    needs = helpers.make_nodes(engine, 2)
    [node] = helpers.make_nodes(engine, needs=needs)
    cancel(engine, *needs)
    audit_id = request(engine, "retry", Selection(job_ids=(needs[0], node)))
    finish(engine)
    assert list(states(engine).values()) == ["ready", "cancelled", "cancelled"]
    assert (counts(engine, audit_id), audited(engine, audit_id)) == ((1, 1, "done"), [needs[0]])


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_of_both_dependencies_counts_the_node_once(engine):
    """The retry of the first dependency cancels the node again; the retry of the second one restores it."""
    needs = helpers.make_nodes(engine, 2)
    [node] = helpers.make_nodes(engine, needs=needs)
    cancel(engine, *needs)
    audit_id = request(engine, "retry", CANCELLED)
    finish(engine)
    assert list(states(engine).values()) == ["ready", "ready", "waiting"]
    assert counts(engine, audit_id) == (3, 0, "done")
    assert sorted(audited(engine, audit_id)) == [*needs, node]


@pytest.mark.promise("bulk-act-counts-once")
def test_retry_with_a_refused_row_counts_restored_jobs(engine):
    """The jobs are changed one by one, because the database refuses one of them."""
    nodes = tree(engine)
    cancel(engine, *nodes)
    [bad] = helpers.make_jobs(engine)
    cancel(engine, bad)
    audit_id = request(engine, "retry", CANCELLED)
    with helpers.users_trigger(engine, f"OLD.id = {bad}"):
        finish(engine)
    assert counts(engine, audit_id) == (6, 1, "done")
    assert sorted(audited(engine, audit_id)) == nodes


def test_job_cancelled_since_it_was_restored_counts_once(engine):
    nodes = tree(engine)
    cancel(engine, nodes[0])
    audit_id = request(engine, "retry", Selection(job_ids=tuple(nodes)))
    execute_batch(engine, audit_id)
    cancel(engine, nodes[-1])
    finish(engine)
    assert counts(engine, audit_id) == (6, 0, "done")


class Seen(list[Any]):
    """Reactions that note the transitions."""

    def after(self, connection: EngineConnection, transitions: Any) -> None:
        self += transitions


@pytest.mark.parametrize(("policy", "state"), [("cancel", State.CANCELLED), ("ignore", State.READY)])
def test_cancel_by_workers_reacts_to_the_end_of_dependents(engine, policy, state):
    nodes, seen = tree(engine, policy), Seen()
    request(engine, "cancel", Selection(job_ids=(nodes[0],)))
    BulkActs(seen, lambda: None).go_on(engine)
    found = {each.job_id: each.result.state for each in seen if each.job_id in nodes[1:5]}
    assert found == dict.fromkeys(nodes[1:5], state)
