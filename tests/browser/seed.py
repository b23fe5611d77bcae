"""Fill the tables with one night of a shop: the data of the browser tests and of the screenshots in the docs.

All rows are the same in every run, except that their times are relative to the current time.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests import helpers

from . import tasks

SHOP: Final = "example_project.shop.tasks"
SEARCH_KEYS: Final = (
    "INSERT INTO pgqueue_search_key (job_id, name, value) SELECT id, 'order_id', arguments->'args'->>0 "
    f"FROM pgqueue_job WHERE task_name = '{SHOP}.send_confirmation'"
)
LIBRARY: Final = "example_project.library.tasks"
NOW: Final = "statement_timestamp()"
CALLBACK: Final = (
    f"json_build_object('task_name', '{SHOP}.%s', 'queue_name', 'default', 'priority', 0, 'max_attempts', 5, "
    "'delay_seconds', 0, 'arguments', json_build_object('args', json_build_array(17), 'kwargs', json_build_object()))"
)

JOBS: Final = (
    "INSERT INTO pgqueue_job (task_name, queue_name, priority, arguments, state, attempt, max_attempts, run_after, "
    "enqueued_at, finished_at, result) SELECT %(task)s, %(queue)s, %(priority)s, {arguments}, %(state)s, %(attempt)s, "
    "%(max_attempts)s, {run_after}, {enqueued_at}, {finished_at}, %(result)s FROM generate_series(1, %(count)s) AS n "
    "ORDER BY n RETURNING id"
)
EXECUTIONS: Final = (
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, outcome, claimed_at, started_at, finished_at, "
    "lease_expires_at, exception_class, error, traceback) "
    "SELECT id, attempt, 1, %(outcome)s, finished_at - interval '2 s', finished_at - interval '2 s', finished_at, "
    "finished_at, %(exception)s, %(error)s, %(traceback)s FROM pgqueue_job WHERE id = ANY(%(ids)s)"
)
RUNNING: Final = (
    "WITH opened AS (INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, started_at, "
    "lease_expires_at) "
    f"SELECT id, attempt, %(worker)s, {NOW} - %(since)s::interval, {NOW} - %(since)s::interval, "
    f"{NOW} + interval '50 s' FROM pgqueue_job WHERE id = ANY(%(ids)s) RETURNING id, job_id, worker_id) "
    "UPDATE pgqueue_job AS job SET execution_id = opened.id, worker_id = opened.worker_id "
    "FROM opened WHERE job.id = opened.job_id"
)
WORKERS: Final = (
    "INSERT INTO pgqueue_worker (id, hostname, pid, version, release, queue_names, concurrency, started_at, "
    "last_heartbeat_at, supervisor_pid, resident_mib) "
    f"VALUES (1, 'web-1', 4711, '0.1.0', '2026.48.2', 'mail,webhooks', 4, {NOW} - interval '52 min', "
    f"{NOW} - interval '3 s', 470, 96), (2, 'web-2', 4712, '0.1.0', '2026.48.2', 'default,reports', 4, "
    f"{NOW} - interval '51 min', {NOW} - interval '4 s', 4701, 118), "
    f"(3, 'web-3', 977, '0.0.9', '2026.48.1', '', 4, {NOW} - interval '3 d', {NOW} - interval '2 h', 970, 151)"
)
HEARTBEAT: Final = (
    f"UPDATE pgqueue_worker SET last_heartbeat_at = {NOW} - (2 + id) * interval '1 s' WHERE id <= 2; "
    f"UPDATE pgqueue_execution SET lease_expires_at = {NOW} + interval '50 s' WHERE finished_at IS NULL"
)
PAUSES: Final = (
    "INSERT INTO pgqueue_pause (kind, name, paused_at, paused_by, reason) "
    f"VALUES ('queue', 'reports', {NOW} - interval '40 min', 'anna', 'The warehouse is being restored.')"
)
ACTS: Final = (
    "INSERT INTO pgqueue_audit (action, done_by, reason, began_at, ended_at, filter, job_count, total, outcome) "
    f"SELECT action, who, reason, {NOW} - ago::interval, {NOW} - ago::interval, filter::json, jobs, jobs, 'done' "
    "FROM (VALUES ('pause', 'anna', 'The warehouse is being restored.', '40 min', '{\"queue_name\": \"reports\"}', 0), "
    "('pause', 'ben', 'The SMTP server is overloaded.', '34 min', '{\"queue_name\": \"mail\"}', 0), "
    "('resume', 'ben', '', '27 min', '{\"queue_name\": \"mail\"}', 0), "
    "('retry', 'anna', 'The partner has fixed its hooks.', '9 min', '{\"queue_name\": \"webhooks\"}', 118)) "
    "AS act (action, who, reason, ago, filter, jobs)"
)
LIMITED: Final = "UPDATE pgqueue_job SET limit_key = %(limit_key)s, limit_order = %(order)s WHERE id = ANY(%(ids)s)"
LIMITS: Final = (
    f"INSERT INTO pgqueue_limit_state (limit_key, full_at) VALUES ('payments', {NOW} + interval '1 day')",
    (
        "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
        f"VALUES ('catalogue:supplier:9', {NOW} + interval '1 day', {NOW} + interval '1 day')"
    ),
    (
        "INSERT INTO pgqueue_pause (kind, name, paused_at, paused_by, reason) "
        f"VALUES ('limit', 'tenants:globex', {NOW} - interval '2 h', 'anna', 'They asked for a quiet evening.')"
    ),
    (
        "INSERT INTO pgqueue_limit_override (limit_key, rate, changed_at, changed_by, reason) "
        f"VALUES ('payments', '60/m', {NOW} - interval '1 h', 'ben', 'The provider has reduced our quota.')"
    ),
    (
        "INSERT INTO pgqueue_open_breaker (limit_key, opened_at, after_execution_id) "
        f"SELECT name, {NOW} - interval '4 min', 0 FROM unnest(ARRAY['tax', 'carriers:dhl', 'carriers:ups']) AS name"
    ),
    (
        "INSERT INTO pgqueue_pause (kind, name, paused_at, paused_until, paused_by, reason) "
        f"VALUES ('limit', 'carriers:ups', {NOW} - interval '1 min', {NOW} + interval '1 day', 'circuit breaker', "
        "'18 of 30 attempts failed in 60 s')"
    ),
)
BATCHES: Final = (
    "INSERT INTO pgqueue_batch (id, description, created_at, closed_at, failed_at, completed_at, succeeded_at, "
    "on_success, on_complete) "
    f"SELECT id, text, {NOW} - age * interval '1 min', CASE WHEN is_closed THEN {NOW} - age * interval '58 s' END, "
    f"CASE WHEN has_failed THEN {NOW} - age * interval '30 s' END, "
    f"CASE WHEN is_over THEN {NOW} - age * interval '20 s' END, "
    f"CASE WHEN is_over AND NOT has_failed THEN {NOW} - age * interval '20 s' END, "
    f"{CALLBACK % 'publish_index'}, {CALLBACK % 'report_import'} "
    "FROM (VALUES (1, 'Import of 2026-11-20', 2900, true, false, true), "
    "(2, 'Import of 2026-11-21', 1460, true, true, true), (3, 'Import of 2026-11-22', 12, true, true, false), "
    "(4, 'Thumbnails of the autumn catalogue', 8, true, false, false), "
    "(5, 'Mails to subscribers, filled by the editors', 200, false, false, false)) "
    "AS batch (id, text, age, is_closed, has_failed, is_over)"
)
NESTED: Final = (
    "INSERT INTO pgqueue_batch (id, parent_id, description, created_at, closed_at) "
    f"SELECT 5 + n, 3, 'part ' || n, {NOW} - interval '11 min', {NOW} - interval '11 min' "
    "FROM generate_series(1, 3) AS n"
)
WORKFLOWS: Final = (
    "INSERT INTO pgqueue_batch (id, description, created_at, closed_at, failed_at) "
    f"VALUES (9, 'Order 4711', {NOW} - interval '9 min', {NOW} - interval '9 min', {NOW} - interval '5 min'), "
    f"(10, 'Photos of album 12', {NOW} - interval '3 min', {NOW} - interval '3 min', NULL)"
)
NODE: Final = (
    "UPDATE pgqueue_job SET in_graph = true, batch_id = %(batch)s, state = %(state)s, "
    f"finished_at = CASE WHEN %(state)s IN ('succeeded', 'dead', 'cancelled') THEN {NOW} - interval '5 min' END "
    "WHERE id = ANY(%(ids)s)"
)
EDGES: Final = (
    "INSERT INTO pgqueue_dependency (job_id, needs_id, policy, has_cancelled) "
    "SELECT job, needs, %(policy)s, nullif(%(policy)s = 'cancel' AND (SELECT state FROM pgqueue_job WHERE id = job) = "
    "'cancelled', false) FROM unnest(%(jobs)s::bigint[]) AS job, unnest(%(needs)s::bigint[]) AS needs"
)
IN_BATCH: Final = "UPDATE pgqueue_job SET batch_id = %(batch)s WHERE id = ANY(%(ids)s)"
RESIZED: Final = (("succeeded", 31), ("running", 3), ("ready", 14))
STEPS: Final = (
    "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, tries, result, error, started_at, finished_at, "
    "wake_at, event_name, event_key) "
    f"SELECT %(job)s, name, place, kind, 1, tries, result::json, error, {NOW} - starts::interval, "
    f"{NOW} - ends::interval, {NOW} + wakes::interval, event, key "
    "FROM (VALUES (1, 'reserve', 'step', 1, '{\"items\": 3}', '', '50 min', '49 min', NULL, NULL, NULL), "
    "(2, 'charge', 'step', 3, '\"ch_4711\"', '', '49 min', '42 min', NULL, NULL, NULL), "
    "(3, 'cooling-off', 'sleep', 1, NULL, '', '42 min', NULL, '-22 min', NULL, NULL), "
    "(4, 'book parcel', 'step', 1, '\"parcel 12\"', '', '22 min', '21 min', NULL, NULL, NULL), "
    "(5, 'approved', 'event', 1, NULL, '', '21 min', NULL, '3 days', 'approved', '4711')) "
    "AS step (place, name, kind, tries, result, error, starts, ends, wakes, event, key)"
)
SUSPENSIONS: Final = (
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, outcome, error, claimed_at, started_at, finished_at, "
    f"lease_expires_at) SELECT %(job)s, 1, 2, 'suspended', reason, {NOW} - starts::interval, "
    f"{NOW} - starts::interval, {NOW} - ends::interval, {NOW} FROM (VALUES "
    "('50 min', '47 min', $$step 'charge' failed and is tried again: timed out$$), "
    "('44 min', '42 min', $$step 'cooling-off' sleeps$$), "
    "('22 min', '21 min', $$step 'approved' waits for the event approved$$)) "
    "AS execution (starts, ends, reason)"
)
SCHEDULES: Final = (
    "INSERT INTO pgqueue_schedule (name, origin, task_name, arguments, expression, next_run_at) "
    f"VALUES ('yesterday', 'admin', '{SHOP}.report_yesterday', '{{\"args\": [], \"kwargs\": {{}}}}', '30 2 * * *', "
    f"date_trunc('day', {NOW}) + interval '26.5 h')"
)
ROLLUP: Final = (
    "INSERT INTO pgqueue_rollup (span, starts_at, queue_name, task_name, exception_class, succeeded, retried, dead, "
    "wait_seconds, run_seconds, wait_buckets, wait_counts, run_buckets, run_counts) "
    f"SELECT 'part', date_trunc('minute', {NOW}) - n * interval '1 min', %(queue)s, %(task)s, %(exception)s, "
    "%(succeeded)s * k, %(retried)s * k, %(dead)s * k, 2.0 * k, 0.4 * k, ARRAY[%(wait)s, %(wait)s + 6], "
    "ARRAY[3 * k, k], ARRAY[%(run)s, %(run)s + 5], ARRAY[3 * k, k] "
    "FROM generate_series(%(first)s, %(last)s) AS n, LATERAL (SELECT 1 + (n * 7 + n / 3) %% 5 AS k) AS size"
)
YESTERDAY: Final = (
    "INSERT INTO pgqueue_rollup (span, starts_at, queue_name, task_name, exception_class, succeeded, retried, "
    "wait_seconds, run_seconds, wait_buckets, wait_counts, run_buckets, run_counts) "
    f"SELECT kind, date_trunc('hour', {NOW}) - n * interval '1 hour', queue, task, '', k * 600, k * 20, 900, 240, "
    "ARRAY[30, 36], ARRAY[k * 450, k * 150], ARRAY[29, 34], ARRAY[k * 450, k * 150] "
    f"FROM generate_series(20, 30) AS n, (VALUES ('hour_total', '', ''), ('hour', 'mail', '{SHOP}.send_confirmation')) "
    "AS row (kind, queue, task), LATERAL (SELECT 3 + n % 4 AS k) AS size"
)
REFUSED: Final = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/.venv/lib/python3.13/site-packages/django_pgqueue/worker/execution/attempt.py", line 120, '
    "in _call\n    return function(*args, **kwargs)\n"
    '  File "/srv/shop/shop/tasks.py", line 47, in deliver\n'
    "    webhooks.send(delivery.endpoint.url, delivery.body.encode(), secret=delivery.endpoint.secret)\n"
    '  File "/srv/shop/shop/webhooks.py", line 58, in send\n    raise Refused(f"{url} answered {status}")\n'
    "shop.webhooks.Refused: https://partner.example.com/hooks answered 410\n"
)
OVERLOADED: Final = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/shop/tasks.py", line 29, in send_confirmation\n    mail.send()\n'
    "smtplib.SMTPConnectError: (421, b'Too many connections')\n"
)


def arguments(first: str = "n") -> str:
    """Return the SQL of the arguments of a job: one integer."""
    return f"jsonb_build_object('args', jsonb_build_array({first}), 'kwargs', jsonb_build_object())"


def add_jobs(
    cursor: Any,
    task: str,
    queue: str,
    count: int,
    state: str = "ready",
    *,
    run_after: str = "",
    finished_at: str = "NULL",
    attempt: int = 0,
    call: str = "",
    **columns: Any,
) -> list[int]:
    """Insert jobs, and return their ids. Times are SQL, with `n` as the number of the job, from 1."""
    due = run_after or (f"{NOW} - n * interval '1 s'" if finished_at == "NULL" else f"{finished_at} - interval '4 s'")
    statement = JOBS.format(
        arguments=call or arguments(),
        run_after=due,
        finished_at=finished_at,
        enqueued_at=f"least({due} - interval '2 s', {NOW} - interval '1 s')",
    )
    given = {"priority": 0, "max_attempts": 10, "result": None, "attempt": attempt, "state": state, **columns}
    cursor.execute(statement, {"task": task, "queue": queue, "count": count, **given})
    return [job_id for [job_id] in cursor.fetchall()]


def add_executions(
    cursor: Any, ids: list[int], outcome: str, exception: str = "", error: str = "", traceback: str = ""
) -> None:
    """Insert the last execution of each of these finished jobs."""
    given = {"ids": ids, "outcome": outcome, "exception": exception, "error": error, "traceback": traceback}
    cursor.execute(EXECUTIONS, given)


def add_running(cursor: Any, ids: list[int], worker: int, since: str) -> None:
    """Insert the open execution of each of these running jobs."""
    cursor.execute(RUNNING, {"ids": ids, "worker": worker, "since": since})


def beat(connection: Any) -> None:
    """Extend the leases of the live workers, which otherwise end a minute after `fill()`."""
    with connection.cursor() as cursor:
        cursor.execute(HEARTBEAT)


def clear(connection: Any) -> None:
    """Empty the tables."""
    with connection.cursor() as cursor:
        cursor.execute(helpers.CLEAR)


def fill(connection: Any) -> None:
    """Empty the tables and insert the night of the shop."""
    clear(connection)
    with connection.cursor() as cursor:
        for statement in (WORKERS, PAUSES, ACTS, SCHEDULES):
            cursor.execute(statement)
        _add_finished(cursor)
        _add_dead(cursor)
        _add_waiting(cursor)
        _add_limited(cursor)
        _add_rollup(cursor)
        _add_batches(cursor)
        _add_workflows(cursor)
        _add_steps(cursor)
        cursor.execute(SEARCH_KEYS)
        cursor.execute("ANALYZE pgqueue_job, pgqueue_execution")


def _add_finished(cursor: Any) -> None:
    minutes = f"{NOW} - (241 - n) * interval '1 min'"
    mail: dict[str, Any] = {"finished_at": minutes, "attempt": 1, "result": json.dumps("ann@example.com")}
    add_executions(cursor, add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 240, "succeeded", **mail), "succeeded")
    paid: dict[str, Any] = {"finished_at": minutes, "attempt": 1, "result": "true"}
    add_executions(cursor, add_jobs(cursor, f"{SHOP}.record_payment", "default", 240, "succeeded", **paid), "succeeded")
    gone: dict[str, Any] = {"finished_at": f"{NOW} - n * interval '20 min'", "attempt": 1}
    ids = add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 3, "cancelled", **gone)
    add_executions(cursor, ids, "cancelled", error="the order is gone")


def _add_dead(cursor: Any) -> None:
    night = f"{NOW} - interval '3 h' + n * interval '20 s'"
    ids = add_jobs(cursor, f"{SHOP}.deliver", "webhooks", 180, "dead", finished_at=night, attempt=1, max_attempts=12)
    refused = "example_project.shop.webhooks.Refused", "https://partner.example.com/hooks answered 410", REFUSED
    add_executions(cursor, ids, "failed", *refused)
    late = f"{NOW} - interval '50 min' + n * interval '30 s'"
    ids = add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 40, "dead", finished_at=late, attempt=8, max_attempts=8)
    add_executions(cursor, ids, "failed", "smtplib.SMTPConnectError", "(421, b'Too many connections')", OVERLOADED)
    single: dict[str, Any] = {
        "finished_at": f"{NOW} - interval '25 min'",
        "attempt": 10,
        "call": arguments("'2026-02-30'::text"),
    }
    ids = add_jobs(cursor, f"{SHOP}.report_day", "default", 1, "dead", **single)
    words = "day is out of range for month"
    lines = f"Traceback (most recent call last):\n  ...\nValueError: {words}\n"
    add_executions(cursor, ids, "failed", "builtins.ValueError", words, lines)


def _add_waiting(cursor: Any) -> None:
    # The mail queue backs up; `reports` is paused; no worker serves `imports`.
    add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 2400, run_after=f"{NOW} - n * interval '300 ms'")
    add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 60, run_after=f"{NOW} + n * interval '30 s'", attempt=2)
    add_jobs(cursor, f"{SHOP}.deliver", "webhooks", 30, run_after=f"{NOW} + n * interval '1 min'", max_attempts=12)
    day = arguments("'2026-11-' || lpad(n::text, 2, '0')")
    add_jobs(cursor, f"{SHOP}.report_day", "reports", 12, run_after=f"{NOW} - n * interval '2 min'", call=day)
    add_jobs(cursor, f"{LIBRARY}.index_document", "imports", 7, run_after=f"{NOW} - n * interval '5 min'")
    busy: dict[str, Any] = {"attempt": 1, "state": "running"}
    add_running(cursor, add_jobs(cursor, f"{SHOP}.send_confirmation", "mail", 3, **busy), 1, "2 s")
    add_running(cursor, add_jobs(cursor, f"{SHOP}.deliver", "webhooks", 1, **busy), 1, "11 min")
    add_running(cursor, add_jobs(cursor, f"{SHOP}.record_payment", "default", 1, **busy), 2, "1 s")


def _add_limited(cursor: Any) -> None:
    # A dead job blocks the imports of supplier 7. The key of supplier 9 is held. The breakers of the taxes and of two
    # carriers are open: one carrier is paused, and jobs probe the others.
    def add(limit_key: str, count: int, task: str, order: int | None = None, **columns: Any) -> list[int]:
        ids = add_jobs(cursor, task, "default", count, **columns)
        cursor.execute(LIMITED, {"ids": ids, "limit_key": limit_key, "order": order})
        return ids

    def run(limit_key: str, count: int, task: str, since: str, order: int | None = None) -> None:
        ids = add(limit_key, count, task, order, attempt=1, state="running")
        add_running(cursor, ids, 2, since)
        cursor.execute(
            f"UPDATE pgqueue_execution SET limit_key = '{limit_key}', limit_weight = 1 WHERE job_id = ANY(%s)", [ids]
        )

    imports, blocks = tasks.import_file.name, 2
    died: dict[str, Any] = {"finished_at": f"{NOW} - interval '35 min'", "attempt": 3, "max_attempts": 3}
    ids = add("catalogue:supplier:7", 1, imports, blocks, state="dead", **died)
    add_executions(cursor, ids, "failed", "shop.catalogue.InvalidFile", "july.csv: line 1 has no column price")
    run("catalogue:supplier:8", 1, imports, "40 s", blocks)
    for supplier, count in ((7, 14), (8, 5), (9, 3), (70, 2)):
        add(f"catalogue:supplier:{supplier}", count, imports, blocks, run_after=f"{NOW} - (60 - n) * interval '30 s'")
    add("payments", 240, tasks.charge_card.name, run_after=f"{NOW} - n * interval '500 ms'")
    run("tenants:acme", 2, tasks.rebuild_report.name, "3 min")
    for tenant, count in (("acme", 31), ("globex", 12), ("initech", 1)):
        add(f"tenants:{tenant}", count, tasks.rebuild_report.name, run_after=f"{NOW} - n * interval '40 s'")
    run("carriers:dhl", 1, tasks.book_parcel.name, "20 s")
    for carrier, count in (("dhl", 25), ("ups", 40), ("dpd", 2)):
        add(f"carriers:{carrier}", count, tasks.book_parcel.name, run_after=f"{NOW} - n * interval '20 s'")
    run("tax", 1, tasks.report_tax.name, "5 s")
    add("tax", 60, tasks.report_tax.name, run_after=f"{NOW} - n * interval '5 s'")
    for statement in LIMITS:
        cursor.execute(statement)


def _add_batches(cursor: Any) -> None:
    # The import of yesterday has failed, and that of today has failed jobs while others run.
    def add(batch: int, task: str, count: int, state: str = "ready", **columns: Any) -> list[int]:
        ids = add_jobs(cursor, f"{LIBRARY}.{task}", "imports", count, state, **columns)
        cursor.execute(IN_BATCH, {"ids": ids, "batch": batch})
        return ids

    cursor.execute(BATCHES)
    cursor.execute(NESTED)
    done: dict[str, Any] = {"attempt": 1, "finished_at": f"{NOW} - n * interval '2 s'", "state": "succeeded"}
    died: dict[str, Any] = {"attempt": 10, "finished_at": f"{NOW} - n * interval '40 s'", "state": "dead"}
    for batch, count in ((1, 320), (2, 296), (3, 60), (4, 75), (6, 40), (7, 31)):
        add(batch, "index_document", count, **done)
    for batch, count in ((2, 4), (3, 2), (7, 1)):
        ids = add(batch, "index_document", count, **died)
        add_executions(cursor, ids, "failed", "shop.catalogue.InvalidFile", "line 1 has no column price")
    for batch, count in ((3, 14), (4, 25), (6, 10), (7, 12), (8, 50)):
        add(batch, "index_document", count)
    add_running(cursor, add(4, "index_document", 3, "running", attempt=1), 2, "4 s")
    add(2, "index_document", 2, **{**died, "state": "cancelled"})


def _add_workflows(cursor: Any) -> None:
    # Of an order, the invoice has failed. Of an album, some photos are resized.
    def add(batch: int, task: str, state: str, needs: list[int], count: int = 1, policy: str = "cancel") -> list[int]:
        ids = add_jobs(cursor, f"{SHOP}.{task}", "default", count, attempt=int(state not in ("ready", "waiting")))
        cursor.execute(NODE, {"ids": ids, "batch": batch, "state": state})
        cursor.execute(EDGES, {"jobs": ids, "needs": needs, "policy": policy})
        return ids

    cursor.execute(WORKFLOWS)
    stock = add(9, "reserve_stock", "succeeded", [])
    card = add(9, "charge_card", "succeeded", [])
    pdf = add(9, "print_invoice", "dead", card)
    add_executions(cursor, pdf, "failed", "shop.invoices.NoAddress", "the customer has no address")
    label = add(9, "print_label", "succeeded", stock)
    parcel = add(9, "pack_parcel", "running", [*stock, *label])
    add_running(cursor, parcel, 2, "40 s")
    letter = add(9, "send_invoice", "cancelled", [*pdf])
    ship = add(9, "hand_over_to_the_carrier", "waiting", [*parcel, *card])
    add(9, "file_invoice", "waiting", pdf, policy="block")
    add(9, "report_order", "waiting", [*ship, *letter], policy="ignore")
    photos = add(10, "list_photos", "succeeded", [])
    done, now, later = (add(10, "resize_photo", state, photos, count) for state, count in RESIZED)
    add_running(cursor, now, 2, "2 s")
    add(10, "publish_album", "waiting", [*done, *now, *later])


def _add_steps(cursor: Any) -> None:
    # An order that was charged at the third try, has slept, and waits for its approval.
    later: dict[str, Any] = {"run_after": f"{NOW} + interval '3 days'", "attempt": 0}
    [job] = add_jobs(cursor, f"{SHOP}.fulfil_order", "default", 1, **later)
    cursor.execute(STEPS, {"job": job})
    cursor.execute(SUSPENSIONS, {"job": job})


def _add_rollup(cursor: Any) -> None:
    def add(task: str, queue: str, first: int, last: int, **counts: int) -> None:
        given = {"succeeded": 0, "retried": 0, "dead": 0, "wait": 28, "run": 30, "exception": "", **counts}
        cursor.execute(ROLLUP, {"task": f"{SHOP}.{task}", "queue": queue, "first": first, "last": last, **given})

    add("send_confirmation", "mail", 60, 119, succeeded=12)
    add("send_confirmation", "mail", 1, 59, succeeded=5, wait=44, run=42)
    add("record_payment", "default", 1, 119, succeeded=9)
    add("deliver", "webhooks", 1, 119, succeeded=3, run=36)
    add("record_payment", "default", 18, 18, succeeded=400)
    cursor.execute(YESTERDAY)
    failed: dict[str, Any] = {"exception": "smtplib.SMTPConnectError", "retried": 3, "dead": 1}
    add("send_confirmation", "mail", 30, 50, **failed)
