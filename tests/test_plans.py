"""Plans of the statements that read by unique key, by expiry or by schedule, with a history of 100,000 rows each.

The rules are those of `test_sql`. A plan may read only the entries of an index, or a table of a few rows: the pauses,
and the 50 schedules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from django_pgqueue import sql
from django_pgqueue.db.statements import execute
from django_pgqueue.declared.limits import NO_LIMIT
from django_pgqueue.lifecycle import expiry, orphans, schedules, unique
from django_pgqueue.lifecycle.types import EPOCH
from django_pgqueue.options.task_options import UNSET
from tests import helpers
from tests.rules import check_each
from tests.test_sql import FEW_ROWS, STATISTICS, explain, nodes, rows_read

pytestmark = pytest.mark.slow

HISTORY, KEYED, LATE, SCHEDULES, BATCH = 100_000, 10_000, 1000, 50, 100
RUNS = HISTORY // SCHEDULES
NO_JOB = 20_000_000
"""Search keys have ids of jobs, and as many ids behind this one, which are of no job."""
LAST_EXECUTION = 10_000_000
"""The id of the last of `KEYED` executions. The last `LATE` of them have lines. Ids behind it have lines only."""
SMALL = {*FEW_ROWS, "pgqueue_schedule"}
FREE = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
FILLED = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_uniqueness_window"),
    *("pgqueue_schedule", "pgqueue_schedulerun", "pgqueue_pause", "pgqueue_execution_log", "pgqueue_search_key"),
    *("pgqueue_step", "pgqueue_event", "pgqueue_audit", "pgqueue_audit_job"),
)
NOW = "statement_timestamp()"
COMPENSATION = json.dumps(
    {"task_name": "noop", "queue_name": "default", "priority": 0, "max_attempts": 1, "delay_seconds": 0}
)
JOB = (
    "INSERT INTO pgqueue_job (task_name, arguments, state, attempt, run_after, finished_at, unique_key, expires_at) "
    "SELECT 'noop', '{}', "
)
JOB_THAT_RUNS = JOB.replace("expires_at", "expires_at, execution_id, worker_id")
FILL = (
    f"{JOB} 'dead', 1, {NOW}, {NOW}, 'key' || n % 50000, NULL FROM generate_series(1, {HISTORY}) AS n",
    f"{JOB} 'ready', 0, {NOW}, NULL, 'key' || n, NULL FROM generate_series(1, {KEYED}) AS n",
    (
        f"{JOB_THAT_RUNS} 'running', 1, {NOW}, NULL, 'key' || {KEYED} + n, NULL, {2 * LAST_EXECUTION} + n, 1 "
        f"FROM generate_series(1, {KEYED}) AS n"
    ),
    f"{JOB} 'ready', 0, {NOW}, NULL, NULL, {NOW} - interval '1 s' FROM generate_series(1, {LATE}) AS n",
    f"{JOB} 'ready', 0, {NOW}, NULL, NULL, {NOW} + interval '9 h' FROM generate_series(1, {KEYED}) AS n",
    (
        "INSERT INTO pgqueue_job (task_name, arguments, run_after, limit_key) "
        f"SELECT 'noop', '{{}}', {NOW}, 'limit:' || n % 10 FROM generate_series(1, {KEYED}) AS n"
    ),
    (
        "INSERT INTO pgqueue_schedule (name, task_name, arguments, expression, if_running, next_run_at) "
        f"SELECT 'schedule' || n, 'noop', '{{}}', 'every 1 second', 'skip', {NOW} "
        f"FROM generate_series(1, {SCHEDULES}) AS n"
    ),
    (
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id) "
        f"SELECT 1 + n % {SCHEDULES}, {NOW} - n * interval '10 s', {NOW}, n FROM generate_series(1, {HISTORY}) AS n"
    ),
    (
        "INSERT INTO pgqueue_pause (kind, name, paused_at, paused_by, reason) "
        f"SELECT 'queue', 'queue' || n, {NOW}, '', '' FROM generate_series(1, 5) AS n"
    ),
    (
        "INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at) "
        f"SELECT CASE WHEN n > {KEYED} THEN 10000000 ELSE {HISTORY} END + n, 'noop', 'key' || n, "
        f"{NOW} + CASE WHEN n > {LATE} THEN interval '9 h' ELSE '-1 s' END FROM generate_series(1, {HISTORY}) AS n"
    ),
    (
        "INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, outcome, claimed_at, finished_at, "
        "lease_expires_at) "
        f"SELECT {LAST_EXECUTION - KEYED} + n, n, 1, 1, 'failed', '2026-01-01Z', {NOW}, {NOW} "
        f"FROM generate_series(1, {KEYED}) AS n"
    ),
    (
        "INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, lease_expires_at) "
        f"SELECT execution_id, id, 1, 1, '2026-01-01Z', {NOW} + interval '9 h' FROM pgqueue_job "
        "WHERE state = 'running' AND id % 100 > 0"
    ),
    (
        "INSERT INTO pgqueue_execution_log (execution_id, first_lines, last_lines, cut_lines) "
        f"SELECT {LAST_EXECUTION - LATE} + n, '[]', '[]', 0 FROM generate_series(1, {KEYED}) AS n"
    ),
    (
        "INSERT INTO pgqueue_search_key (job_id, name, value) "
        f"SELECT n % 2 * {NO_JOB} + n / 2, 'customer_id', n % 1000 FROM generate_series(2, {2 * HISTORY + 2}) AS n"
    ),
    (
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, finished_at) "
        f"SELECT n % 2 * {NO_JOB} + n / 2, 'charge', 1, 'step', 1, {NOW}, {NOW} "
        f"FROM generate_series(2, {2 * HISTORY + 2}) AS n"
    ),
    (
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, event_name, event_key) "
        f"SELECT {HISTORY} + n, 'wait', 2, 'event', 1, {NOW}, 'approved', n / 100 "
        f"FROM generate_series(1, {KEYED}) AS n"
    ),
    (
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, finished_at, compensation, "
        "compensation_arguments) "
        f"SELECT id, 'undone', 3, 'step', 1, {NOW}, {NOW}, '{COMPENSATION}', '{{}}' "
        f"FROM (SELECT id FROM pgqueue_job WHERE state = 'dead' ORDER BY id DESC LIMIT {BATCH}) AS dead"
    ),
    (
        "INSERT INTO pgqueue_event (name, key, sent_at) "
        f"SELECT 'approved', n, {NOW} FROM generate_series(1, {HISTORY}) AS n"
    ),
    f"INSERT INTO pgqueue_audit (action, filter) SELECT 'retry', '{{}}' FROM generate_series(1, {KEYED}) AS n",
    (
        "INSERT INTO pgqueue_audit_job (audit_id, job_id) "
        f"SELECT 1 + n % {KEYED}, n FROM generate_series(1, {HISTORY}) AS n"
    ),
)


@pytest.fixture(scope="module")
def filled(django_db_setup: Any, django_db_blocker: Any, request: Any) -> Iterator[Any]:
    """Fill the tables, once for all tests with the same state of statistics, and return a connection."""
    names = ", ".join(FILLED)
    with (
        django_db_blocker.unblock(),
        helpers.closing(helpers.connect()) as connection,
        helpers.without_statistics(connection, FILLED),
    ):
        if request.param == "analysed idle":
            connection.execute(f"ANALYZE {names}")
        if request.param == "analysed at rest":
            helpers.come_to_rest(connection)
        for statement in FILL:
            connection.execute(statement)
        if request.param == "analysed full":
            connection.execute(f"ANALYZE {names}")
        yield connection


CALL: dict[str, Any] = {
    **UNSET,
    "task_name": "noop",
    "queue_name": "default",
    "priority": 0,
    "max_attempts": 10,
    "delay_seconds": 0.0,
    "unique_ready_only": None,
}
LIMITS = json.dumps([{"limit_key": f"limit:{n % 10}", "limit_weight": 2, "limit_order": None} for n in range(BATCH)])
WORKER = {"worker_id": 1, "error": ""}


def one_call(connection):
    return {**CALL, **NO_LIMIT, "arguments": "{}", "unique_key": "key7"}


def many_calls(connection):
    calls = [{"key": f"key{KEYED - BATCH // 2 + n}", "call": {}} for n in range(BATCH)]
    return {**CALL, "arguments": json.dumps(calls), "limits": LIMITS}


def each_call(connection):
    """Return calls of which half have the same options and half have options of their own."""
    return {
        "arguments": json.dumps([{}] * BATCH),
        "limits": LIMITS,
        "job_ids": [],
        "keys": json.dumps([f"key{KEYED - BATCH // 2 + n}" for n in range(BATCH)]),
        "numbers": [max(0, n - BATCH // 2) for n in range(BATCH)],
        "options": json.dumps([{**CALL, "number": n, "priority": n} for n in range(BATCH // 2)]),
    }


def calls_for_period(connection):
    """Return calls with keys of which half have an open uniqueness window and half an ended one."""
    calls = [{"key": f"key{LATE - BATCH // 2 + n}", "call": {}} for n in range(BATCH)]
    return {**CALL, "calls": json.dumps(calls), "limits": LIMITS, "period_seconds": 60.0, "job_ids": []}


def keys(connection):
    return {"task_name": "noop", "unique_keys": [f"key{n}" for n in range(LATE + 1, LATE + BATCH + 1)]}


def finished(connection):
    rows = connection.execute("SELECT id FROM pgqueue_job WHERE state = 'dead' ORDER BY id LIMIT %s", [BATCH])
    ids = [row[0] for row in rows]
    texts = [""] * len(ids)
    return {"job_ids": ids, "seen_states": texts, "seen_instants": texts, "seen_acknowledged": texts}


def compensated(connection):
    rows = connection.execute(
        "SELECT job_id FROM pgqueue_step WHERE compensation IS NOT NULL ORDER BY job_id LIMIT %s", [BATCH]
    )
    return {"job_ids": [row[0] for row in rows], "idle_wait": "5s"}


def as_read(connection):
    schedule = helpers.schedule_of(connection, 7)
    following_at = schedule.next_run_at + timedelta(seconds=1)
    return {
        "schedule_id": 7,
        "revision": schedule.revision,
        "expected_at": schedule.next_run_at,
        "following_at": following_at,
        "schedule_ids": [7],
    }


def many_ticks(connection):
    ticks = [helpers.tick_of(schedule) for schedule in schedules.read_schedules(connection)[1]]
    waits = {"key_wait": None, "idle_wait": "5s", "is_duplicate": False}
    return {"ticks": json.dumps([tick.columns() for tick in ticks]), "confirmed_seconds": 180.0, **waits}


def defined(connection):
    own = helpers.definition().columns()
    read = as_read(connection)
    more = {"digest": "", "former_digests": "", "origin": "admin", "enabled": True}
    return {**read, **own, **more, "next_run_at": read["following_at"]}


def some_ids(connection):
    return {"job_ids": list(range(1, BATCH + 1))}


def after_start(connection):
    lane = {"queue_name": "default", "priority": 0}
    return {**lane, "after_at": EPOCH, "after_id": 0, "after_worker_id": 0, "limit": BATCH}


def of_running(connection):
    """Return parameters for running jobs of which each hundredth has lost its execution."""
    return {"after_id": HISTORY + KEYED, "limit": BATCH}


def abandoned(connection):
    rows = execute(connection, sql.stranded.ABANDONED, {"after_id": HISTORY + KEYED, "limit": 20 * BATCH})
    ids = [row[1] for row in rows]
    return {"job_ids": ids, "attempts": [1] * len(ids), "delays_seconds": [1.0] * len(ids), **WORKER}


def suspended(connection):
    rows = connection.execute(
        "SELECT id, 1000 * date_part('epoch', claimed_at) FROM pgqueue_execution WHERE outcome IS NULL "
        "ORDER BY id LIMIT %s",
        [BATCH],
    )
    ids, claimed_ms = zip(*rows, strict=True)
    each = {
        **dict.fromkeys(["started_seconds_ago", "finished_seconds_ago", "positions", "delays_seconds"], 0.5),
        **dict.fromkeys(["reasons", "errors", "event_names", "event_keys"], ""),
        "names": "nap",
        "kinds": "sleep",
        "have_end": True,
        "tries": 1,
    }
    columns = {name: [value] * BATCH for name, value in each.items()}
    return {"execution_ids": list(ids), "claimed_ms": list(claimed_ms), **columns}


def logs(connection):
    """Return lines for executions of which the last ones have lines already."""
    ids = list(range(LAST_EXECUTION - LATE - BATCH // 2, LAST_EXECUTION - LATE + BATCH // 2))
    claimed_ms = connection.execute("SELECT 1000 * date_part('epoch', '2026-01-01Z'::timestamptz)").fetchone()[0]
    empty = ["[]"] * BATCH
    lines = {"first_lines": empty, "last_lines": empty, "cut_lines": [0] * BATCH}
    return {"execution_ids": ids, "claimed_ms": [claimed_ms] * BATCH, **lines}


CASES: dict[str, tuple[Any, int, set[str]]] = {
    "READY_CALLS": (after_start, BATCH, {"pgqueue_job_ready"}),
    "READY_LIMITED_CALLS": (lambda c: {**after_start(c), "after_key": ""}, BATCH, {"pgqueue_job_limited"}),
    "RUNNING_CALLS": (after_start, BATCH, {"pgqueue_job_running"}),
    "CALL_SHAPES": (some_ids, BATCH, {"pgqueue_job_pkey"}),
    "STORED_CALLS": (some_ids, BATCH, {"pgqueue_job_pkey"}),
    "SCHEDULED_CALLS": (after_start, SCHEDULES, set()),
    "EXPIRE": (
        lambda _: {"limit": BATCH, "worker_id": 1, "error": "", "skipped_ids": []},
        BATCH,
        {"pgqueue_job_expiring"},
    ),
    "ENQUEUE_UNIQUE": (one_call, 1, {"pgqueue_job_unique"}),
    "ENQUEUE_OR_REPLACE": (one_call, 1, {"pgqueue_job_unique"}),
    "ENQUEUE_MANY_UNIQUE": (many_calls, BATCH, {"pgqueue_job_unique"}),
    "ENQUEUE_EACH_UNIQUE": (each_call, BATCH, {"pgqueue_job_unique"}),
    "ENQUEUE_MANY_OR_REPLACE": (many_calls, BATCH, {"pgqueue_job_unique", "pgqueue_step_pkey"}),
    "HOLDERS": (keys, BATCH, {"pgqueue_job_unique"}),
    "ENQUEUE_FOR_PERIOD": (calls_for_period, BATCH, {"pgqueue_uniqueness_window_key"}),
    "REPLACE_FOR_PERIOD": (
        calls_for_period,
        BATCH,
        {"pgqueue_uniqueness_window_key", "pgqueue_job_pkey", "pgqueue_step_pkey"},
    ),
    "OPEN_WINDOWS": (lambda c: {**keys(c), "job_ids": []}, BATCH, {"pgqueue_uniqueness_window_key"}),
    "PRUNE_WINDOWS": (lambda _: {"limit": BATCH}, BATCH, {"pgqueue_uniqueness_window_ends"}),
    "KEEP_LOGS": (logs, BATCH, {"pgqueue_execution_pkey", "pgqueue_execution_log_pkey"}),
    "PRUNE_LOGS": (
        lambda _: {"after_id": LAST_EXECUTION, "limit": BATCH},
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_execution_log_pkey"},
    ),
    "ADD_SEARCH_KEYS": (
        lambda _: {"job_ids": [n * 9 for n in range(BATCH)], "names": ["customer_id"] * BATCH, "texts": ["7"] * BATCH},
        BATCH,
        {"pgqueue_search_key_pkey"},
    ),
    "REMOVE_SEARCH_KEYS": (some_ids, BATCH, {"pgqueue_search_key_pkey"}),
    "PRUNE_SEARCH_KEYS": (
        lambda _: {"after_id": NO_JOB, "limit": BATCH},
        BATCH,
        {"pgqueue_job_pkey", "pgqueue_search_key_pkey"},
    ),
    "ABANDONED": (of_running, BATCH, {"pgqueue_job_pkey", "pgqueue_execution_pkey"}),
    "REQUEUE": (abandoned, BATCH, {"pgqueue_job_pkey", "pgqueue_execution_pkey"}),
    "SUSPEND": (suspended, BATCH, {"pgqueue_execution_pkey", "pgqueue_job_pkey", "pgqueue_step_pkey"}),
    "LOAD_STEPS": (lambda _: {"job_id": 7}, 10, {"pgqueue_step_pkey"}),
    "COMPENSATE": (compensated, BATCH, {"pgqueue_job_pkey", "pgqueue_step_compensation", "pgqueue_step_pkey"}),
    "PENDING_SAGAS": (lambda _: {"after_id": 0, "limit": BATCH}, BATCH, {"pgqueue_step_compensation"}),
    "IS_COMPENSATING": (lambda _: {"job_id": 7}, 10, {"pgqueue_step_pkey"}),
    "REMOVE_STEPS": (some_ids, BATCH, {"pgqueue_step_pkey"}),
    "WAKE": (
        lambda _: {"event_name": "approved", "event_key": "7", "after_id": 0, "limit": BATCH},
        BATCH,
        {"pgqueue_step_waiting", "pgqueue_job_pkey"},
    ),
    "WAKE_SUSPENDED": (
        lambda _: {"job_ids": [HISTORY + n for n in range(1, BATCH + 1)]},
        BATCH,
        {"pgqueue_step_pkey", "pgqueue_job_pkey", "pgqueue_event_key"},
    ),
    "MISSED_WAKE_UPS": (
        lambda _: {"after_name": "approved", "after_key": "3", "after_id": 0, "limit": BATCH},
        BATCH,
        {"pgqueue_step_waiting", "pgqueue_event_key"},
    ),
    "WAITING_FOR_EVENTS": (
        lambda _: {"event_ids": [7, 8, 9], "limit": BATCH},
        3 * BATCH,
        {"pgqueue_event_pkey", "pgqueue_step_waiting", "pgqueue_job_pkey"},
    ),
    "FIND_EVENT": (
        lambda _: {"job_id": 7, "event_name": "approved", "event_key": "77"},
        10,
        {"pgqueue_event_key", "pgqueue_step_pkey"},
    ),
    "PRUNE_STEPS": (
        lambda _: {"after_id": NO_JOB, "limit": BATCH},
        BATCH,
        {"pgqueue_job_pkey", "pgqueue_step_pkey"},
    ),
    "PRUNE_EVENTS": (
        lambda _: {"after_id": 0, "limit": BATCH, "retention_seconds": 0.0},
        BATCH,
        {"pgqueue_event_pkey", "pgqueue_step_waiting"},
    ),
    "NEEDS": (
        lambda c: {"job_ids": finished(c)["job_ids"]},
        BATCH,
        {"pgqueue_job_pkey", "pgqueue_step_compensation", "pgqueue_step_undone"},
    ),
    "RETRY": (
        lambda c: {**finished(c), "with_edited": False},
        BATCH,
        {"pgqueue_job_pkey", "pgqueue_job_unique", "pgqueue_audit_job_once", "pgqueue_audit_pkey"},
    ),
    "EDITED_JOBS": (
        lambda c: {"job_ids": finished(c)["job_ids"]},
        BATCH,
        {"pgqueue_audit_job_once", "pgqueue_audit_pkey", "pgqueue_job_pkey"},
    ),
    "MOVE": (lambda c: {**finished(c), "queue_name": "other", "priority": 1}, BATCH, {"pgqueue_job_pkey"}),
    "SET_MAX_ATTEMPTS": (lambda c: {**finished(c), "max_attempts": 77}, BATCH, {"pgqueue_job_pkey"}),
    "DELETE": (finished, BATCH, {"pgqueue_job_pkey", "pgqueue_search_key_pkey"}),
    "PAUSE": (
        lambda _: {
            "kind": "queue",
            "name": "queue3",
            "until": None,
            "for_seconds": 60.0,
            "paused_by": "",
            "reason": "",
            "only_new": False,
        },
        5,
        set(),
    ),
    "RESUME": (lambda _: {"kind": "queue", "name": "queue3"}, 5, set()),
    "PRUNE_PAUSES": (lambda _: {"older_than_seconds": 0.0}, 5, set()),
    "SCHEDULES": (lambda _: {}, SCHEDULES, set()),
    "FIRE": (many_ticks, 30 * SCHEDULES, {"pgqueue_schedulerun_tick", "pgqueue_job_pkey"}),
    "RUN_SCHEDULE": (lambda c: {**as_read(c), "seen_last_run": "any"}, SCHEDULES, set()),
    "SCHEDULE_ARGUMENTS": (as_read, SCHEDULES, set()),
    "NOTE_PROBLEM": (lambda c: {**as_read(c), "problem": "none"}, SCHEDULES, set()),
    "PLAN_SCHEDULE": (as_read, SCHEDULES, set()),
    "ADD_SCHEDULE": (defined, 1, {"pgqueue_schedule_name"}),
    "CHANGE_SCHEDULE": (defined, SCHEDULES, set()),
    "SWITCH_SCHEDULE": (
        lambda c: {**defined(c), "enabled": False, "until": None, "for_seconds": None},
        SCHEDULES,
        set(),
    ),
    "SKIP_RUN": (
        lambda c: {**as_read(c), "tick_at": as_read(c)["expected_at"], "skipped_by": "ada"},
        SCHEDULES,
        {"pgqueue_schedulerun_tick"},
    ),
    "UNDO_SKIP": (
        lambda c: {**as_read(c), "tick_at": as_read(c)["expected_at"]},
        SCHEDULES,
        {"pgqueue_schedulerun_tick"},
    ),
    "CONFIRM_SCHEDULES": (as_read, SCHEDULES, set()),
    "REMOVE_SCHEDULES": (lambda c: {**as_read(c), "confirmed_seconds": 180.0}, RUNS, {"pgqueue_schedulerun_tick"}),
    "PRUNE_SCHEDULE_RUNS": (
        lambda _: {"kept": 100, "limit": 10, "retention_seconds": 3600.0},
        SCHEDULES * 110,
        {"pgqueue_schedulerun_tick"},
    ),
}


COMPARISONS = {"ENQUEUE_EACH_UNIQUE": BATCH // 2}
"""How often a worker compares a row. Its connections allow no hash join, so each call meets all options in memory."""


@pytest.mark.parametrize("filled", STATISTICS, indirect=True)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_plans_on_worker_connection_never_read_history(filled):
    def check(case):
        plan, name = case
        assert_bounded(filled, plan, name, "Seq Scan", "Bitmap Heap Scan", comparisons=COMPARISONS.get(name, 1))

    check_each(product(["custom", "generic"], sorted(CASES)), check)


def assert_bounded(connection, plan, name, *unwanted, comparisons=1):
    make_params, asked, indexes = CASES[name]
    asked *= comparisons
    found = list(nodes(explain(connection, name, make_params(connection), plan)))
    for node in found:
        assert node["Node Type"] not in unwanted or node["Relation Name"] in SMALL, node
        assert rows_read(node) <= 3 * asked, node
    used = {node.get("Index Name") for node in found}
    used |= {index for node in found for index in node.get("Conflict Arbiter Indexes", ())}
    assert indexes <= used


OF_APPLICATIONS = ("ENQUEUE_UNIQUE", "ENQUEUE_EACH_UNIQUE", "ENQUEUE_MANY_OR_REPLACE", "HOLDERS", "RETRY")
OF_OPERATORS = ("EDITED_JOBS", "MOVE", "SET_MAX_ATTEMPTS")
OF_WINDOWS = ("ENQUEUE_FOR_PERIOD", "REPLACE_FOR_PERIOD", "OPEN_WINDOWS")


@pytest.mark.parametrize("filled", STATISTICS, indirect=True)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_plans_on_application_connection_never_read_history(filled):
    """Unlike a worker's connection, this one lets the planner use a bitmap to fetch a few rows."""
    filled.execute("; ".join(f"SET {kind} = on" for kind in FREE))
    try:
        check_each(
            OF_APPLICATIONS + OF_OPERATORS + OF_WINDOWS, lambda name: assert_bounded(filled, "custom", name, "Seq Scan")
        )
    finally:
        filled.execute("; ".join(f"RESET {kind}" for kind in FREE))


@pytest.mark.parametrize("filled", ["analysed full"], indirect=True)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_cases_find_rows_to_read_or_change(filled):
    """A plan that reads few rows because there is nothing to do would prove nothing."""
    with helpers.transaction(filled):
        assert helpers.fire(filled, helpers.schedule_of(filled, 7)) is not None
        assert len(execute(filled, sql.schedules.FIRE, many_ticks(filled))) == SCHEDULES - 1  # 7 is fired above
        assert len(expiry.expire(filled, worker_id=1, error="", limit=BATCH)) == BATCH
        assert len(execute(filled, sql.sagas.COMPENSATE, compensated(filled))) == BATCH
        assert len(execute(filled, sql.stranded.REQUEUE, abandoned(filled))) == 20
        assert len(execute(filled, sql.steps.SUSPEND, suspended(filled))) == BATCH
        assert len(unique.holders(filled, "noop", keys(filled)["unique_keys"])) == BATCH
        assert len(unique.open_windows(filled, "noop", keys(filled)["unique_keys"])) == BATCH
        period_keys = [call["key"] for call in json.loads(calls_for_period(filled)["calls"])]
        assert len(helpers.enqueue_for_period(filled, *period_keys, task_name="noop")) == BATCH // 2 + 1
        assert len(helpers.replace_for_period(filled, *period_keys, task_name="noop")) == BATCH
        assert unique.prune_windows(filled, BATCH) == BATCH
        assert len(execute(filled, sql.logs.KEEP_LOGS, logs(filled))) == BATCH
        assert orphans.prune_orphans(filled, "search keys", NO_JOB, BATCH) == (BATCH, NO_JOB + BATCH)
        assert orphans.prune_orphans(filled, "logs", LAST_EXECUTION, BATCH) == (BATCH, LAST_EXECUTION + BATCH)
        assert schedules.prune_schedule_runs(filled, 3600.0, kept=100, limit=10) == SCHEDULES * 10
        assert schedules.remove_schedules(filled, [7], 0.0) == [7]
