"""Plans of the statements of workflows, beside many jobs: they read index entries of the asked jobs only."""

from __future__ import annotations

from functools import partial

import pytest

from django_pgqueue.lifecycle import graphs, operator
from tests import helpers
from tests.test_linear_statements import buffers_of
from tests.test_sql import STATISTICS, explain, nodes, rows_read

pytestmark = pytest.mark.slow

JOBS = 20_000
JOB = (
    "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at, in_graph, batch_id) "
    "SELECT 'noop', '{}', CASE WHEN n % 10 = 0 THEN 'waiting' WHEN n % 10 = 1 THEN 'cancelled' ELSE 'succeeded' END, "
    "CASE WHEN n % 10 > 0 THEN now() END, true, n / 100 FROM "
)
EDGE = "INSERT INTO pgqueue_dependency (job_id, needs_id, policy, has_cancelled) SELECT n, n - 1, 'cancel', true FROM "
FILL = (f"{JOB} generate_series(1, {JOBS}) AS n", f"{EDGE} generate_series(2, {JOBS}) AS n")
ASKED = {"job_ids": [100, 110, 121]}
CASES = {
    "FIND_DEPENDENTS": (
        {"job_ids": [99, 109], "after_ids": [0, 0], "limit": 10},
        20,
        {"pgqueue_dependency_needs", "pgqueue_dependency_pkey", "pgqueue_job_pkey"},
    ),
    "FIND_MISSED": (
        {"after_id": 100, "limit": 10},
        20,
        {"pgqueue_job_waiting", "pgqueue_dependency_pkey", "pgqueue_job_pkey"},
    ),
    "STILL_WAITING": (ASKED, 3, set()),
    "NODES_OF": (ASKED, 3, {"pgqueue_job_pkey"}),
    "LOCK_WAITING": (ASKED, 3, set()),  # the index of waiting jobs finds them too
    "ADVANCE": (ASKED, 20, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
    "RESTORABLE": (ASKED, 20, {"pgqueue_dependency_needs", "pgqueue_job_pkey"}),
    "LOCK_RESTORABLE": (ASKED, 3, {"pgqueue_job_pkey"}),
    "RESTORE": (ASKED, 20, {"pgqueue_dependency_needs", "pgqueue_job_pkey"}),
    "READ_RESULTS": (
        {"job_ids": [41, 41], "first_ids": [10, 40], "last_ids": [20, 40], "most_bytes": 4096},
        12,
        {"pgqueue_dependency_pkey", "pgqueue_job_pkey"},
    ),
    "PRUNE_DEPENDENCIES": ({"after_id": 100, "limit": 10}, 12, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
}
TABLES = ("pgqueue_job", "pgqueue_dependency")


@pytest.fixture(params=STATISTICS)
def filled(engine, request):
    with helpers.filled(engine, TABLES, FILL, request.param):
        yield engine


@pytest.mark.parametrize("plan", ["custom", "generic"])
def test_statements_of_workflows_read_only_the_asked_jobs(filled, plan):
    for name, (params, asked, indexes) in CASES.items():
        found = list(nodes(explain(filled, name, params, plan)))
        for node in found:
            assert node["Node Type"] not in ("Seq Scan", "Bitmap Heap Scan"), (name, node)
            assert rows_read(node) <= 3 * asked, (name, node)
            if node.get("Index Name") == "pgqueue_dependency_needs":  # without its first column, it would be read whole
                assert "(needs_id " in node["Index Cond"], (name, node)
        assert indexes <= {node.get("Index Name") for node in found}, name


@pytest.mark.parametrize("plan", ["custom", "generic"])
@pytest.mark.parametrize("last_to_end", [0, -1], ids=["newest first", "oldest first"])
def test_job_with_many_dependencies_is_left_waiting_after_few_reads(engine, second, plan, last_to_end):
    """10,000 dependencies that end in either order would otherwise take a quadratic number of reads."""
    needs = helpers.make_nodes(engine, 1000)
    helpers.make_nodes(engine, needs=needs)
    engine.execute(
        "UPDATE pgqueue_job SET state = 'succeeded', finished_at = now() WHERE state = 'ready' AND id <> %s",
        [needs[last_to_end]],
    )
    params = {"job_ids": [needs[500]], "after_ids": [0], "limit": 10}
    found = list(nodes(explain(second, "FIND_DEPENDENTS", params, plan)))  # `engine` has prepared statements
    assert sum(rows_read(node) for node in found if node.get("Relation Name") == "pgqueue_dependency") <= 5


def test_indexes_of_workflows_have_no_entry_of_other_jobs(engine):
    """A job outside of workflows costs no further index entry."""
    engine.execute("TRUNCATE pgqueue_job")  # otherwise, the index keeps the pages of earlier tests
    helpers.make_jobs(engine, 1000)
    engine.execute("VACUUM pgqueue_job")
    assert helpers.scalar(engine, "SELECT pg_relation_size('pgqueue_job_waiting')") == 8192


def states(engine, first_id: int) -> dict[str, int]:
    """Return how many jobs each state has, from a job on."""
    counts = "SELECT state, count(*) FROM pgqueue_job WHERE id >= %s GROUP BY state"
    return dict(engine.execute(counts, [first_id]).fetchall())


def die(engine, job_id: int) -> None:
    engine.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = now() WHERE id = %s", [job_id])


@pytest.fixture
def small(engine):
    """There is a workflow with 1,000 dependents, and the statistics know it."""
    for table in TABLES:
        engine.execute(f"TRUNCATE {table}")
    helpers.make_nodes(engine, 1000, needs=helpers.make_nodes(engine))
    engine.execute(f"ANALYZE {', '.join(TABLES)}")
    return engine


def test_dependents_of_a_dead_job_cost_the_same_each(small, monkeypatch):
    """First they are cancelled. Each has a dependent that ignores that and is ready. A retry restores both."""
    cancelled, restored = [], []
    for count in (1000, 10_000):
        [dead] = helpers.make_nodes(small)
        dependents = helpers.make_nodes(small, count, needs=[dead])
        die(small, dead)
        act = partial(graphs.advance, small, [dead])
        cancelled.append(buffers_of(small, monkeypatch, act, 3 * graphs.FIND_LIMIT) / count)
        assert states(small, dead) == {"dead": 1, "cancelled": count}
        ignoring = helpers.make_nodes(small, count)
        edges = [(job_id, needs_id, "ignore") for job_id, needs_id in zip(ignoring, dependents, strict=True)]
        graphs.add_dependencies(small, edges)
        small.execute(f"VACUUM {', '.join(TABLES)}")  # each measured statement has left dead rows
        act = partial(operator.retry, small, [dead])
        restored.append(buffers_of(small, monkeypatch, act, 6 * count) / count)
        assert states(small, dead) == {"ready": 1, "waiting": 2 * count}
    for few, many in (cancelled, restored):
        assert many <= 1.5 * few and few < 200, (cancelled, restored)


def test_edges_of_cancelled_layers_cost_the_same_each(small, monkeypatch):
    """Each job of a layer depends on all of the layer before. A job with many failed dependencies is followed once."""
    cancelled, restored = [], []
    for width in (20, 80):
        [dead] = layer = helpers.make_nodes(small)
        for _ in range(4):
            layer = helpers.make_nodes(small, width, needs=layer)
        die(small, dead)
        edges = width + 3 * width**2
        cancelled.append(buffers_of(small, monkeypatch, partial(graphs.advance, small, [dead]), 3 * edges) / edges)
        assert states(small, dead) == {"dead": 1, "cancelled": 4 * width}
        small.execute(f"VACUUM {', '.join(TABLES)}")
        restored.append(buffers_of(small, monkeypatch, partial(operator.retry, small, [dead]), 3 * edges) / edges)
        assert states(small, dead) == {"ready": 1, "waiting": 4 * width}
    for few, many in (cancelled, restored):
        assert many <= 1.5 * few and few < 100, (cancelled, restored)
