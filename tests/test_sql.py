"""The statements as text, and the plans that PostgreSQL makes of them.

Text: each statement is one plain literal that begins with its name, does not read the time of the transaction, and gets
exactly its named parameters from `lifecycle`.

Plans: they must be good in every state of the statistics. The statements for claims, completions, heartbeats and
rescues are explained with 50,000 ready and 10,000 running jobs in four states of the statistics: never analysed;
analysed idle, while the tables were empty; analysed at rest, with a long history but no ready or running job; analysed
full. Each is explained with a custom and a generic plan, on connections like those of a worker. No plan may loop over
two CTEs, scan a whole table of ours, or read more than three times the rows that were asked for.
"""

import ast
import inspect
import re
import uuid
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.db.fields import FIRST_INSTANT
from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.ground import erasure_grants, error_messages
from django_pgqueue.ground.job_log import LogBuffer
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import (
    audit,
    batches,
    bulk_selection,
    chunks,
    claims,
    completions,
    enqueueing,
    events,
    expiry,
    graphs,
    history,
    installations,
    leases,
    limit_overrides,
    limits,
    logs,
    operator,
    orphans,
    pauses,
    pruning,
    ranges,
    remote_tokens,
    rescues,
    rollups,
    sagas,
    schedules,
    search_keys,
    stored_calls,
    stranded,
    ticks,
    unique,
    worker_requests,
    workers,
)
from django_pgqueue.lifecycle import breakers as lifecycle_breakers
from django_pgqueue.lifecycle import bulk_acts as lifecycle_bulk_acts
from django_pgqueue.lifecycle import ends as lifecycle_ends
from django_pgqueue.lifecycle import steps as lifecycle_steps
from django_pgqueue.lifecycle.claims import AHEAD_BYTES
from django_pgqueue.lifecycle.enqueueing import NewJob, Uniqueness
from django_pgqueue.lifecycle.logs import KeptLog
from django_pgqueue.lifecycle.pruning import EVER, needs_of
from django_pgqueue.lifecycle.types import EPOCH, Cancelled, Cursor, ExecutionKey, Lane, Noted, Released
from django_pgqueue.options.task_options import UNSET
from django_pgqueue.sql import clauses
from django_pgqueue.states import Pausable, RequestKind, Seen, State, StepKind
from tests import helpers
from tests.rules import check_each, for_each
from tests.statements import MODULES, STATEMENTS, replace_execute

PARAMETER = re.compile(r"%\((\w+)\)s")


# ------------------------------------------------------------------ text


def constants_of(module):
    """Return the name of each constant of a module, with the nodes of its value."""
    tree = ast.parse(Path(inspect.getfile(module)).read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
    rest = [node for node in tree.body if not isinstance(node, ast.AnnAssign | ast.ImportFrom)]
    assert len(rest) == 1  # the docstring
    return [(ast.unparse(node.target), list(ast.walk(node.value))) for node in assigned]


SQL_MODULES = [clauses, error_messages, erasure_grants, *dict.fromkeys(MODULES.values())]


@for_each(SQL_MODULES)
def test_sql_module_has_only_plain_literals(module):
    """A literal can be joined with clauses: other constants of the module, of `clauses` or of a module of `ground`."""
    kinds = {type(node) for _, nodes in constants_of(module) for node in nodes}
    assert kinds <= {ast.Constant, ast.BinOp, ast.Add, ast.Name, ast.Load}


def test_clauses_are_all_in_statements():
    constants = [constant for module in SQL_MODULES for constant in constants_of(module)]
    used = {node.id for _, nodes in constants for node in nodes if isinstance(node, ast.Name)}
    assert used == {name for name, _ in constants} - STATEMENTS.keys()


@for_each(STATEMENTS)
def test_statement_begins_with_its_name(name):
    assert STATEMENTS[name].startswith(f"/* pgqueue:{name.lower()} */\n")


@for_each(STATEMENTS)
def test_statement_never_reads_transaction_time(name):
    assert not re.search(r"\b(now|transaction_timestamp|current_timestamp)\b", STATEMENTS[name], re.I)


@for_each(STATEMENTS)
def test_only_claims_that_count_read_the_clock_and_once(name):
    """Their time must not be earlier than the end of an execution that their count has seen to have ended."""
    assert STATEMENTS[name].count("clock_timestamp()") == (name == "CLAIM_KEYS")


@for_each(STATEMENTS)
def test_clock_is_shifted_wherever_it_is_read(name):
    text = " ".join(STATEMENTS[name].split()).replace("clock_timestamp() AS clock (at)", "")
    text = text.replace("clock.at", "statement_timestamp()").replace("clock_timestamp", "statement_timestamp")
    assert text.count("statement_timestamp()") == len(
        re.findall(r"statement_timestamp\(\) \+ %\(time_shift\)s|- statement_timestamp\(\) - %\(time_shift\)s", text)
    )


@for_each(STATEMENTS)
def test_statement_has_only_named_parameters(name):
    assert "%" not in PARAMETER.sub("", STATEMENTS[name])


@for_each(STATEMENTS)
def test_statement_has_no_semicolon(name):
    assert ";" not in STATEMENTS[name]


@for_each(STATEMENTS)
def test_statement_names_its_columns(name):
    """The schema of a later release has columns that this code does not know. `cte.*` repeats the columns of a CTE."""
    text = STATEMENTS[name]
    assert not re.search(r"(?:SELECT|RETURNING|,)\s+\*", text, re.I)
    assert set(re.findall(r"(\w+)\.\*", text)) <= set(re.findall(r"(\w+) AS (?:MATERIALIZED )?\(", text))
    assert len(re.findall(r"INSERT INTO pgqueue_\w+\s*\(", text)) == text.upper().count("INSERT INTO")


@for_each([name for name, text in STATEMENTS.items() if "WHEN mine.cancelled THEN 'cancelled'" in text])
def test_statement_that_ends_an_attempt_clears_key_of_first_claim(name):
    """Otherwise a job that becomes ready again could violate the unique index, because a newer job has its key."""
    assert "unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END" in STATEMENTS[name]


@for_each([name for name in STATEMENTS if "FOR NO KEY UPDATE" in STATEMENTS[name] and name != "REPLACE_FOR_PERIOD"])
def test_statement_with_row_locks_skips_locked_rows(name):
    """REPLACE_FOR_PERIOD must wait, as an enqueue that replaces a job does, and locks the jobs in order."""
    text = STATEMENTS[name]
    assert len(re.findall(r"FOR (NO KEY )?UPDATE", text)) == text.count("SKIP LOCKED")


@pytest.mark.parametrize("name", [name for name in STATEMENTS if "advisory" in STATEMENTS[name]])
def test_statement_that_locks_limit_keys_reads_no_state_of_them(name):
    """Its snapshot is older than the lock, so it would not see what the previous holder has just committed."""
    assert not {"pgqueue_execution", "pgqueue_limit_state"} & set(re.findall(r"pgqueue_\w+", STATEMENTS[name]))


def test_lifecycle_passes_each_statement_its_parameters(engine, job_in, monkeypatch):
    given: dict[str, set[str]] = {}
    original = statements.execute

    def execute(connection, statement, params):
        name = statement[statement.index("pgqueue:") + 8 : statement.index(" */")].upper()
        given.setdefault(name, set()).update(params, {"time_shift"})
        return original(connection, statement, params)

    replace_execute(monkeypatch, execute)
    call_everything(engine, job_in)
    assert set(given) == set(STATEMENTS)
    for name, params in given.items():
        assert params - {"time_shift"} == set(PARAMETER.findall(STATEMENTS[name])) - {"time_shift"}


def call_fallbacks(engine):
    """Run the statements that prune and expire use after a single row made them fail."""
    helpers.make_job(engine)
    lost = helpers.claim_one(engine)
    engine.execute("DELETE FROM pgqueue_execution WHERE id = %s", [lost.execution_id])
    stranded.requeue(engine, lambda held: 0.0, worker_id=1, error="")
    [late] = helpers.make_jobs(engine, expires_seconds=-1.0)
    old = "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) VALUES (%s, '{}', 'dead', '2001-01-01')"
    engine.execute(old, [helpers.NOOP])
    with helpers.users_trigger(engine, "true", event="UPDATE OR DELETE"):
        expiry.expire(engine, worker_id=1, error="")
        for task_name in (None, helpers.NOOP):
            pruning.prune(engine, State.DEAD, 0.0, task_name=task_name)
    assert helpers.state_of(engine, late) == "ready"


def call_everything(engine, job_in):
    """Call every function of lifecycle, so that every statement runs."""
    worker_id = workers.register_worker(
        engine, hostname="here", pid=1, version="1", queue_names="default", concurrency=1
    )
    leases.extend(engine, [worker_id], lease_seconds=60.0)
    leases.note_started(engine, [worker_id], [1])
    workers.unregister_worker(engine, worker_id)
    assert workers.has_stopped(engine, worker_id)
    call_statements_of_worker_requests(engine)
    call_statements_of_steps(engine)
    workers.prune_workers(engine, 0.0)
    rollups.append_rollups(engine, [{}], 0.0)  # refused, because it has no values
    rollups.merge_rollups(engine)
    rollups.prune_rollups(engine, 0.0)
    own, _ = installations.read_installations(engine, "staging")
    installations.record_installation(engine, own, "")
    installations.adopt(engine, own, "")
    one_call: dict[str, Any] = {
        "queue_name": "default",
        "priority": 0,
        "max_attempts": 9,
        "run_after": None,
        "delay_seconds": 0,
    }
    enqueueing.enqueue(engine, NewJob({"task_name": helpers.NOOP, **one_call}, helpers.NO_ARGUMENTS))
    enqueueing.enqueue_many(engine, task_name=helpers.NOOP, arguments=f"[{helpers.NO_ARGUMENTS}]", **one_call)
    pauses.pause(engine, Pausable.QUEUE, "other")
    pauses.resume(engine, Pausable.QUEUE, "other")
    pauses.prune_pauses(engine, 0.0)
    lanes = claims.scan_lanes(engine).due_in
    claims.scan_lanes(engine, cursors=helpers.lanes_from_start(*lanes))
    claims.newest_lanes(engine, limit=10)
    claims.next_in_line(engine, helpers.lanes_from_start(*lanes))
    for free_slots in (0, 1):
        options = {"limit": 1, "free_slots": free_slots, "worker_id": 1, "lease_seconds": 60.0}
        claims.claim(engine, helpers.lanes_from_start(*lanes), **options)
    helpers.claim_all(engine)
    claims.claim_one(engine, 1_000_000, worker_id=1, lease_seconds=60.0)
    leases.extend_executions(engine, {helpers.key_of(engine, 1): 60.0})
    leases.cancel_requests(engine, [1])
    leases.open_executions(engine, 1)
    completions.note_progress(engine, [Noted(helpers.key_of(engine, 1), Progress(1.0), 0.0)])
    search_keys.add_search_keys(engine, {1: {"customer_id": "4711"}})
    search_keys.remove_search_keys(engine, [1])
    orphans.prune_orphans(engine, "search keys")
    logs.keep_logs(engine, [KeptLog(helpers.key_of(engine, 1), LogBuffer().content())])
    orphans.prune_orphans(engine, "logs")
    completions.succeed(engine, helpers.succeeded(*(helpers.key_of(engine, one) for one in (1, 1_000_000))))
    completions.succeed_and_discard(engine, [helpers.key_of(engine, 2)])
    completions.fail(engine, helpers.failed(job_in("running").key))
    helpers.claim_all(engine)
    completions.release(engine, [Released(helpers.key_of(engine, 4))])
    completions.end_cancelled(engine, [Cancelled(helpers.key_of(engine, 4), None, 0.0)])
    claims.set_aside(engine, 3, worker_id=1, exception_class="", error="")
    completions.remove_orphans(engine, [helpers.key_of(engine, 5)])
    completions.stored_results(engine, [helpers.key_of(engine, 5)])
    expiry.expire(engine, worker_id=1, error="")
    job_in("running")
    helpers.end_lease(engine)
    rescues.ending_leases(engine, 40.0)
    rescues.prove_commit(engine)
    helpers.rescue(engine)
    for act in (operator.cancel, operator.retry, operator.acknowledge, operator.run_now):
        act(engine, [1, 1_000_000])
    operator.move(engine, [1, 1_000_000], queue_name="other")
    operator.set_max_attempts(engine, [1, 1_000_000], max_attempts=77)
    operator.touch(engine, 1, Seen("dead", None))
    operator.delete(engine, [1_000_000])
    needs_of(engine, [1_000_000])
    for task_name in (None, "other"):
        pruning.prune(engine, State.DEAD, 0.0, task_name=task_name)
        pruning.prunable(engine, State.DEAD, 0.0, task_name=task_name)
    call_fallbacks(engine)
    call_everything_of_schedules(engine)
    for replace in (False, True):
        helpers.enqueue_unique(engine, "key", replace=replace)
        rule = {"ready_only": True, "on_conflict": "replace" if replace else "skip"}
        unique.enqueue_many_unique(engine, [helpers.unique_job("other", **rule, **one_call)])
    call_statements_with_own_options(engine, one_call)
    call_statements_of_deploys(engine)
    call_statements_of_history(engine)
    call_statements_of_limits(engine)
    call_statements_of_chunks(engine)
    call_statements_of_remote_tokens(engine)
    call_statements_of_batches(engine)
    call_statements_of_graphs(engine)
    unique.holders(engine, helpers.NOOP, ["key"])
    helpers.enqueue_for_period(engine, "key")
    helpers.replace_for_period(engine, "key")
    unique.open_windows(engine, helpers.NOOP, ["key"])
    unique.prune_windows(engine)


def call_statements_of_batches(engine):
    callbacks = dict.fromkeys(["on_success", "on_complete", "on_failure"])
    created = batches.create_batch(engine, description="", parent_id=None, callbacks=callbacks)
    batches.join_batch(engine, created.batch_id)
    batches.close_batch(engine, created.batch_id)
    batches.batches_to_end(engine, [created.batch_id])
    batches.end_batches(engine, [created.batch_id])
    batches.incomplete_batches(engine, 0, 9)
    batches.unsettled_batches(engine, 0, 9)
    batches.count_jobs(engine, [created.batch_id])
    batches.forget_callbacks(engine)
    batches.delete_batches(engine, [created.batch_id])
    batches.prune_batches(engine, 0.0)


def call_statements_of_graphs(engine):
    [first] = helpers.make_nodes(engine)
    [last] = helpers.make_nodes(engine, needs=[first])
    operator.cancel(engine, [first])
    operator.retry(engine, [first])
    graphs.find_missed(engine)
    graphs.advance(engine, (), [last + 1])
    graphs.read_results(engine, {last: [(first, last)]})
    graphs.nodes_of(engine, [first, last])
    graphs.postpone(engine, [first, last])
    orphans.prune_orphans(engine, "dependencies")


def call_statements_of_worker_requests(engine):
    worker_requests.request_of_worker(engine, 1, RequestKind.STACK, execution_id=7)
    worker_requests.open_request(engine, 1, RequestKind.STACK, execution_id=7)
    worker_requests.open_requests(engine, 1)
    worker_requests.answer_request(engine, 1, "")
    worker_requests.prune_worker_requests(engine, 0.0)


def call_statements_with_own_options(engine, one_call):
    row = {**UNSET, "task_name": helpers.NOOP, **one_call}
    calls = {"arguments": f"[{helpers.NO_ARGUMENTS}]", "numbers": [0]}
    enqueueing.enqueue_each(engine, **calls, rows=[row])
    rule = Uniqueness(ready_only=False, period_seconds=None, on_conflict="skip", has_steps=False)
    unique.enqueue_each_unique(engine, [NewJob(row, helpers.NO_ARGUMENTS, uniqueness=rule, key="own")])


def call_statements_of_deploys(engine):
    list(stored_calls.ready_calls(engine, helpers.DEFAULT_LANE, 9))
    list(stored_calls.ready_calls(engine, helpers.DEFAULT_LANE._replace(is_limited=True), 9))
    list(stored_calls.running_calls(engine, 9))
    list(stored_calls.waiting_calls(engine, 9))
    list(stored_calls.dead_calls(engine, 9))
    stored_calls.call_shapes(engine, [1])
    stored_calls.read_calls(engine, [1])
    list(stored_calls.scheduled_calls(engine, 9))
    list(stored_calls.pending_callbacks(engine, 9))
    list(stored_calls.pending_compensations(engine, 9))
    stored_calls.queues_of_calls(engine)


def call_statements_of_remote_tokens(engine):
    options = {"queue_names": [], "task_names": [], "requests_per_minute": 1, "expires_in_seconds": 1.0}
    token_id = remote_tokens.create_remote_token(engine, name="test", digest=b"digest", created_by="", **options)
    assert remote_tokens.use_remote_token(engine, b"digest") is not None
    assert remote_tokens.revoke_remote_token(engine, token_id, revoked_by="") == "test"
    engine.execute("DELETE FROM pgqueue_remote_token")


def call_statements_of_chunks(engine):
    engine.execute("INSERT INTO pgqueue_job (task_name, arguments, limit_key) VALUES ('a', '{}', '+a')")
    rule = chunks.ChunkRule(9, 0.0)
    lane = Lane("default", 0, chunk_key="+a")
    claimed, _ = chunks.claim_chunk(engine, lane, rule, worker_id=1, lease_seconds=60.0)
    completions.succeed(engine, helpers.succeeded(claimed.key))


def call_statements_of_limits(engine):
    lane, key, limit = Lane("limited", 0, is_limited=True), "rate", Limit("rate", rate="1/h")
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, queue_name, limit_key) VALUES (%s, '{}', 'limited', %s)",
        [helpers.NOOP, key],
    )
    assert lane in limits.scan_limited_lanes(engine)
    assert limits.scan_keys(engine, {}, limit=9).found
    assert limits.newest_keys(engine, limit=9)
    assert list(lifecycle_bulk_acts.waiting_jobs(engine, limit_key=key, limit=9))
    assert limits.next_of_key(engine, lane, key, is_ordered=False) is not None
    with engine.transaction():
        limits.lock_keys(engine, [key])
        given = [limits.KeyToClaim(key, policy_of(limit), Cursor())]
        begun = limits.claim_keys(engine, lane, given, limit=1, free_slots=1, worker_id=1, lease_seconds=60.0)
    assert begun.claimed
    [_, waiting] = engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, limit_key) SELECT %s, '{}', 'one' FROM generate_series(1, 2) "
        "RETURNING id",
        [helpers.NOOP],
    ).fetchall()
    with engine.transaction():
        job, only = limits.limited_job(engine, waiting[0]), Limit("one", rate="1/h")
        limits.lock_keys(engine, [job.limit_key])
        given = [limits.KeyToClaim(job.limit_key, policy_of(only), Cursor())]
        [claimed], _ = limits.claim_keys(
            engine, job.lane, given, limit=1, free_slots=1, job_id=waiting[0], worker_id=1, lease_seconds=60.0
        )
    completions.snooze(engine, [Released(claimed.key, 0.001, holds_key=True)])
    limits.prune_limit_states(engine)
    overrides = limit_overrides
    overrides.override(engine, key, {"concurrency": 2})
    overrides.controls_of(engine, [key])
    overrides.restore(engine, key)
    overrides.end_holds(engine, key)
    overrides.prune_overrides(engine, 0.0)
    breakers, breaker = lifecycle_breakers, Breaker()
    breakers.add_counts(engine, {key: breakers.Ended(0, 20)})
    assert breakers.failing_keys(engine, {key: breaker}) == [key]
    breakers.limit_waits(engine)
    assert breakers.open_breakers(engine, {key: breakers.Suspect(breaker)})[0]
    assert breakers.close_breakers(engine, {key: 2**62}).done == [key]
    breakers.prune_counts(engine)
    breakers.prune_breakers(engine, 0.0)


def call_statements_of_steps(engine):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    steps = lifecycle_steps
    events.send_event(engine, "other", "", None)
    suspension = Suspension("wait", 1.0, StepKind.EVENT, 60.0, event_name="approved", event_key="7")
    steps.store_step(engine, claimed.key, steps.EndedStep("a", 1.0, StepKind.STEP, "7", 0.1))
    undo = {"compensation": "{}", "compensation_arguments": "{}"}
    steps.store_step(engine, claimed.key, steps.EndedStep("b", 1.5, StepKind.STEP, "7", 0.1, **undo))
    lifecycle_steps.suspend(engine, [steps.SuspendedExecution(claimed.key, suspension, *helpers.AGES)])
    steps.load_steps(engine, claimed.job_id)
    sagas.compensate(engine, [claimed.job_id])
    sagas.pending_sagas(engine, 0, 9)
    sagas.is_compensating(engine, claimed.job_id)
    lifecycle_ends.find_ended(engine, [claimed.job_id])
    engine.execute("UPDATE pgqueue_step SET compensation = '{}'")
    sagas.forget_compensations(engine)
    events.find_event(engine, claimed.job_id, "approved", "7")
    lifecycle_steps.wake(engine, "approved", "7")
    steps.wake_suspended(engine, [claimed.job_id])
    steps.wake_for_events(engine, [1])
    steps.wake_missed(engine)
    steps.remove_steps(engine, [claimed.job_id])
    orphans.prune_orphans(engine, "steps")
    orphans.prune_orphans(engine, "executions")
    events.prune_events(engine, 0.0)


def call_statements_of_history(engine):
    list(pruning.finished_jobs(engine, State.DEAD, limit=9))
    seen = {1_000_000: EPOCH}
    old = (
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) VALUES ('old', '{}', 'dead', '2001-01-01')"
    )
    for finished_at in engine.execute(f"{old} RETURNING id, finished_at").fetchall():
        assert history.archive(engine, dict([finished_at]))
    history.read_for_archive(engine, seen)
    history.remove_archived(engine, seen)
    audit_id = audit.begin_audit(engine, "erase", {})
    history.erase(engine, seen, audit_id=audit_id, arguments=True, results=True, errors=True, logs=True)
    list(history.used_callbacks(engine, EVER, 1))
    history.erase_callbacks(engine, {1: [None, None, "{}"]})
    history.calls_of(engine, [1])
    assert history.may_erase(engine)
    audit.record_audit(engine, audit_id, [1])
    audit.edited_jobs(engine, [1])
    audit.begin_audit_once(engine, uuid.uuid4(), "enqueue", {}, done_by="")
    audit.stop_audit(engine, audit_id, "")
    audit.end_audit(engine, audit_id)
    call_statements_of_bulk_acts(engine)
    audit.prune_audit(engine, 0.0)
    orphans.prune_orphans(engine, "audited jobs")


def call_everything_of_schedules(engine):
    schedule_id = helpers.make_schedule(engine)
    schedules.confirm_schedules(engine, [schedule_id])
    schedule = helpers.schedule_of(engine, schedule_id)
    helpers.fire(engine, schedule, following_in=0.0)
    ticks.fire_many(engine, [helpers.tick_of(schedule)])
    schedules.plan_schedule(engine, schedule, schedule.next_run_at)
    schedules.change_schedule(
        engine, schedule_id, helpers.definition(), revision=schedule.revision, next_run_at=schedule.next_run_at
    )
    schedule = helpers.schedule_of(engine, schedule_id)
    ticks.run_schedule(engine, schedule, helpers.new_job())
    schedules.arguments_of(engine, schedule)
    schedules.note_problem(engine, schedule, "why")
    schedules.pause_schedule(engine, schedule_id)
    schedules.resume_schedule(engine, schedule_id, schedule.next_run_at)
    schedules.skip_run(engine, helpers.schedule_of(engine, schedule_id), schedule.next_run_at, "ada")
    schedules.undo_skip(engine, helpers.schedule_of(engine, schedule_id), schedule.next_run_at)
    schedules.prune_schedule_runs(engine, 0.0, kept=0)
    schedules.remove_schedules(engine, [schedule_id], 0.0)


# ------------------------------------------------------------------ plans

READY, OPEN, HISTORY, BATCH = 50_000, 10_000, 100_000, 100
FILLED = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_limit_state", "pgqueue_limit_override"),
    *("pgqueue_open_breaker", "pgqueue_breaker_count"),
)
KEYS, WAITING = 5000, 20_000
STATISTICS = ["never analysed", "analysed idle", "analysed at rest", "analysed full"]
WORKER = {"worker_id": 1, "lease_seconds": 60.0, "most_bytes": 1_000_000}
LANES = 3
JOB = "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, attempt, run_after, finished_at) SELECT "
JOB_THAT_RUNS = JOB.replace("finished_at", "finished_at, execution_id, worker_id")
CLAIM = "nextval('pgqueue_execution_id_seq'), n % 10"
EXECUTION = "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, lease_expires_at"
LIMITED = "INSERT INTO pgqueue_job (task_name, arguments, limit_key, limit_order, state, attempt, run_after) SELECT "
LIMITED += "'noop', '{}', "
LIMITED_THAT_RUNS = LIMITED.replace("run_after", "run_after, execution_id, worker_id")
NOW = "statement_timestamp()"
PAST = f"{NOW} - interval '1 h' + n * interval '1 ms'"
FILL = {
    "due jobs": f"{JOB} 'noop', 'queue' || n % {LANES}, '{{}}', 'ready', 0, {PAST}, NULL "
    f"FROM generate_series(1, {READY}) AS n",
    "later jobs": f"{JOB} 'noop', 'queue0', '{{}}', 'ready', 0, {PAST} + interval '9 h', NULL "
    "FROM generate_series(1, 9999) AS n",
    "running jobs": f"WITH job AS ({JOB_THAT_RUNS} 'noop', 'queue0', '{{}}', 'running', 1, {PAST}, NULL, {CLAIM} "
    f"FROM generate_series(1, {OPEN - KEYS}) AS n RETURNING id, execution_id, worker_id) "
    f"{EXECUTION}, id) SELECT id, 1, worker_id, {NOW}, {NOW} + interval '60 s', execution_id FROM job",
    "finished jobs": f"WITH job AS ({JOB} 'task' || n % 20, 'queue0', '{{}}', 'succeeded', 1, {PAST}, {NOW} "
    "FROM generate_series(1, 9999) AS n RETURNING id) "
    f"{EXECUTION}, outcome, finished_at) SELECT id, 1, 3, {NOW}, {NOW}, 'succeeded', {NOW} FROM job",
    "history": f"{EXECUTION}, outcome, finished_at) SELECT -n, 1, n % 10, {NOW}, {NOW}, 'succeeded', {NOW} "
    f"FROM generate_series(1, {HISTORY}) AS n",
    # Each of the keys has a waiting job. Three have many: one without a free slot, one with free slots, an ordered one.
    "limited jobs": "".join(
        f"{LIMITED} {key}, {order}, 'ready', 0, {PAST} FROM generate_series(1, {count}) AS n; "
        for key, order, count in (
            ("'key:' || 100000 + n", "NULL", KEYS),
            ("'key:100050'", "NULL", WAITING),
            ("'key:100060'", "NULL", WAITING),
            ("'key:100070'", "1", WAITING),
        )
    ),
    "running jobs with a limit": f"WITH job AS ({LIMITED_THAT_RUNS} 'key:' || 100000 + n % {KEYS}, NULL, 'running', 1, "
    f"{PAST}, {CLAIM} FROM generate_series(1, {KEYS}) n RETURNING id, execution_id, worker_id, limit_key) "
    f"{EXECUTION}, id, limit_key, limit_weight) "
    f"SELECT id, 1, worker_id, {NOW}, {NOW} + interval '60 s', execution_id, limit_key, 1 FROM job",
    "states of limits": "INSERT INTO pgqueue_limit_state (limit_key, full_at) "
    f"SELECT 'key:' || 100000 + n, {NOW} - interval '2 h' FROM generate_series(1, {KEYS}) n",
    "overrides": "INSERT INTO pgqueue_limit_override (limit_key, concurrency) "
    f"SELECT 'key:' || 100000 + n, 5 FROM generate_series(1, {KEYS}) n",
    "open breakers": "INSERT INTO pgqueue_open_breaker (limit_key, after_execution_id) "
    f"SELECT 'key:' || 100000 + n, 0 FROM generate_series(1, {KEYS}) n",
    "counts of breakers": "INSERT INTO pgqueue_breaker_count (limit_key, ended_at, succeeded, failed) "
    f"SELECT 'key:' || 100000 + n, {NOW}, 1, 1 FROM generate_series(1, {KEYS}) n",
}


@pytest.fixture(scope="module")
def filled(django_db_setup: Any, django_db_blocker: Any, request: Any) -> Iterator[Any]:
    """Fill the tables, once for all tests with the same state of statistics, and return a connection."""
    with (
        django_db_blocker.unblock(),
        helpers.closing(helpers.connect()) as connection,
        helpers.without_statistics(connection, FILLED),
    ):
        yield fill(connection, request.param)


def fill(connection, statistics):
    if statistics == "analysed idle":
        [job_id] = helpers.make_jobs(connection, 1)
        connection.execute("INSERT INTO pgqueue_execution (job_id, attempt, worker_id, lease_expires_at) "
                           "VALUES (%s, 1, 1, now())", [job_id])  # fmt: skip
        connection.execute(f"ANALYZE {', '.join(FILLED)}")
        connection.execute("DELETE FROM pgqueue_job")
        connection.execute("DELETE FROM pgqueue_execution")
    if statistics == "analysed at rest":
        helpers.come_to_rest(connection)
    for statement in FILL.values():
        connection.execute(statement)
    if statistics == "analysed full":
        connection.execute(f"ANALYZE {', '.join(FILLED)}")
    return connection


def running(connection):
    rows = connection.execute(
        "SELECT id, floor(1000 * date_part('epoch', claimed_at)) FROM pgqueue_execution "
        "WHERE outcome IS NULL ORDER BY random() LIMIT 100"
    )
    return sorted(ExecutionKey(*row) for row in rows)


def lane_params(connection):
    return {
        "queue_names": [f"queue{n}" for n in range(LANES)],
        "priorities": [0] * LANES,
        "after_ats": [EPOCH] * LANES,
        "after_ids": [0] * LANES,
        "skipped_ids": [],
        "paused_task_names": [],
    }


NO_LANES: dict[str, Any] = {"queue_names": [], "priorities": [], "after_ats": [], "after_ids": []}


def walks(*ends):
    """Return the parameters of scans that begin behind a lane and end before another one."""
    starts, stops = zip(*ends, strict=True)
    return {
        "start_names": [lane.queue_name for lane in starts],
        "start_priorities": [lane.priority for lane in starts],
        "end_names": [lane.queue_name for lane in stops],
        "end_priorities": [lane.priority for lane in stops],
        "limit": None,
    }


def all_lanes(connection):
    return {**NO_LANES, **walks((claims.FIRST, claims.LAST))}


def lanes_of_queues(connection):
    names = lane_params(connection)["queue_names"]
    ends = [(claims.FIRST._replace(queue_name=name), claims.LAST._replace(queue_name=name)) for name in names]
    return {**NO_LANES, **walks(*ends)}


def lanes_from_cursors(connection):
    known = lane_params(connection)
    lanes = [Lane(name, 0) for name in known["queue_names"]]
    return {**known, **walks(*pairwise([claims.FIRST, *lanes, claims.LAST]))}


def claim(connection):
    return {**lane_params(connection), "limit": BATCH, **WORKER}


def limited_lane(connection):
    return {"queue_name": "default", "priority": 0}


def page_of_keys(connection):
    """Return the parameters of a page of keys with a chunk key among them."""
    rules = {"chunk_keys": ["key:100050"], "sizes": [BATCH], "waits_seconds": [0.5]}
    return {"after_queue": "default", "after_priority": 0, "after_key": "key:100009", "limit": BATCH, **rules}


def claim_keys(connection, keys=None):
    """Return the parameters of a claim from 100 keys, among them the three with many waiting jobs."""
    keys = keys or [f"key:{100_000 + n}" for n in range(10, 10 + BATCH)]
    return {
        **limited_lane(connection),
        "limit_keys": keys,
        "concurrencies": [1 if key == "key:100050" else 5 for key in keys],
        "intervals_us": [1000] * len(keys),
        "bursts": [9] * len(keys),
        "shares": [1] * len(keys),
        "are_ordered": [key == "key:100070" for key in keys],
        "after_ats": [EPOCH] * len(keys),
        "after_ids": [0] * len(keys),
        "open_after_ids": [0] * len(keys),
        "limit_of_key": 1,
        "limit": BATCH,
        "free_slots": BATCH,
        "ahead_bytes": AHEAD_BYTES,
        **WORKER,
        "skipped_ids": [],
        "paused_task_names": [],
        "job_id": None,
        "is_early": False,
    }


def claim_chunk(connection):
    return {
        **limited_lane(connection),
        "chunk_key": "key:100050",
        "task_name": "noop",
        "after_at": EPOCH,
        "after_id": 0,
        "size": BATCH,
        "wait_seconds": 7200.0,
        "skipped_ids": [],
        "paused_task_names": [],
        "max_bytes": AHEAD_BYTES,
        **WORKER,
    }


def next_of_key(connection, is_ordered):
    key = "key:100070" if is_ordered else "key:100050"
    return {
        **limited_lane(connection),
        "limit_key": key,
        "is_ordered": is_ordered,
        "skipped_ids": [],
        "paused_task_names": [],
    }


def job_of_key(connection, key):
    query = "SELECT min(id) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NOT NULL AND limit_key = %s"
    return connection.execute(query, [key]).fetchone()[0]


def claim_job_of_key(connection):
    """Return the parameters of a claim of the first job of the ordered key with many waiting jobs, by its id."""
    key = "key:100070"
    return {**claim_keys(connection, [key]), "job_id": job_of_key(connection, key), "limit": 1, "free_slots": 1}


def finished_ids(connection):
    rows = connection.execute(f"SELECT id FROM pgqueue_job WHERE state = 'succeeded' LIMIT {BATCH}")
    return {"job_ids": [row[0] for row in rows]}


def ends(connection, **columns):
    ids, claimed_ms = map(list, zip(*running(connection), strict=True))
    return {
        "execution_ids": ids,
        "claimed_ms": claimed_ms,
        **{name: [value] * len(ids) for name, value in columns.items()},
    }


def breaker_keys(connection):
    ones = [1] * BATCH
    return {
        "limit_keys": claim_keys(connection)["limit_keys"],
        **dict.fromkeys(("shares", "attempts", "windows_seconds", "pauses_seconds", "probe_ids", "failed"), ones),
        "paused_by": "circuit breaker",
    }


TIMES = {"started_seconds_ago": 0.002, "finished_seconds_ago": 0.001}
TIMES_OF_SUCCESS = {"started_us_ago": 2000, "finished_us_ago": 1000}
TEXTS = {"exception_classes": "E", "errors": "e", "tracebacks": "t"}
CASES: dict[str, tuple[Any, int, set[str]]] = {
    "CLAIM": (claim, BATCH, {"pgqueue_job_ready", "pgqueue_job_pkey"}),
    "CLAIM_AHEAD": (
        lambda connection: {**claim(connection), "free_slots": BATCH, "ahead_bytes": AHEAD_BYTES},
        BATCH,
        {"pgqueue_job_ready", "pgqueue_job_pkey"},
    ),
    "NEXT_IN_LINE": (lane_params, LANES, {"pgqueue_job_ready"}),
    "LANES": (all_lanes, LANES, {"pgqueue_job_ready"}),
    "LANES of a page": (lambda connection: {**all_lanes(connection), "limit": 2}, LANES, {"pgqueue_job_ready"}),
    "LANES of queues": (lanes_of_queues, LANES, {"pgqueue_job_ready"}),
    "LANES from cursors": (lanes_from_cursors, LANES, {"pgqueue_job_ready"}),
    "NEWEST_READY": (lambda connection: {"limit": BATCH}, BATCH, {"pgqueue_job_pkey"}),
    "LIMITED_LANES": (lambda connection: {}, 1, {"pgqueue_job_limited"}),
    "KEY_CONTROLS": (
        lambda connection: {"names": claim_keys(connection)["limit_keys"]},
        BATCH,
        {"pgqueue_limit_override_key", "pgqueue_open_breaker_key"},
    ),
    "ADD_BREAKER_COUNTS": (
        lambda connection: {**breaker_keys(connection), "succeeded": [1] * BATCH},
        BATCH,
        {"pgqueue_open_breaker_key"},
    ),
    "FAILING_KEYS": (breaker_keys, BATCH, {"pgqueue_breaker_count_key"}),
    "OPEN_BREAKERS": (
        breaker_keys,
        BATCH,
        {"pgqueue_breaker_count_key", "pgqueue_open_breaker_key"},
    ),
    "CLOSE_BREAKERS": (breaker_keys, BATCH, {"pgqueue_breaker_count_key", "pgqueue_open_breaker_key"}),
    "PRUNE_BREAKER_COUNTS": (
        lambda connection: {"limit": BATCH, "seconds": 600},
        BATCH,
        {"pgqueue_breaker_count_pkey"},
    ),
    "LOCK_OVERRIDE": (lambda connection: {"limit_key": "key:100050"}, 1, {"pgqueue_limit_override_key"}),
    "END_HOLDS": (
        lambda connection: {"limit_key": "key:100050", "first_key": "", "end_key": ""},
        1,
        {"pgqueue_limit_state_held"},
    ),
    "KEYS": (page_of_keys, BATCH, {"pgqueue_job_limited"}),
    "LOCK_KEYS": (
        lambda connection: {"limit_keys": claim_keys(connection)["limit_keys"], "idle_wait": "5s"},
        BATCH,
        set(),
    ),
    "CLAIM_KEYS": (
        claim_keys,
        BATCH,
        {
            "pgqueue_job_running_key",
            "pgqueue_limit_state_held",
            "pgqueue_limit_state_key",
            "pgqueue_limit_state_pkey",
            "pgqueue_job_limited",
            "pgqueue_job_ordered",
            "pgqueue_job_pkey",
        },
    ),
    "NEXT_OF_KEY": (lambda connection: next_of_key(connection, is_ordered=False), 1, {"pgqueue_job_limited"}),
    "NEXT_OF_KEY of an ordered key": (
        lambda connection: next_of_key(connection, is_ordered=True),
        1,
        {"pgqueue_job_ordered"},
    ),
    "LIMITED_JOB": (lambda connection: {"job_id": job_of_key(connection, "key:100050")}, 1, {"pgqueue_job_pkey"}),
    "CLAIM_KEYS of one job": (
        claim_job_of_key,
        1,
        {
            "pgqueue_job_running_key",
            "pgqueue_limit_state_held",
            "pgqueue_limit_state_key",
            "pgqueue_limit_state_pkey",
            "pgqueue_job_ordered",
            "pgqueue_job_pkey",
        },
    ),
    "CLAIM_CHUNK": (claim_chunk, BATCH, {"pgqueue_job_limited", "pgqueue_job_pkey"}),
    "PRUNE_LIMIT_STATES": (lambda connection: {"after_id": 0, "limit": BATCH}, BATCH, {"pgqueue_limit_state_pkey"}),
    "SUCCEED": (
        lambda connection: ends(connection, results=None, **TIMES_OF_SUCCESS),
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "SUCCEED_AND_DISCARD": (ends, BATCH, {"pgqueue_execution_pkey", "pgqueue_job_pkey"}),
    "FAIL": (
        lambda connection: ends(
            connection, outcomes="failed", delays_seconds=1.0, spares_seconds=2.0, **TIMES, **TEXTS
        ),
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "RELEASE": (
        lambda connection: {
            **ends(connection, delays_seconds=1.0, errors="", holds=True),
            "outcome": "snoozed",
            "unknown": False,
        },
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "END_CANCELLED": (
        lambda connection: ends(connection, errors="", **TIMES),
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "RESCUE": (
        lambda connection: {**ends(connection, delays_seconds=1.0), "error": "lost", "leases_ms": []},
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "NOTE_STARTED": (
        lambda connection: {"execution_ids": [key.execution_id for key in running(connection)], "worker_ids": [3, 4]},
        BATCH,
        {"pgqueue_execution_pkey"},
    ),
    "CANCEL_REQUESTS": (
        lambda connection: {"worker_ids": [3, 4], "first_id": 0},
        OPEN // 5,
        {"pgqueue_job_running"},
    ),
    "OPEN_EXECUTIONS": (
        lambda connection: {"worker_id": 3},
        OPEN // 10,
        {"pgqueue_job_running", "pgqueue_execution_pkey"},
    ),
    "NOTE_PROGRESS": (
        lambda connection: ends(connection, done=1.0, totals=2.0, messages="m", noted_seconds_ago=0.1),
        BATCH,
        {"pgqueue_execution_pkey", "pgqueue_job_pkey"},
    ),
    "RESCUABLE": (lambda connection: {"skipped_ids": [], "execution_ids": None}, OPEN, {"pgqueue_job_running"}),
    "RESCUABLE observed": (
        lambda connection: {"skipped_ids": [], "execution_ids": [1, 2]},
        OPEN,
        {"pgqueue_job_running"},
    ),
    "ENDING_LEASES": (lambda connection: {"within_seconds": 40.0}, OPEN, {"pgqueue_job_running"}),
    "LOCK_FINISHED": (finished_ids, BATCH, {"pgqueue_job_pkey", "pgqueue_execution_job"}),
    "REMOVE": (
        lambda connection: {**finished_ids(connection), "removes_logs": True, "removes_acts": True},
        BATCH,
        {"pgqueue_job_pkey", "pgqueue_execution_job"},
    ),
}


def explain(connection, name, params, plan):
    """Return the plan of a prepared statement with its actual row counts. Its changes are rolled back."""
    names = list(dict.fromkeys(PARAMETER.findall(STATEMENTS[name])))
    params = {**ranges.ALL._asdict(), **params, "time_shift": "0 s"}
    types = [type_of(connection, params[parameter], parameter) for parameter in names]
    text = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", STATEMENTS[name])
    connection.execute(f"PREPARE explained ({', '.join(types)}) AS {text}" if names else f"PREPARE explained AS {text}")
    try:
        with helpers.transaction(connection, f"SET LOCAL plan_cache_mode = force_{plan}_plan"):
            values = ", ".join(f"%({parameter})s::{kind}" for parameter, kind in zip(names, types, strict=True))
            call = f"EXECUTE explained ({values})" if names else "EXECUTE explained"
            query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}"
            cursor = psycopg.ClientCursor(connection)
            [[answer]] = cursor.execute(query, params).fetchall()
            return answer[0]["Plan"]
    finally:
        connection.execute("DEALLOCATE explained")


def type_of(connection, value, name):
    kinds = {
        "queue_names": "varchar[]", "priorities": "smallint[]", "after_ats": "timestamptz[]", "mark": "timestamptz",
        "delays_seconds": "float8[]", "results": "text[]", "other_task_names": "varchar[]", "limit": "bigint",
        "unique_keys": "varchar[]", "unique_ready_only": "boolean", "headers": "text", "expires_seconds": "float8",
        "unique_key": "text", "task_name": "text", "period_seconds": "float8", "key_wait": "text",
    }  # fmt: skip
    if name.endswith(("_at", "_after", "until")):
        return "timestamptz"
    if name in kinds:
        return kinds[name]
    if isinstance(value, list):
        of_lists = {bool: "boolean[]", int: "bigint[]", float: "float8[]", str: "text[]"}
        return of_lists[type(value[0])] if value else "bigint[]"
    return {bool: "boolean", int: "bigint", float: "float8", str: "text", type(None): "text"}[type(value)]


def nodes(plan):
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


FEW_ROWS = {"pgqueue_pause", "pgqueue_worker"}
"""Tables of one or two pages that plans may read whole: they have one row for each setting made by an operator, and for
each worker process of a week."""


def rows_read(node):
    removed = sum(value for key, value in node.items() if key.startswith("Rows Removed by"))
    return (node["Actual Rows"] + removed) * node["Actual Loops"]


@pytest.mark.slow
@pytest.mark.parametrize("filled", STATISTICS, indirect=True)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_plans_read_at_most_three_times_the_requested_rows(filled):
    check_each(product(["custom", "generic"], CASES), lambda case: assert_bounded(filled, *case))


def assert_bounded(filled, plan, name):
    make_params, asked, indexes = CASES[name]
    if name == "RESCUE":
        filled.execute("UPDATE pgqueue_execution SET lease_expires_at = '2020-01-01' WHERE worker_id = 3")
    found = list(nodes(explain(filled, name.partition(" ")[0], make_params(filled), plan)))
    for node in found:
        kinds = [below["Node Type"] for below in node.get("Plans", ())]
        assert not (node["Node Type"] == "Nested Loop" and kinds[:2] == ["CTE Scan", "CTE Scan"])
        assert node["Node Type"] not in ("Seq Scan", "Bitmap Heap Scan") or node["Relation Name"] in FEW_ROWS
        assert rows_read(node) <= 3 * asked, node
    used = {node.get("Index Name") for node in found}
    assert indexes <= used


@pytest.mark.slow
@pytest.mark.parametrize("filled", ["analysed full"], indirect=True)
@pytest.mark.django_db(transaction=True, available_apps=[])
def test_plan_cases_of_limits_find_rows(filled):
    """A plan that reads few rows because there is nothing to do would prove nothing."""
    with helpers.transaction(filled):
        keys = [row[2] for row in statements.execute(filled, sql.limits.KEYS, page_of_keys(filled))]
        assert keys == claim_keys(filled)["limit_keys"]
        rows = statements.execute(filled, sql.limits.CLAIM_KEYS, claim_keys(filled))
        claimed = {row[17] for row in rows if row[0] is not None}
        assert len(claimed) == BATCH - 1 and "key:100050" not in claimed
        assert filled.execute("SELECT count(*) FROM pgqueue_limit_state").fetchone() == (KEYS,)
        assert limits.prune_limit_states(filled, 0, BATCH).removed == BATCH
        assert len(statements.execute(filled, sql.chunks.CLAIM_CHUNK, claim_chunk(filled))) == BATCH + 1


# ------------------------------------------------------------------ the connection that runs the statements


def test_engine_connection_accepts_commit_and_rollback(engine):
    engine.commit()
    engine.rollback()
    engine.autocommit = True
    with helpers.connect() as connection:
        assert helpers.scalar(connection, "SHOW jit") == "off"
    assert connection.closed


def call_statements_of_bulk_acts(engine):
    bulk_acts = lifecycle_bulk_acts
    for word, action in (("dead", "retry"), ("cancelled", "retry"), ("ready", "cancel"), ("running", "cancel")):
        at = bulk_acts.preview(engine, action, bulk_acts.Selection(word)).at
    ended = (
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) "
        "SELECT 'noop', '{}', 'dead', '2001-01-01' FROM generate_series(1, 2) RETURNING id"
    )
    [of_limit] = helpers.make_jobs(engine, 1)
    engine.execute("UPDATE pgqueue_job SET limit_key = 'bulk:1' WHERE id = %s", [of_limit])
    assert bulk_acts.preview(engine, "cancel", bulk_acts.Selection("ready", limit_key="bulk")).chosen == 1
    listed = bulk_acts.Selection(job_ids=tuple(row[0] for row in engine.execute(ended)))
    act_id = bulk_acts.request_act(engine, "retry", listed, previewed_at=at, rate=1.0, stops_on_repeat=True)
    assert [act.audit_id for act in bulk_acts.waiting_acts(engine)] == [act_id]
    assert len(bulk_acts.execute_batch(engine, act_id).changed) == 1
    cancelled = bulk_acts.Selection("cancelled")
    assert bulk_selection.chosen_of(engine, cancelled, at, {of_limit: FIRST_INSTANT}) == {of_limit}
