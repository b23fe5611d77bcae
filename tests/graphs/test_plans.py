"""Plans of the statements of workflows, beside many jobs: they read index entries of the asked jobs only."""

from __future__ import annotations

import pytest

from tests import helpers
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
    "READ_RESULTS": ({"first_ids": [10, 40], "last_ids": [20, 40], "most_bytes": 4096}, 12, {"pgqueue_job_pkey"}),
    "PRUNE_DEPENDENCIES": ({"after_id": 100, "limit": 10}, 12, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
}
TABLES = ("pgqueue_job", "pgqueue_dependency")


@pytest.fixture(params=STATISTICS)
def filled(engine, request):
    if request.param == "analysed idle":
        engine.execute(f"ANALYZE {', '.join(TABLES)}")
    else:
        helpers.forget_statistics(engine, TABLES)
    if request.param == "analysed at rest":
        helpers.come_to_rest(engine)
    for statement in FILL:
        engine.execute(statement)
    if request.param == "analysed full":
        engine.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
    return engine


@pytest.mark.parametrize("plan", ["custom", "generic"])
def test_statements_of_workflows_read_only_the_asked_jobs(filled, plan):
    for name, (params, asked, indexes) in CASES.items():
        found = list(nodes(explain(filled, name, params, plan)))
        for node in found:
            assert node["Node Type"] not in ("Seq Scan", "Bitmap Heap Scan"), (name, node)
            assert rows_read(node) <= 3 * asked, (name, node)
            if node.get("Index Name") == "pgqueue_dependency_needs":  # without its first column, it would be read whole
                assert "needs_id =" in node["Index Cond"], (name, node)
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
