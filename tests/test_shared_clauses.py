"""Clauses that several statements share are the same in all of them.

SQL is static text, so statements repeat clauses, and an edit can miss one of them. For each clause, a part of it (the
`sign`) finds every place that has the clause or a variant. A variant has the sign, but not the text. White space and
the names of tables before columns do not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from tests.rules import for_each
from tests.statements import STATEMENTS

NOW = "statement_timestamp() + %(time_shift)s::interval"
CLAIMED_JOB = (
    "WHERE id = due.id RETURNING id, execution_id, task_name, queue_name, priority, run_after, "
    "CASE WHEN pg_column_size(arguments) > 2000 AND (pg_column_size(arguments) > %(most_bytes)s "
    "OR octet_length(arguments::text) > %(most_bytes)s) THEN '' ELSE arguments::text END, "
    "attempt, max_attempts, crashes, isolated,"
)
NAMES_OF_TABLES = re.compile(r"\b(locked|owner|job|execution|pgqueue_job|finished|page|given|old|schedule)\.(?=\w)")


class Clause(NamedTuple):
    """A text, the part of it that finds variants, and the statements that have it, each as often as it has it."""

    text: str
    sign: str
    statements: str


UNIQUE = "unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))"
COLUMNS = "task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at"
FENCED = "SUCCEED SUCCEED_AND_DISCARD FAIL RELEASE END_CANCELLED NOTE_PROGRESS RESCUE SUSPEND"
INSERTS = "ENQUEUE ENQUEUE_MANY ENQUEUE_UNIQUE ENQUEUE_OR_REPLACE ENQUEUE_MANY_UNIQUE ENQUEUE_MANY_OR_REPLACE"
CLAUSES = {
    "uniqueness predicate": Clause(
        UNIQUE,
        "unique_key IS NOT NULL",
        "ENQUEUE_UNIQUE ENQUEUE_OR_REPLACE ENQUEUE_OR_REPLACE ENQUEUE_MANY_UNIQUE ENQUEUE_EACH_UNIQUE "
        "ENQUEUE_MANY_OR_REPLACE ENQUEUE_MANY_OR_REPLACE HOLDERS RETRY",
    ),
    "uniqueness predicate in an index": Clause(
        f"ON CONFLICT (task_name, unique_key) WHERE {UNIQUE} DO",
        "ON CONFLICT (task_name, unique_key) WHERE",
        "ENQUEUE_UNIQUE ENQUEUE_OR_REPLACE ENQUEUE_MANY_UNIQUE ENQUEUE_EACH_UNIQUE ENQUEUE_MANY_OR_REPLACE",
    ),
    "replaced call": Clause(
        "DO UPDATE SET arguments = excluded.arguments, run_after = excluded.run_after, "
        "expires_at = excluded.expires_at, headers = excluded.headers, priority = excluded.priority, "
        "max_attempts = excluded.max_attempts, limit_key = excluded.limit_key, limit_weight = excluded.limit_weight, "
        "limit_order = excluded.limit_order, batch_id = excluded.batch_id, attempt = 0, crashes = 0, "
        "unknown_since = NULL WHERE state = 'ready'",
        "arguments = excluded.arguments",
        "ENQUEUE_OR_REPLACE ENQUEUE_MANY_OR_REPLACE",
    ),
    "running job keeps its call": Clause(
        f"AND {UNIQUE} ) IS DISTINCT FROM 'running'",
        "IS DISTINCT FROM 'running'",
        "ENQUEUE_OR_REPLACE ENQUEUE_MANY_OR_REPLACE",
    ),
    "order of keys": Clause(
        """ORDER BY call ->> 'key' COLLATE "C", place""",
        """'key' COLLATE "C\"""",
        "ENQUEUE_MANY_UNIQUE ENQUEUE_MANY_OR_REPLACE",
    ),
    "order of keys of several tasks": Clause(
        """ORDER BY chosen.task_name COLLATE "C", key COLLATE "C", place""",
        "ORDER BY chosen.task_name",
        "ENQUEUE_EACH_UNIQUE",
    ),
    "new uniqueness window": Clause(
        "ON CONFLICT (task_name, unique_key) DO UPDATE SET job_id = excluded.job_id, ends_at = excluded.ends_at "
        f"WHERE pgqueue_uniqueness_window.ends_at <= {NOW} RETURNING job_id",
        "SET job_id = excluded.job_id",
        "ENQUEUE_FOR_PERIOD",
    ),
    "limits of many calls": Clause(
        "json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint) )",
        "%(limits)s",
        "ENQUEUE_MANY ENQUEUE_EACH ENQUEUE_MANY_UNIQUE ENQUEUE_EACH_UNIQUE ENQUEUE_MANY_OR_REPLACE ENQUEUE_FOR_PERIOD "
        "REPLACE_FOR_PERIOD ADD_NODES",
    ),
    "columns of a new job": Clause(
        COLUMNS,
        "enqueued_at, run_after, headers",
        f"{INSERTS} ENQUEUE_EACH ENQUEUE_EACH_UNIQUE ENQUEUE_FOR_PERIOD ADD_NODES",
    ),
    "due time of a new job": Clause(
        f"coalesce( %(run_after)s::timestamptz, {NOW} + make_interval(secs => %(delay_seconds)s::float8) )",
        "%(run_after)s",
        f"{INSERTS} ENQUEUE_FOR_PERIOD REPLACE_FOR_PERIOD",
    ),
    "expiry of a new job": Clause(
        f"coalesce( %(expires_at)s::timestamptz, {NOW} + make_interval(secs => %(expires_seconds)s::float8) )",
        "%(expires_at)s",
        f"{INSERTS} ENQUEUE_FOR_PERIOD REPLACE_FOR_PERIOD",
    ),
    "times of a job with options of its own": Clause(
        f"coalesce( chosen.run_after, {NOW} + make_interval(secs => chosen.delay_seconds) ), chosen.headers::json, "
        f"coalesce( chosen.expires_at, {NOW} + make_interval(secs => chosen.expires_seconds) )",
        "chosen.run_after",
        "ENQUEUE_EACH ENQUEUE_EACH_UNIQUE ADD_NODES",
    ),
    "ready predicate": Clause(
        "state = 'ready' AND limit_key IS NULL",
        "limit_key IS NULL",
        "CLAIM CLAIM_AHEAD NEXT_IN_LINE LANES LANES LANES LANES READY_CALLS "
        "BULK_PAGE_READY BULK_PAGE_READY BULK_PAGE_READY",
    ),
    "order of the ready index": Clause(
        "priority DESC, run_after, id LIMIT",
        "priority DESC, run_after",
        "LANES LANES LANES BULK_PAGE_READY BULK_PAGE_READY BULK_PAGE_READY",
    ),
    "ready predicate with a limit": Clause(
        "state = 'ready' AND limit_key IS NOT NULL",
        "limit_key IS NOT",
        "KEYS KEYS KEYS KEYS CLAIM_KEYS NEXT_OF_KEY "
        "LIMITED_LANES LIMITED_LANES LIMITED_LANES CLAIM_CHUNK CLAIM_CHUNK "
        "READY_LIMITED_CALLS BULK_PAGE_READY_LIMITED BULK_PAGE_READY_LIMITED BULK_PAGE_READY_LIMITED "
        "BULK_LIMIT_RANGES",
    ),
    "order of the index of ready jobs with a limit": Clause(
        "priority DESC, limit_key, run_after, id LIMIT",
        "priority DESC, limit_key",
        "KEYS KEYS KEYS LIMITED_LANES LIMITED_LANES LIMITED_LANES "
        "BULK_PAGE_READY_LIMITED BULK_PAGE_READY_LIMITED BULK_PAGE_READY_LIMITED",
    ),
    "due jobs of a lane": Clause(
        "queue_name = lane.queue_name AND priority = lane.priority "
        f"AND run_after <= {NOW} AND (run_after, id) > (lane.after_at, lane.after_id) "
        "AND id <> ALL (%(skipped_ids)s::bigint[]) AND task_name <> ALL (%(paused_task_names)s::varchar[]) "
        "ORDER BY run_after, id LIMIT",
        "(lane.after_at, lane.after_id)",
        "CLAIM CLAIM_AHEAD NEXT_IN_LINE",
    ),
    "claimed job": Clause(
        f"{CLAIMED_JOB} CASE WHEN isfinite(unknown_since) THEN date_part('epoch', {NOW} - unknown_since) END, "
        f"(SELECT floor(1000 * date_part('epoch', {NOW}))::bigint), "
        "CASE WHEN pg_column_size(headers) > 16384 OR octet_length(headers::text) > 16384 THEN '' "
        "ELSE headers::text END, "
        "CASE WHEN isfinite(expires_at) "
        "THEN date_part('epoch', expires_at - statement_timestamp() - %(time_shift)s::interval) END",
        f"isfinite(unknown_since) THEN date_part('epoch', {NOW}",
        "CLAIM CLAIM_AHEAD CLAIM_ONE CLAIM_CHUNK",
    ),
    "first columns of a claimed job": Clause(
        CLAIMED_JOB, "ELSE arguments::text END", "CLAIM CLAIM_AHEAD CLAIM_ONE CLAIM_KEYS CLAIM_CHUNK"
    ),
    "due jobs of a chunk key": Clause(
        "WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name = %(queue_name)s "
        "AND priority = %(priority)s AND limit_key = %(chunk_key)s "
        f"AND run_after <= {NOW} AND (run_after, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint) "
        "AND id <> ALL (%(skipped_ids)s::bigint[]) AND task_name <> ALL (%(paused_task_names)s::varchar[]) "
        "ORDER BY run_after, id LIMIT",
        "limit_key = %(chunk_key)s",
        "CLAIM_CHUNK CLAIM_CHUNK",
    ),
    "next job of an ordered key": Clause(
        "AND limit_order IS NOT NULL AND (state IN ('ready', 'running') OR state = 'dead' AND limit_order = 2) "
        "ORDER BY id LIMIT",
        "limit_order IS NOT NULL",
        "CLAIM_KEYS NEXT_OF_KEY",
    ),
    "key of an execution": Clause(
        "id = id AND floor(1000 * date_part('epoch', claimed_at)) = claimed_ms",
        "= claimed_ms",
        f"{FENCED} EXTEND_EACH SETTLE REMOVE_ORPHANS KEEP_LOGS STORED_RESULTS",
    ),
    "fence": Clause("= claimed_ms AND outcome IS NULL", "= claimed_ms AND outcome", f"{FENCED} EXTEND_EACH"),
    "lock of execution and job": Clause(
        "FOR NO KEY UPDATE OF execution, job SKIP LOCKED ) AS locked", "UPDATE OF execution", FENCED
    ),
    "end of a key with the first claim": Clause(
        "unique_key = CASE WHEN unique_ready_only IS NULL THEN unique_key END",
        "WHEN unique_ready_only IS NULL",
        "FAIL RELEASE REQUEUE RESCUE SUSPEND",
    ),
    "no open execution": Clause(
        "(SELECT true FROM pgqueue_execution WHERE id = execution_id AND outcome IS NULL) IS NULL",
        "(SELECT true FROM pgqueue_execution WHERE id = execution_id",
        "ABANDONED REQUEUE",
    ),
    "the job that runs in an execution": Clause(
        "AND outcome IS NULL AND execution_id = id", "IS NULL AND execution_id = id", FENCED
    ),
    "old jobs without a locked execution": Clause(
        "locked AS MATERIALIZED ( SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) "
        "ORDER BY id FOR UPDATE SKIP LOCKED ), "
        "busy AS MATERIALIZED ( SELECT job_id FROM pgqueue_execution "
        "WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM locked) "
        "UNION ALL SELECT job_id FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM old)) "
        "AND compensation IS NOT NULL )",
        "ORDER BY id FOR UPDATE SKIP LOCKED ), busy",
        "LOCK_FINISHED DELETE",
    ),
    "finished jobs as they were seen": Clause(
        "WITH seen AS MATERIALIZED ( SELECT id, instant::timestamptz AS finished_at "
        "FROM unnest(%(job_ids)s::bigint[], %(seen_instants)s::text[]) AS given (id, instant) ), "
        "old AS MATERIALIZED ( SELECT id FROM pgqueue_job AS job WHERE id = ANY (%(job_ids)s::bigint[]) "
        "AND ((id, finished_at) IN (SELECT id, finished_at FROM seen)) IS true",
        "FROM seen)) IS true",
        "ERASE",
    ),
    "kept nodes of workflows": Clause(
        "( in_graph IS NULL OR ( SELECT true FROM pgqueue_job AS other WHERE other.batch_id = batch_id "
        "AND other.state = ANY ( CASE state WHEN 'succeeded' "
        "THEN '{waiting,ready,running,dead,cancelled}'::varchar[] "
        "WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[] "
        "ELSE '{waiting,ready,running}'::varchar[] END ) "
        "LIMIT 1 ) IS NULL )",
        "( in_graph IS NULL",
        "LOCK_FINISHED DELETE",
    ),
    "states of a workflow in which a job is needed": Clause(
        "other.batch_id = batch_id AND other.state = ANY ( CASE state WHEN 'succeeded' "
        "THEN '{waiting,ready,running,dead,cancelled}'::varchar[] "
        "WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[] "
        "ELSE '{waiting,ready,running}'::varchar[] END ) LIMIT 1 )",
        "running,dead,cancelled}'",
        "LOCK_FINISHED DELETE NEEDS",
    ),
    "dead job that others wait behind": Clause(
        "AND (state <> 'dead' OR limit_order IS DISTINCT FROM 2) AND ( state = 'succeeded' OR ( SELECT true "
        "FROM pgqueue_step AS undone WHERE undone.compensation_id = id "
        "AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1) "
        "LIMIT 1 ) IS NULL )",
        "limit_order IS DISTINCT FROM",
        "LOCK_FINISHED",
    ),
    "compensation before which others wait": Clause(
        "( SELECT true FROM pgqueue_step AS undone WHERE undone.compensation_id = id "
        "AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1) "
        "LIMIT 1 )",
        "AS undone",
        "LOCK_FINISHED NEEDS",
    ),
    "dependency that has not ended": Clause(
        "WHEN 'waiting' THEN true WHEN 'ready' THEN true WHEN 'running' THEN true WHEN 'dead' THEN policy = 'block' "
        "WHEN 'cancelled' THEN policy = 'block' ELSE false END",
        "policy = 'block' WHEN 'cancelled'",
        "FIND_DEPENDENTS FIND_MISSED ADVANCE",
    ),
    "dependency that has failed": Clause(
        "WHEN 'dead' THEN policy = 'cancel' WHEN 'cancelled' THEN policy = 'cancel' "
        "WHEN 'gone' THEN policy <> 'ignore' ELSE false END",
        "policy = 'cancel' WHEN 'cancelled'",
        "FIND_DEPENDENTS FIND_MISSED ADVANCE ADVANCE",
    ),
    "cancelled by retried jobs": Clause(
        "WITH RECURSIVE restored AS ( SELECT id FROM unnest(%(job_ids)s::bigint[]) AS retried (id) UNION "
        "SELECT edge.job_id FROM restored CROSS JOIN LATERAL ( "
        "SELECT job_id FROM pgqueue_dependency WHERE needs_id BETWEEN restored.id AND restored.id AND has_cancelled "
        "ORDER BY needs_id, job_id ) AS edge "
        "WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'cancelled' )",
        "RECURSIVE restored",
        "RESTORABLE RESTORE",
    ),
    "ends of batches": Clause(
        "coalesce( ( SELECT true FROM pgqueue_job WHERE batch_id = batch.id "
        "AND state IN ('waiting', 'ready', 'running') LIMIT 1 ), "
        "( SELECT true FROM (SELECT completed_at FROM pgqueue_batch WHERE parent_id = batch.id OFFSET 0) AS nested "
        "WHERE completed_at IS NULL LIMIT 1 ), false ) AS has_unfinished, "
        "coalesce( (SELECT true FROM pgqueue_job WHERE batch_id = batch.id "
        "AND state IN ('dead', 'cancelled') LIMIT 1), "
        "( SELECT true FROM ( SELECT completed_at, succeeded_at FROM pgqueue_batch WHERE parent_id = batch.id "
        "OFFSET 0 ) AS nested WHERE completed_at IS NOT NULL AND succeeded_at IS NULL LIMIT 1 ), "
        "( SELECT true FROM pgqueue_batch_removal WHERE batch_id = batch.id AND state IN ('dead', 'cancelled') "
        "LIMIT 1 ), false ) AS has_failed OFFSET 0",
        "AS has_unfinished",
        "BATCHES_TO_END END_BATCHES",
    ),
    "log lines of finished jobs": Clause(
        "execution_id = ANY (ARRAY (SELECT id FROM locked)) "
        "AND (SELECT job_id FROM pgqueue_execution WHERE id = log.execution_id) = ANY (ARRAY (SELECT id FROM free)) )",
        "log.execution_id",
        "ERASE DELETE",
    ),
    "late job": Clause(f"expires_at <= {NOW}", "expires_at <=", "EXPIRE EXPIRE_JOBS LATE_JOBS"),
    "record of an expiry": Clause(
        "SELECT id, attempt, %(worker_id)s, 'cancelled', " + f"{NOW}, " * 3 + "%(error)s FROM late",
        "%(worker_id)s, 'cancelled'",
        "EXPIRE EXPIRE_JOBS",
    ),
    "what an operator has seen": Clause(
        "CASE WHEN seen.state <> '' AND ( state <> seen.state "
        "OR finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz ) THEN 'changed' ELSE state END",
        "finished_at IS DISTINCT FROM",
        "CANCEL RETRY DELETE",
    ),
    "threshold of a circuit breaker": Clause(
        "counted.ended >= attempts AND counted.failed >= share * counted.ended",
        "counted.failed >=",
        "FAILING_KEYS OPEN_BREAKERS",
    ),
    "window of a circuit breaker": Clause(
        "SELECT coalesce(sum(succeeded + failed), 0) AS ended, coalesce(sum(failed), 0) AS failed "
        "FROM pgqueue_breaker_count WHERE limit_key = limit_key AND ended_at > statement_timestamp() + "
        "%(time_shift)s::interval - make_interval(secs => window_seconds)",
        "sum(succeeded + failed)",
        "FAILING_KEYS OPEN_BREAKERS",
    ),
    "probes of a circuit breaker": Clause(
        "probe_id > CASE WHEN after_execution_id <= pg_sequence_last_value('pgqueue_execution_id_seq') "
        "THEN after_execution_id ELSE 0 END",
        "probe_id >",
        "OPEN_BREAKERS CLOSE_BREAKERS",
    ),
    "next tick as SCHEDULES returns it": Clause(
        "least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC')",
        "greatest(next_run_at",
        "SCHEDULES NOTE_PROBLEM PLAN_SCHEDULE",
    ),
}


def plain(text: str) -> str:
    """Return a statement or clause on one line, without the names of tables before columns."""
    return NAMES_OF_TABLES.sub("", " ".join(text.split()))


@for_each(CLAUSES.values())
def test_clause_is_the_same_in_all_its_statements(clause):
    assert clause.text.count(clause.sign) == 1
    found = {name: plain(text).count(clause.text) for name, text in STATEMENTS.items()}
    signs = {name: plain(text).count(clause.sign) for name, text in STATEMENTS.items()}
    assert found == signs, "a statement has a variant of the clause"
    assert +Counter(found) == Counter(clause.statements.split())


@for_each(STATEMENTS)
def test_clock_is_shifted_wherever_it_is_read(name):
    text = plain(STATEMENTS[name]).replace("clock_timestamp() AS clock (at)", "")
    text = text.replace("clock.at", "statement_timestamp()").replace("clock_timestamp", "statement_timestamp")
    assert text.count("statement_timestamp()") == len(
        re.findall(r"statement_timestamp\(\) \+ %\(time_shift\)s|- statement_timestamp\(\) - %\(time_shift\)s", text)
    )


def test_archived_jobs_have_the_same_document_in_table_and_file():
    acts = r"FROM pgqueue_audit_job AS audited CROSS JOIN LATERAL .* AS act WHERE job_id = id \) \)"
    document = re.compile(rf"json_build_object\( 'id', id, 'task_name'.* {acts}")
    [table], [file] = (document.findall(plain(STATEMENTS[name])) for name in ("ARCHIVE", "READ_FOR_ARCHIVE"))
    assert table == file
