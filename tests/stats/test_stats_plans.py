"""Plans of the statements of `stats` on an application's connection: none of them reads the history.

The tables have 20,000 finished and 10,000 ready jobs, and the limits are small. The planner is free to choose. If the
tables were analysed while the queue was idle, it may read all dead jobs by a bitmap, but no other history.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgqueue.stats import depths, fleet, periods
from tests import helpers
from tests.statements import READING
from tests.test_sql import nodes, rows_read

pytestmark = pytest.mark.slow

LIMIT = 100
NOW = "statement_timestamp()"
JOB = (
    "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, attempt, enqueued_at, run_after, finished_at) "
    "SELECT 'task' || n % 7, 'queue' || n % 2, '{}', "
)
JOB_THAT_RUNS = JOB.replace("finished_at", "finished_at, execution_id, worker_id")
CLAIM = "nextval('pgqueue_execution_id_seq'), 1"
EXECUTION = "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, lease_expires_at"
TABLES = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_rollup", "pgqueue_limit_state"),
    *("pgqueue_batch", "pgqueue_batch_removal", "pgqueue_step", "pgqueue_event", "pgqueue_dependency"),
    *("pgqueue_pause", "pgqueue_limit_override", "pgqueue_open_breaker", "pgqueue_schedulerun", "pgqueue_search_key"),
    *("pgqueue_audit", "pgqueue_worker"),
)
FILL = {
    "finished jobs": f"WITH job AS ({JOB} CASE WHEN n % 2 = 0 THEN 'dead' ELSE 'succeeded' END, 1, "
    f"{NOW} - interval '2 h', {NOW}, {NOW} - n * interval '1 s' FROM generate_series(1, 20000) AS n RETURNING id) "
    f"{EXECUTION}, outcome, finished_at) SELECT id, 1, 3, {NOW}, {NOW}, 'succeeded', {NOW} FROM job",
    "acknowledged jobs": f"WITH job AS ({JOB.replace('finished_at)', 'finished_at, acknowledged_at)')} 'dead', 1, "
    f"{NOW} - interval '2 h', {NOW}, {NOW} + n * interval '1 ms', {NOW} FROM generate_series(1, 20000) AS n "
    f"RETURNING id) {EXECUTION}, outcome, finished_at) SELECT id, 1, 3, {NOW}, {NOW}, 'failed', {NOW} FROM job",
    "due jobs": f"{JOB} 'ready', 0, {NOW}, {NOW} - n * interval '1 ms', NULL FROM generate_series(1, 5000) AS n",
    "later jobs": f"{JOB} 'ready', 0, {NOW}, {NOW} + n * interval '1 min', NULL FROM generate_series(1, 5000) AS n",
    "running jobs": f"WITH job AS ({JOB_THAT_RUNS} 'running', 1, {NOW}, {NOW}, NULL, {CLAIM} "
    "FROM generate_series(1, 1000) AS n RETURNING id, execution_id) "
    f"{EXECUTION}, id) SELECT id, 1, 1, {NOW}, {NOW} + interval '1 h', execution_id FROM job",
    "limited jobs": "INSERT INTO pgqueue_job (task_name, queue_name, arguments, run_after, limit_key, limit_order) "
    f"SELECT 'task' || n % 7, 'queue' || n % 2, '{{}}', {NOW} + (n % 3 - 1) * interval '1 h', 'limit:' || n % 500, "
    "nullif(n % 2, 0) FROM generate_series(1, 5000) AS n",
    "running jobs with a limit": f"{JOB_THAT_RUNS.replace('finished_at,', 'finished_at, limit_key,')} "
    f"'running', 1, {NOW}, {NOW}, NULL, 'limit:' || n % 500, {CLAIM} FROM generate_series(1, 5000) AS n",
    "limit states": "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
    f"SELECT 'limit:' || n % 500, {NOW}, CASE WHEN n % 2 = 0 THEN {NOW} END FROM generate_series(1, 5000) AS n",
    "paused keys": "INSERT INTO pgqueue_pause (kind, name) SELECT 'limit', 'limit:' || n FROM generate_series(1, 5000) "
    "AS n",
    "overrides": "INSERT INTO pgqueue_limit_override (limit_key, concurrency) SELECT 'limit:' || n, 1 "
    "FROM generate_series(1, 5000) AS n",
    "open breakers": "INSERT INTO pgqueue_open_breaker (limit_key, after_execution_id) SELECT 'limit:' || n, 1 "
    "FROM generate_series(1, 5000) AS n",
    "rollup": "INSERT INTO pgqueue_rollup (span, starts_at, queue_name, task_name, wait_buckets, wait_counts, "
    f"run_buckets, run_counts) SELECT 'hour', {NOW} - n * interval '1 min', 'default', 'task', '{{1}}', '{{1}}', "
    "'{1}', '{1}' FROM generate_series(1, 20000) AS n",
    "totals": "INSERT INTO pgqueue_rollup (span, starts_at, queue_name, task_name, wait_buckets, wait_counts, "
    f"run_buckets, run_counts) SELECT 'hour_total', {NOW} - n * interval '1 h', '', '', '{{1}}', '{{1}}', "
    "'{1}', '{1}' FROM generate_series(1, 200) AS n",
    "batches": "INSERT INTO pgqueue_batch (id, parent_id) "
    "SELECT n, CASE WHEN n % 100 = 0 THEN n - 1 END FROM generate_series(1, 2000) AS n",
    "jobs of batches": "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, finished_at, batch_id) "
    f"SELECT 'task' || n % 7, 'queue' || n % 2, '{{}}', 'succeeded', {NOW}, 1 + n % 2 * 98 "
    "FROM generate_series(1, 2000) AS n",
    "dependencies": "INSERT INTO pgqueue_dependency (job_id, needs_id, policy) "
    "SELECT 10 + n / 1000, n, 'cancel' FROM generate_series(1, 20000) AS n",
    "dependents": "INSERT INTO pgqueue_dependency (job_id, needs_id, policy) "
    "SELECT 30000 + n, 7, 'cancel' FROM generate_series(1, 5000) AS n",
    "finished steps": "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, finished_at, "
    f"event_id) SELECT n, 'done', 1, 'step', 1, {NOW}, {NOW}, n FROM generate_series(1, 10000) AS n",
    "sleeps and waits": "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, wake_at, "
    f"event_name, event_key) SELECT n, 'open', 2, 'sleep', 1, {NOW}, {NOW} + interval '1 h', "
    "CASE WHEN n % 2 = 0 THEN 'event' END, n FROM generate_series(1, 5000) AS n",
    "events": f"INSERT INTO pgqueue_event (name, key, sent_at) SELECT 'event', n, {NOW} FROM generate_series(1, 9000) "
    "AS n",
    "blocked nodes": "WITH dead AS (UPDATE pgqueue_job SET in_graph = true WHERE id IN (SELECT id FROM pgqueue_job "
    "WHERE state = 'dead' ORDER BY finished_at DESC LIMIT 50) RETURNING id) INSERT INTO pgqueue_dependency "
    "(job_id, needs_id, policy) SELECT 50000 + n, dead.id, 'block' FROM dead, generate_series(1, 20) AS n",
    "schedules": "INSERT INTO pgqueue_schedule (name, task_name, arguments, expression, next_run_at) "
    f"SELECT 's' || n, 'task', '{{}}', '@daily', {NOW} FROM generate_series(0, 49) AS n",
    "runs of schedules": "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, job_id) "
    f"SELECT (SELECT min(id) FROM pgqueue_schedule) + n % 50, {NOW} - n * interval '1 s', n "
    "FROM generate_series(1, 20000) AS n",
    "workers": "INSERT INTO pgqueue_worker (id, hostname, pid, supervisor_pid, version, release, concurrency, "
    f"started_at) SELECT n, 'h', n, 1, '0.1.0', 'release' || n % 20, 1, {NOW} - n * interval '1 s' "
    "FROM generate_series(1, 20000) AS n",
    "acts": "INSERT INTO pgqueue_audit (action, began_at, filter, job_count, ended_at) "
    f"SELECT (ARRAY['pause', 'resume', 'retry', 'delete'])[1 + n % 4], {NOW} - n * interval '1 min', '{{}}', n, {NOW} "
    "FROM generate_series(1, 20000) AS n",
    "search keys": "INSERT INTO pgqueue_search_key (job_id, name, value) "
    "SELECT n, 'key' || n % 2, n % 10 FROM generate_series(1, 20000) AS n",
    "removed jobs of batches": "INSERT INTO pgqueue_batch_removal (batch_id, state, count) "
    "SELECT 1 + n % 2000, 'succeeded', 1 FROM generate_series(1, 10000) AS n",
}


READY = {"limit": LIMIT, "due_total": 2 * LIMIT, "later_total": 2 * LIMIT, "lanes_limit": 10}
PERIOD = {
    "since": "now",
    "until": "tomorrow",
    "queue_name": None,
    "task_names": None,
    "spans": ["part", "minute", "hour"],
    "waits": True,
    "hourly": True,
}
TOTALS = {**PERIOD, "since": "2000-01-01", "spans": periods.SPANS_OF_TOTALS}
SEARCH = {"names": ["key0", "key1"], "text": "7", "limit": LIMIT}
SINCE_2000 = {"since": "2000-01-01", "until": "tomorrow"}
LANES = {"queue_names": ["queue0", "queue1"], "priorities": [0, 0]}
RANGES = {**LANES, "lows": ["limit:", "limit:3"], "highs": ["limit;", "limit;"], "limit": LIMIT}
KEYS = [f"limit:{number}" for number in range(8)]
AHEAD = {
    "queue_name": "queue1",
    "priority": 0,
    "limit_key": "limit:1",
    "run_after": "tomorrow",
    "job_id": 1,
    "limit": LIMIT,
}
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "READY_BY_LANE": (READY, {"pgqueue_job_ready"}),
    "READY_BY_TASK": (READY, {"pgqueue_job_ready"}),
    "LIMITED_LANES": ({"lanes_limit": 10}, {"pgqueue_job_limited"}),
    "READY_LIMITED": (
        {"lanes_limit": 10, "limit": LIMIT, "rows_total": 2 * LIMIT, "keys_total": 10, "places_total": LIMIT},
        {"pgqueue_job_limited"},
    ),
    "LIMITS_WITH_JOBS": ({**LANES, "limit": LIMIT}, {"pgqueue_job_limited"}),
    "KEYS_WITH_JOBS": (RANGES, {"pgqueue_job_limited"}),
    "JOBS_OF_LIMITS": (RANGES, {"pgqueue_job_limited"}),
    "RUNNING_OF_LIMITS": ({"limit": LIMIT}, {"pgqueue_job_running_key"}),
    "KEYS_WITH_EXECUTIONS": (
        {"lows": ["limit:"], "highs": ["limit;"], "limit": LIMIT},
        {"pgqueue_job_running_key"},
    ),
    "HELD_KEYS": ({"limit": LIMIT}, {"pgqueue_limit_state_held"}),
    "JOBS_OF_KEYS": (
        {"queue_names": ["queue1"] * 8, "priorities": [0] * 8, "limit_keys": KEYS, "limit": 10},
        {"pgqueue_job_limited"},
    ),
    "STATES_OF_KEYS": (
        {"limit_keys": KEYS, "limit": 5, "shown": 5},
        {
            "pgqueue_job_running_key",
            "pgqueue_limit_state_key",
            "pgqueue_limit_state_held",
            "pgqueue_job_ordered",
        },
    ),
    "CONTROLS_OF_KEYS": (
        {"names": KEYS},
        {"pgqueue_limit_override_key", "pgqueue_pause_name", "pgqueue_open_breaker_key"},
    ),
    "AHEAD_IN_KEY": (AHEAD, {"pgqueue_job_limited"}),
    "AHEAD_IN_ORDER": ({"limit_key": "limit:1", "job_id": 10**9, "limit": LIMIT}, {"pgqueue_job_ordered"}),
    "OPEN_EXECUTIONS_BY_TASK": ({"limit": LIMIT}, {"pgqueue_job_running", "pgqueue_execution_pkey"}),
    "RUNNING_OF_WORKERS": ({"worker_ids": [1, 2], "limit": LIMIT}, {"pgqueue_job_running", "pgqueue_execution_pkey"}),
    "COUNTS_OF_BATCHES": (
        {"batch_ids": [1, 99, 7], "states": ["ready", "dead", "succeeded"], "limit": LIMIT, "nodes": 10},
        {"pgqueue_batch_parent", "pgqueue_job_batch", "pgqueue_batch_removal_batch"},
    ),
    "JOBS_OF_BATCH": (
        {"batch_id": 99, "states": ["dead", "succeeded"], "limit": LIMIT, "nodes": 10},
        {"pgqueue_batch_parent", "pgqueue_job_batch"},
    ),
    "SUSPENDED_JOBS": ({"limit": LIMIT}, {"pgqueue_step_wakes", "pgqueue_step_waiting", "pgqueue_job_pkey"}),
    "UNRECEIVED_EVENTS": ({"limit": LIMIT}, {"pgqueue_event_pkey", "pgqueue_step_event"}),
    "BATCHES_BY_STATE": ({"limit": LIMIT}, {"pgqueue_batch_incomplete", "pgqueue_batch_unsettled"}),
    "NODES_OF_WORKFLOW": ({"batch_id": 99, "limit": LIMIT}, {"pgqueue_job_batch"}),
    "EDGES_OF_NODES": ({"job_ids": [11, 12, 13], "limit": LIMIT}, {"pgqueue_dependency_pkey"}),
    "DEPENDENCIES_OF_JOB": ({"job_id": 11, "limit": LIMIT}, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
    "DEPENDENTS_OF_JOB": ({"job_id": 7, "limit": LIMIT}, {"pgqueue_dependency_needs", "pgqueue_job_pkey"}),
    "WAITS_OF_JOB": ({"job_id": 11, "limit": LIMIT}, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
    "ROOTS_OF_JOB": ({"job_id": 11, "limit": LIMIT, "edges": LIMIT}, {"pgqueue_dependency_pkey", "pgqueue_job_pkey"}),
    "NESTED_BATCHES": ({"batch_id": 99, "nodes": 10}, {"pgqueue_batch_parent"}),
    "NEWEST_DEAD": ({"limit": LIMIT, "seconds": 86400.0}, {"pgqueue_job_dead"}),
    "DEAD_IN_A_ROW": (
        {"seconds": 3600.0, "least": 3, "limit": 20, "jobs": LIMIT},
        {"pgqueue_rollup_starts", "pgqueue_job_task"},
    ),
    "DEAD_DEPENDENCIES": (
        {"searched": LIMIT, "limit": LIMIT, "dependents": 10, "tasks": 20, "seconds": 86400.0},
        {"pgqueue_job_dead", "pgqueue_dependency_needs", "pgqueue_job_pkey"},
    ),
    "RUN_TIMES": ({"seconds": 3600.0, "task_names": ["task"]}, {"pgqueue_rollup_starts"}),
    "LONG_RUNNING": (
        {"task_names": ["task0", "task1"], "limits_seconds": [300.0, 600.0], "limit": LIMIT},
        {"pgqueue_job_running"},
    ),
    "ACKNOWLEDGED_DEPENDENCIES": (
        {"limit": LIMIT, "edges": LIMIT, "tasks": 20},
        {"pgqueue_job_waiting", "pgqueue_dependency_pkey", "pgqueue_job_pkey"},
    ),
    "FAILING_SCHEDULES": (
        {"schedules": 40, "runs": 10, "late_seconds": 60.0, "least": 3, "limit": 20},
        {"pgqueue_schedulerun_tick", "pgqueue_job_pkey"},
    ),
    "NEWEST_ENQUEUED": ({"limit": LIMIT, "first_id": 1}, {"pgqueue_job_pkey"}),
    "AHEAD_IN_LANE": (
        {
            "queue_name": "queue1",
            "priority": 0,
            "run_after": "tomorrow",
            "job_id": 1,
            "paused_task_names": [],
            "limit": LIMIT,
        },
        {"pgqueue_job_ready"},
    ),
    "JOB_WITH_LAST_EXECUTION": ({"job_id": 7}, {"pgqueue_job_pkey", "pgqueue_execution_job"}),
    "FIRST_WAITING": ({"limit": LIMIT}, {"pgqueue_job_waiting"}),
    "ENDED_BY_TASK": ({"delay_seconds": 15.0}, {"pgqueue_rollup_starts"}),
    "COUNTS_OVER_TIME": (PERIOD, {"pgqueue_rollup_starts"}),
    "DURATIONS_OVER_TIME": (PERIOD, {"pgqueue_rollup_starts"}),
    "COUNTS_OVER_TIME of 200 hours": (TOTALS, {"pgqueue_rollup_starts"}),
    "DURATIONS_OVER_TIME of 200 hours": (TOTALS, {"pgqueue_rollup_starts"}),
    "COUNTS_BY_TASK": ({**PERIOD, "limit": 100}, {"pgqueue_rollup_starts"}),
    "DURATIONS_BY_TASK": (PERIOD, {"pgqueue_rollup_starts"}),
    "FAILURES_BY_CLASS": ({**PERIOD, "limit": 100}, {"pgqueue_rollup_starts"}),
    "FAILURES_OVER_TIME": (PERIOD, {"pgqueue_rollup_starts"}),
    "FAILURE_CLASSES": ({"seconds": 0.0, "limit": 100}, {"pgqueue_rollup_starts"}),
    "DEAD_GROUPS": ({**SINCE_2000, "limit": LIMIT, "sample": 20}, {"pgqueue_job_dead", "pgqueue_execution_job"}),
    "DEAD_MESSAGES": (
        {**SINCE_2000, "limit": LIMIT, "task_name": "task1", "exception_class": "x"},
        {"pgqueue_job_dead", "pgqueue_execution_job"},
    ),
    "DEAD_EDITED": (
        {**SINCE_2000, "limit": LIMIT, "task_name": "task1", "exception_class": "x"},
        {"pgqueue_job_dead", "pgqueue_execution_job", "pgqueue_audit_job_once", "pgqueue_audit_pkey"},
    ),
    "DEAD_RELEASES": (
        {**SINCE_2000, "limit": LIMIT, "task_name": "task1", "exception_class": "x", "releases": 20},
        {"pgqueue_job_dead", "pgqueue_execution_job", "pgqueue_worker_pkey"},
    ),
    "DEAD_BEYOND": ({**SINCE_2000, "limit": LIMIT}, {"pgqueue_job_dead"}),
    "RUNS_OF_SCHEDULES": (
        {"schedule_ids": "{1,2,3}", "limit": 11, "with_attempts": True},
        {"pgqueue_schedulerun_tick", "pgqueue_job_pkey", "pgqueue_execution_job", "pgqueue_worker_pkey"},
    ),
    "JOBS_BY_SEARCH_KEYS": (
        {**SEARCH, "searched": LIMIT, "hidden": [], "task_names": None},
        {"pgqueue_search_key_value", "pgqueue_job_pkey"},
    ),
    "JOBS_BY_SEARCH_KEYS of some tasks": (
        {**SEARCH, "searched": 2 * LIMIT, "hidden": ["key0 task1"], "task_names": ["task0", "task1", "task2"]},
        {"pgqueue_search_key_value", "pgqueue_job_pkey"},
    ),
    "SEARCH_VALUES": (
        {"name": "key0", "first": "1", "end": "1\U0010ffff", "limit": LIMIT, "task_names": ["task0", "task1"]},
        {"pgqueue_search_key_value", "pgqueue_job_pkey"},
    ),
    "WAITING_IN_QUEUES": (
        {"queue_names": ["queue0", "queue1", "other"], "limit": LIMIT},
        {"pgqueue_job_ready", "pgqueue_job_limited"},
    ),
    "RUNNING_BY_TARGET": ({"limit": LIMIT}, {"pgqueue_job_running"}),
    "PAST_ACTS": (
        {
            **SINCE_2000,
            "actions": ["pause", "resume", "retry"],
            "of_many": ["retry"],
            "job_id": 7,
            "on_job": ["cancel", "move"],
            **dict.fromkeys(("limit", "of_job", "releases"), LIMIT),
        },
        {"pgqueue_audit_action", "pgqueue_audit_job_once", "pgqueue_audit_pkey", "pgqueue_worker_release"},
    ),
    "JOBS_WITH_EXCEPTION": (
        {"job_ids": list(range(LIMIT)), "pattern": "^x$", "message": None},
        {"pgqueue_execution_job"},
    ),
    "JOBS_WITH_EXCEPTION with a message": (
        {"job_ids": list(range(LIMIT)), "pattern": None, "message": "=order # failed"},
        {"pgqueue_execution_job"},
    ),
}


def explain(connection: Any, name: str) -> list[Any]:
    with connection.cursor() as cursor:
        query = f"EXPLAIN (ANALYZE, FORMAT JSON) {READING[name.partition(' ')[0]]}"
        [[answer]] = cursor.execute(query, {**CASES[name][0], "time_shift": "0 s"}, prepare=False).fetchall()
    return list(nodes(answer[0]["Plan"]))


@pytest.fixture(scope="module")
def plans(django_db_setup: Any, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """Return the plans of each statement on an application's connection, by what the planner knows."""
    with (
        django_db_blocker.unblock(),
        helpers.closing(helpers.connect()) as connection,
        helpers.without_statistics(connection, TABLES),
    ):
        connection.execute(f"ANALYZE {', '.join(TABLES)}")
        for statement in FILL.values():
            connection.execute(statement)
        connection.execute("SET plan_cache_mode = auto")
        for kind in ("seqscan", "bitmapscan", "hashjoin", "mergejoin"):
            connection.execute(f"SET enable_{kind} = on")
        idle = {name: explain(connection, name) for name in CASES}
        connection.execute(f"ANALYZE {', '.join(TABLES)}")
        full = {name: explain(connection, name) for name in CASES}
        helpers.empty_tables(connection)
        helpers.come_to_rest(connection)
        for statement in FILL.values():
            connection.execute(statement)
        yield {"idle": idle, "at rest": {name: explain(connection, name) for name in CASES}, "full": full}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_plan_of_stats_reads_a_bounded_number_of_rows(plans, name):
    indexes = CASES[name][1]
    for node in plans["full"][name]:
        assert rows_read(node) <= 5 * LIMIT, node
    for found in (plans["full"][name], plans["at rest"][name], plans["idle"][name]):
        assert [node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES] == []
        used = {node.get("Index Name") for node in found}
        assert indexes <= used


def test_every_statement_on_large_tables_has_a_case():
    """The others read small tables such as `pgqueue_pause` and `pgqueue_worker`, or ids and names."""
    small = {"RECORDED_INSTALLATIONS", "SERVER_IDENTIFIER", "LIMIT_CONTROLS", "ROLES_OF_WORKERS"}
    others = small | {
        "OPEN_PAUSES",
        "WORKERS",
        "LIMIT_CONTROLS",
        "DATABASE_TIME",
        "NAMES",
        "FIRST_ID",
        "LAST_ID",
        "FIRST_ID_SINCE",
        "MAY_READ_SCHEDULES",
        "OPENED_BREAKERS",
    }
    assert {name.partition(" ")[0] for name in CASES} | others == set(READING)


def test_limits_of_the_statements_bound_their_cost():
    assert depths.DUE_TOTAL <= 100_000
    assert depths.DUE_BY_TASK_TOTAL <= 20_000
    assert max(depths.COUNT_LIMIT, depths.LATER_TOTAL, depths.ENQUEUED_LIMIT, fleet.OPEN_LIMIT) <= 10_000
