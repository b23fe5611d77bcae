"""Plans of the statements of batches, beside many jobs: they read index entries of the asked batches only."""

from __future__ import annotations

import pytest

from tests import helpers
from tests.test_sql import STATISTICS, explain, nodes, rows_read

pytestmark = pytest.mark.slow

BATCHES, JOBS = 500, 20_000
BATCH = "INSERT INTO pgqueue_batch (closed_at, parent_id) SELECT now(), CASE WHEN n % 10 = 0 THEN n - 1 END FROM "
JOB = (
    "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at, batch_id) "
    "SELECT 'noop', '{}', 'succeeded', now(), CASE WHEN n % 2 = 0 THEN 1 + n % 499 END FROM "
)
REMOVAL = "INSERT INTO pgqueue_batch_removal (batch_id, state, count) SELECT 1 + n % 499, 'succeeded', 7 FROM "
FILL = (
    f"{BATCH} generate_series(1, {BATCHES}) AS n",
    f"{JOB} generate_series(1, {JOBS}) AS n",
    f"{REMOVAL} generate_series(1, {JOBS}) AS n",
)
ASKED = {"batch_ids": [7, 8]}
OF_ENDS = {"pgqueue_batch_pkey", "pgqueue_job_batch", "pgqueue_batch_parent", "pgqueue_batch_removal_batch"}
CASES = {
    "JOIN_BATCH": ({"batch_id": 7}, 1, {"pgqueue_batch_pkey"}),
    "CLOSE_BATCH": ({"batch_id": 7}, 1, {"pgqueue_batch_pkey"}),
    "BATCHES_TO_END": (ASKED, 100, OF_ENDS),
    "LOCK_BATCHES": (ASKED, 2, {"pgqueue_batch_pkey"}),
    "END_BATCHES": (ASKED, 100, OF_ENDS),
    "INCOMPLETE_BATCHES": ({"after_id": 100, "limit": 10}, 10, {"pgqueue_batch_incomplete"}),
    "UNSETTLED_BATCHES": ({"after_id": 100, "limit": 10}, 10, {"pgqueue_batch_unsettled"}),
    "COUNT_BATCH_JOBS": (ASKED, 100, OF_ENDS - {"pgqueue_batch_pkey"}),
    "DELETE_BATCHES": (ASKED, 100, {"pgqueue_batch_pkey"}),
    "PRUNE_BATCHES": ({"after_id": 100, "limit": 10, "retention_seconds": 0.0}, 10, {"pgqueue_batch_pkey"}),
}
TABLES = ("pgqueue_job", "pgqueue_batch", "pgqueue_batch_removal")


@pytest.fixture(params=STATISTICS)
def filled(engine, request):
    with helpers.filled(engine, TABLES, FILL, request.param):
        yield engine


@pytest.mark.parametrize("plan", ["custom", "generic"])
def test_statements_of_batches_read_only_the_asked_batches(filled, plan):
    for name, (params, asked, indexes) in CASES.items():
        found = list(nodes(explain(filled, name, params, plan)))
        for node in found:
            assert node["Node Type"] not in ("Seq Scan", "Bitmap Heap Scan"), (name, node)
            assert rows_read(node) <= 3 * asked, (name, node)
        assert indexes <= {node.get("Index Name") for node in found}, name


def test_index_of_batches_has_no_entry_of_other_jobs(engine):
    """A job without a batch costs no further index entry."""
    helpers.make_jobs(engine, 1000)
    engine.execute("VACUUM pgqueue_job")
    assert helpers.scalar(engine, "SELECT pg_relation_size('pgqueue_job_batch')") == 8192
