"""Test that each statement which writes several rows writes the others if the database refuses one of them.

`PROOFS` and `PROVEN` name these statements. `ALONE` names those that write the rows of one job or one other thing, and
`EXEMPT` those that write all or nothing, with the reason. Together they are all statements that write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from django_pgqueue.db import statements
from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.job_log import LogBuffer
from django_pgqueue.lifecycle import (
    audit,
    batches,
    breakers,
    completions,
    events,
    graphs,
    limit_overrides,
    limits,
    logs,
    orphans,
    pauses,
    ranges,
    refused_rows,
    rollups,
    sagas,
    schedules,
    steps,
    stranded,
    unique,
    worker_requests,
    workers,
)
from django_pgqueue.lifecycle import execute as execute_module
from django_pgqueue.lifecycle.breakers import Ended, Suspect
from django_pgqueue.lifecycle.history import erase_callbacks
from django_pgqueue.lifecycle.logs import KeptLog
from django_pgqueue.lifecycle.types import TransitionStatus
from django_pgqueue.worker.completion.writer import finish
from tests import helpers
from tests.concurrency.test_sagas import dead_job
from tests.statements import STATEMENTS
from tests.worker.test_unwritten import report

TOP = Path(__file__).resolve().parents[2]
WRITES = re.compile(r"\b(?:UPDATE|INSERT INTO|DELETE FROM) pgqueue_\w+")
OLD = "2001-01-01"
FILLERS: dict[str, Any] = {
    **dict.fromkeys(("bigint", "integer", "smallint", "double precision"), 1),
    "text": "",
    "character varying": "x",
    "json": "{}",
    "boolean": False,
    "timestamp with time zone": OLD,
    "ARRAY": [],
}


def insert(engine: Any, table: str, **values: Any) -> None:
    """Insert a row. Columns without a value get a plain one, if they must have one."""
    columns = engine.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = current_schema() "
        "AND table_name = %s AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'",
        [table],
    ).fetchall()
    row = {name: FILLERS[kind] for name, kind in columns} | values
    names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
    engine.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


class Removal(NamedTuple):
    """Five old rows with the keys 1 to 5, and the call that removes them."""

    table: str
    key: str
    columns: dict[str, Any]
    remove: Callable[[Any], object]
    named: str | None = None
    """A column that must differ."""


def prune_orphans(name: str) -> Callable[[Any], object]:
    return lambda engine: orphans.prune_orphans(engine, name)


REMOVALS = {
    "PRUNE_LOGS": Removal("pgqueue_execution_log", "execution_id", {}, prune_orphans("logs")),
    "PRUNE_AUDITED_JOBS": Removal("pgqueue_audit_job", "id", {"audit_id": 99}, prune_orphans("audited jobs"), "job_id"),
    "PRUNE_SEARCH_KEYS": Removal("pgqueue_search_key", "job_id", {}, prune_orphans("search keys")),
    "PRUNE_LIMIT_STATES": Removal(
        "pgqueue_limit_state", "id", {"full_at": OLD}, limits.prune_limit_states, "limit_key"
    ),
    "PRUNE_DEPENDENCIES": Removal("pgqueue_dependency", "job_id", {"policy": "cancel"}, prune_orphans("dependencies")),
    "PRUNE_EXECUTIONS": Removal(
        "pgqueue_execution",
        "job_id",
        {"worker_id": 1, "attempt": 1, "lease_expires_at": OLD},
        prune_orphans("executions"),
    ),
    "PRUNE_STEPS": Removal("pgqueue_step", "job_id", {"kind": "run", "finished_at": OLD}, prune_orphans("steps")),
    "PRUNE_BATCHES": Removal(
        "pgqueue_batch",
        "id",
        {"closed_at": OLD, "completed_at": OLD},
        lambda engine: batches.prune_batches(engine, 0.0),
    ),
    "PRUNE_EVENTS": Removal("pgqueue_event", "id", {}, lambda engine: events.prune_events(engine, 0.0)),
    "PRUNE_AUDIT": Removal("pgqueue_audit", "id", {"ended_at": OLD}, lambda engine: audit.prune_audit(engine, 0.0)),
    "PRUNE_WORKERS": Removal("pgqueue_worker", "id", {}, lambda engine: workers.prune_workers(engine, 0.0)),
    "PRUNE_WORKER_REQUESTS": Removal(
        "pgqueue_worker_request",
        "id",
        {"kind": "stop", "answered_at": OLD},
        lambda engine: worker_requests.prune_worker_requests(engine, 0.0),
    ),
    "PRUNE_PAUSES": Removal(
        "pgqueue_pause",
        "id",
        {"kind": "queue", "paused_until": "2001-01-02"},
        lambda engine: pauses.prune_pauses(engine, 0.0),
        "name",
    ),
    "PRUNE_WINDOWS": Removal("pgqueue_uniqueness_window", "job_id", {}, unique.prune_windows, "unique_key"),
    "PRUNE_ROLLUPS": Removal(
        "pgqueue_rollup", "id", {"span": "hour"}, lambda engine: rollups.prune_rollups(engine, 0.0)
    ),
    "PRUNE_BREAKER_COUNTS": Removal("pgqueue_breaker_count", "id", {}, breakers.prune_counts),
    "PRUNE_OPEN_BREAKERS": Removal(
        "pgqueue_open_breaker", "id", {}, lambda engine: breakers.prune_breakers(engine, 0.0), "limit_key"
    ),
    "PRUNE_LIMIT_OVERRIDES": Removal(
        "pgqueue_limit_override",
        "id",
        {"valid_until": OLD, "concurrency": 1},
        lambda engine: limit_overrides.prune_overrides(engine, 0.0),
        "limit_key",
    ),
}

BAD_ROWS = "tests/concurrency/test_bad_rows.py"
PROVEN = {
    "CLAIM": "tests/worker/test_blame.py::test_claim_one_row_refused_only_it_is_dead",
    "CLAIM_AHEAD": "tests/worker/test_blame.py::test_claim_one_row_refused_only_it_is_dead",
    "CLAIM_KEYS": "tests/worker/test_blame.py::test_claim_one_row_refused_only_it_is_dead",
    "CLAIM_CHUNK": "tests/worker/test_blame.py::test_claim_one_row_refused_only_it_is_dead",
    **dict.fromkeys(
        ("SUCCEED", "SUCCEED_AND_DISCARD", "FAIL", "RELEASE", "END_CANCELLED", "SUSPEND"),
        "tests/worker/test_unwritten.py::test_completer_every_form_refused_others_are_written",
    ),
    "NOTE_PROGRESS": f"{BAD_ROWS}::test_note_progress_trigger_refuses_one_others_are_noted",
    **dict.fromkeys(
        ("EXPIRE", "EXPIRE_JOBS"),
        f"{BAD_ROWS}::test_expire_trigger_refuses_one_others_are_cancelled",
    ),
    "EXTEND": f"{BAD_ROWS}::test_extend_trigger_refuses_one_others_are_extended",
    "EXTEND_EACH": f"{BAD_ROWS}::test_extend_executions_trigger_refuses_one_others_are_extended",
    "NOTE_STARTED": f"{BAD_ROWS}::test_note_started_trigger_refuses_one_others_are_noted",
    "REMOVE": f"{BAD_ROWS}::test_prune_trigger_refuses_some_others_are_removed",
    **dict.fromkeys(
        ("CANCEL", "RUN_NOW", "SET_MAX_ATTEMPTS"),
        f"{BAD_ROWS}::test_operator_transition_trigger_refuses_one_others_change",
    ),
    **dict.fromkeys(
        ("MOVE", "DELETE", "ADVANCE_ACT"),
        "tests/worker/test_bulk_acts.py::test_act_one_job_refused_all_others_are_changed",
    ),
    "RECORD_AUDIT": "tests/worker/test_bulk_acts.py::test_act_record_of_one_job_refused_others_are_changed",
    "ACKNOWLEDGE": f"{BAD_ROWS}::test_acknowledge_trigger_refuses_one_others_change",
    "RETRY": f"{BAD_ROWS}::test_retry_trigger_refuses_one_others_are_ready",
    "RESCUE": f"{BAD_ROWS}::test_rescue_trigger_refuses_one_others_are_ready",
    "FIRE": f"{BAD_ROWS}::test_scheduler_trigger_refuses_one_tick_others_fire",
    **dict.fromkeys(
        ("CONFIRM_SCHEDULES", "REMOVE_SCHEDULES"),
        "tests/worker/test_scheduler.py::test_scheduler_trigger_refuses_one_others_are_updated",
    ),
    "ARCHIVE": "tests/history/test_archive.py::test_archive_refused_row_stops_no_other",
    "ERASE": "tests/history/test_erasure.py::test_erase_refused_row_stops_no_other",
}
"""The tests that prove it for the statements that this file does not run."""

ALONE = frozenset(
    {
        *("CLAIM_ONE", "SET_ASIDE", "STORE_STEP", "STORE_STEP_AND_UNDO", "SEND_EVENT", "RESUME", "PAUSE"),
        *("BEGIN_AUDIT", "BEGIN_AUDIT_ONCE", "END_AUDIT", "STOP_AUDIT", "REQUEST_ACT", "CREATE_BATCH", "CLOSE_BATCH"),
        *("OVERRIDE_LIMIT", "RESTORE_LIMIT", "ADD_REMOTE_ACCESS", "CHECK_REMOTE_ACCESS", "REVOKE_REMOTE_ACCESS"),
        *("NOTE_PROBLEM", "PLAN_SCHEDULE", "ADD_SCHEDULE", "CHANGE_SCHEDULE", "SWITCH_SCHEDULE", "SKIP_RUN"),
        *("UNDO_SKIP", "RUN_SCHEDULE", "ADD_REQUEST", "ANSWER_REQUEST", "REGISTER_WORKER", "UNREGISTER_WORKER"),
        *("RECORD_INSTALLATION", "ENQUEUE", "ENQUEUE_UNIQUE", "ENQUEUE_OR_REPLACE", "TOUCH"),
    }
)
CALLERS = "it belongs to the caller's transaction, which commits all of it or nothing"
ADOPTS = "the command `pgqueue adopt` changes everything or nothing, and shows the error"
EXEMPT = {
    **dict.fromkeys(
        (
            *("ENQUEUE_MANY", "ENQUEUE_EACH", "ENQUEUE_MANY_UNIQUE", "ENQUEUE_EACH_UNIQUE", "ENQUEUE_MANY_OR_REPLACE"),
            *("ENQUEUE_FOR_PERIOD", "REPLACE_FOR_PERIOD", "ADD_NODES", "ADD_DEPENDENCIES", "ADD_SEARCH_KEYS"),
            *("REMOVE_SEARCH_KEYS", "DELETE_BATCHES"),
        ),
        CALLERS,
    ),
    **dict.fromkeys(("ADOPT", "FORGET_CALLBACKS", "FORGET_COMPENSATIONS"), ADOPTS),
    "END_HOLDS": "an operator ends the holds of one limit, and sees the error",
    "RESTORE": "it restores the dependents of one retried job, which is left as it is if one of them is refused",
}


# ------------------------------------------------------------------ the other statements


def refused(engine: Any, condition: str, event: str = "UPDATE", table: str = "pgqueue_job") -> Any:
    return helpers.users_trigger(engine, condition, event=event, table=table)


def waiting_jobs(engine: Any, count: int = 5) -> list[int]:
    """Add jobs that are suspended until an event comes."""
    job_ids = [helpers.make_suspended_job(engine) for _ in range(count)]
    engine.execute("UPDATE pgqueue_step SET kind = 'wait', event_name = 'paid', event_key = '7'")
    return job_ids


def due(engine: Any) -> list[int]:
    return [row[0] for row in engine.execute("SELECT id FROM pgqueue_job WHERE run_after <= now() ORDER BY id")]


def prove_wake(engine: Any, wake: Callable[[Any, list[int]], object]) -> None:
    job_ids = waiting_jobs(engine)
    events.send_event(engine, "paid", "7", None)
    with refused(engine, f"NEW.id = {job_ids[2]}"):
        wake(engine, job_ids)
    assert due(engine) == [job_id for job_id in job_ids if job_id != job_ids[2]]


def statements_of(monkeypatch: Any) -> list[str]:
    """Return a list that the names of all statements are added to which transitions run from now on."""
    seen: list[str] = []

    def execute(connection: Any, statement: str, params: Any) -> Any:
        seen.append(re.findall(r"pgqueue:(\w+)", statement)[0])
        return statements.execute(connection, statement, params)

    monkeypatch.setattr(execute_module, "execute", execute)
    return seen


def prove_requeue(engine: Any) -> None:
    helpers.make_jobs(engine, 5)
    claimed = helpers.claim_all(engine)
    engine.execute("DELETE FROM pgqueue_execution")
    with refused(engine, f"NEW.id = {claimed[2].job_id}"):
        stranded.requeue(engine, lambda job: 0.0, worker_id=1, error="lost")
    states = [helpers.state_of(engine, job.job_id) for job in claimed]
    assert states == ["ready", "ready", "running", "ready", "ready"]


def prove_remove_orphans(engine: Any) -> None:
    helpers.make_jobs(engine, 6)
    claimed = helpers.claim_all(engine)
    engine.execute("DELETE FROM pgqueue_job WHERE id <> %s", [claimed[5].job_id])
    with refused(engine, f"OLD.id = {claimed[2].execution_id}", "DELETE", "pgqueue_execution"):
        done = completions.succeed(engine, helpers.succeeded(*(job.key for job in claimed)))
    assert set(helpers.rows_of(engine, "pgqueue_execution")) == {claimed[2].execution_id, claimed[5].execution_id}
    lost, succeeded = TransitionStatus.LOST, TransitionStatus.DONE
    assert [done[job.execution_id].status for job in claimed] == [lost] * 5 + [succeeded]


def prove_remove_steps(engine: Any) -> None:
    helpers.make_jobs(engine, 3)
    claimed = helpers.claim_all(engine)
    for job in claimed:
        insert(engine, "pgqueue_step", job_id=job.job_id, kind="run", finished_at=OLD)
    with refused(engine, f"OLD.job_id = {claimed[1].job_id}", "DELETE", "pgqueue_step"):
        done = finish(engine, [report(job, Ending.DISCARDED, has_steps=True) for job in claimed])
    assert (done.refused, done.lost, helpers.rows_of(engine, "pgqueue_job")) == ([], [], {})
    assert list(helpers.rows_of(engine, "pgqueue_step")) == [claimed[1].job_id]


def prove_advance(engine: Any) -> None:
    [first] = helpers.make_nodes(engine)
    job_ids = helpers.make_nodes(engine, 5, needs=[first])
    completions.succeed(engine, helpers.succeeded(*(job.key for job in helpers.claim_all(engine))))
    with refused(engine, f"NEW.id = {job_ids[2]}"):
        graphs.advance(engine, [first])
    assert [helpers.state_of(engine, job_id) for job_id in job_ids] == ["ready", "ready", "waiting", "ready", "ready"]


def prove_postpone(engine: Any) -> None:
    [first] = helpers.make_nodes(engine)
    job_ids = helpers.make_nodes(engine, 5, needs=[first])
    engine.execute("UPDATE pgqueue_job SET state = 'ready' WHERE id = ANY (%s)", [job_ids])
    with refused(engine, f"NEW.id = {job_ids[2]}"):
        graphs.postpone(engine, job_ids)
    states = [helpers.state_of(engine, job_id) for job_id in job_ids]
    assert states == ["waiting", "waiting", "ready", "waiting", "waiting"]


def prove_end_batches(engine: Any) -> None:
    callbacks = dict.fromkeys(["on_success", "on_complete", "on_failure"])
    batch_ids = []
    for _ in range(5):
        created = batches.create_batch(engine, description="", parent_id=None, callbacks=callbacks)
        batches.close_batch(engine, created.batch_id)
        batch_ids.append(created.batch_id)
    with refused(engine, f"NEW.id = {batch_ids[2]}", table="pgqueue_batch"):
        helpers.sweep_ends(engine, "batches")
    rows = helpers.rows_of(engine, "pgqueue_batch")
    assert [batch_id for batch_id in batch_ids if rows[batch_id]["completed_at"] is None] == [batch_ids[2]]


def prove_compensate(engine: Any) -> None:
    job_ids = [dead_job(engine, "step") for _ in range(5)]
    with refused(engine, f"NEW.job_id = {job_ids[2]}", table="pgqueue_step"):
        done = sagas.compensate(engine, job_ids)
    assert sorted(each.compensated_id for each in done.added) == [job_id for job_id in job_ids if job_id != job_ids[2]]
    assert [row for row, _ in done.refused] == [job_ids[2]]


def prove_schedule_runs(engine: Any) -> None:
    schedule_id = helpers.make_schedule(engine)
    for day in range(1, 7):
        insert(engine, "pgqueue_schedulerun", schedule_id=schedule_id, tick_at=f"2001-01-0{day}")
    first, second, *_ = sorted(helpers.rows_of(engine, "pgqueue_schedulerun"))
    with refused(engine, f"OLD.id = {second}", "DELETE", "pgqueue_schedulerun"):
        schedules.prune_schedule_runs(engine, 0.0, kept=1)
    assert second in (left := helpers.rows_of(engine, "pgqueue_schedulerun")) and first not in left and len(left) == 2


def prove_merge(engine: Any) -> None:
    for number in range(5):
        insert(engine, "pgqueue_rollup", span="part", starts_at=OLD, task_name=f"t{number}")
    bad = sorted(helpers.rows_of(engine, "pgqueue_rollup"))[2]
    with refused(engine, f"OLD.id = {bad}", "DELETE", "pgqueue_rollup"):
        assert rollups.merge_rollups(engine) >= 4
    parts = [row_id for row_id, row in helpers.rows_of(engine, "pgqueue_rollup").items() if row["span"] == "part"]
    assert parts == [bad]


def prove_append(engine: Any) -> None:
    counts = dict.fromkeys(("succeeded", "retried", "dead", "cancelled", "released", "snoozed", "crashed"), 1)
    times: dict[str, Any] = {"wait_seconds": 1.0, "run_seconds": 1.0}
    times |= {key: [1] for key in ("wait_buckets", "wait_counts", "run_buckets", "run_counts")}
    names = [f"t{number}" for number in range(5)]
    rows = [{"queue_name": "q", "task_name": name, "exception_class": "", **counts, **times} for name in names]
    with refused(engine, "NEW.task_name = 't2'", "INSERT", "pgqueue_rollup"):
        rollups.append_rollups(engine, rows, 0.0)
    assert {row["task_name"] for row in helpers.rows_of(engine, "pgqueue_rollup").values()} == {*names} - {"t2"}


KEYS = ("a", "b", "c")


def prove_breaker_counts(engine: Any) -> None:
    with refused(engine, "NEW.limit_key = 'b'", "INSERT", "pgqueue_breaker_count"):
        breakers.add_counts(engine, dict.fromkeys(KEYS, Ended(failed=5)))
    assert {row["limit_key"] for row in helpers.rows_of(engine, "pgqueue_breaker_count").values()} == {"a", "c"}


def open_keys(engine: Any) -> set[str]:
    return {row["limit_key"] for row in helpers.rows_of(engine, "pgqueue_open_breaker").values()}


def prove_open_and_close(engine: Any) -> None:
    breakers.add_counts(engine, dict.fromkeys(KEYS, Ended(failed=5)))
    breaker = Breaker(failures=0.5, attempts=2)
    with refused(engine, "NEW.limit_key = 'b'", "INSERT", "pgqueue_open_breaker"), engine.transaction():
        opened, _ = breakers.open_breakers(engine, dict.fromkeys(KEYS, Suspect(breaker)))
    assert {each.limit_key for each in opened} == open_keys(engine) == {"a", "c"}
    with refused(engine, "OLD.limit_key = 'c'", "DELETE", "pgqueue_open_breaker"), engine.transaction():
        assert breakers.close_breakers(engine, dict.fromkeys(KEYS, 10**9)).done == ["a"]
    assert open_keys(engine) == {"c"}


def prove_erase_callbacks(engine: Any) -> None:
    for number in range(1, 6):
        insert(engine, "pgqueue_batch", id=number, on_failure="{}")
    with refused(engine, "NEW.id = 3", table="pgqueue_batch"):
        erase_callbacks(engine, dict.fromkeys(range(1, 6), ('{"x": 1}', None, None)))
    rows = helpers.rows_of(engine, "pgqueue_batch")
    assert [number for number in rows if rows[number]["on_failure"] == {}] == [3]


def prove_keep_logs(engine: Any) -> None:
    helpers.make_jobs(engine, 3)
    keys = [job.key for job in helpers.claim_all(engine)]
    rows = [KeptLog(key, LogBuffer().content()) for key in keys]
    bad = keys[1].execution_id
    with refused(engine, f"NEW.execution_id = {bad}", "INSERT", "pgqueue_execution_log"):
        done = refused_rows.divided(engine, rows, lambda part: logs.keep_logs(engine, part))
    assert len(done.refused) == 1
    assert set(helpers.rows_of(engine, "pgqueue_execution_log")) == {key.execution_id for key in keys} - {bad}


PROOFS: dict[str, Callable[[Any], None]] = {
    "WAKE": lambda engine: prove_wake(engine, lambda engine, ids: steps.wake(engine, "paid", "7")),
    "WAKE_SUSPENDED": lambda engine: prove_wake(engine, steps.wake_suspended),
    "REQUEUE": prove_requeue,
    "REMOVE_ORPHANS": prove_remove_orphans,
    "REMOVE_STEPS": prove_remove_steps,
    "ADVANCE": prove_advance,
    "POSTPONE": prove_postpone,
    "END_BATCHES": prove_end_batches,
    "COMPENSATE": prove_compensate,
    "PRUNE_SCHEDULE_RUNS": prove_schedule_runs,
    "MERGE_ROLLUPS": prove_merge,
    "APPEND_ROLLUPS": prove_append,
    "ADD_BREAKER_COUNTS": prove_breaker_counts,
    "OPEN_BREAKERS": prove_open_and_close,
    "CLOSE_BREAKERS": prove_open_and_close,
    "ERASE_CALLBACKS": prove_erase_callbacks,
    "KEEP_LOGS": prove_keep_logs,
}


@pytest.fixture(autouse=True)
def each_refusal_is_logged(monkeypatch):
    monkeypatch.setattr(ranges, "_logged_at", {})
    monkeypatch.setattr(ranges, "_left", {}, raising=False)


def test_all_statements_that_write_are_named_once():
    """A new statement must be divided, or have a reason not to be."""
    groups = [set(REMOVALS), set(PROOFS), set(PROVEN), set(ALONE), set(EXEMPT)]
    assert set().union(*groups) == {name for name, text in STATEMENTS.items() if WRITES.search(text)}
    assert sum(map(len, groups)) == len(set().union(*groups))


@pytest.mark.parametrize("test", sorted(set(PROVEN.values())))
def test_proof_of_other_statements_exists(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TOP / path).read_text()


@pytest.mark.promise("bad-row-old-records")
@pytest.mark.parametrize("name", REMOVALS)
def test_removal_one_row_refused_removes_the_others(committing, engine, caplog, name):
    table, key, columns, remove, named = REMOVALS[name]
    for number in range(1, 6):
        names = {named: number if named == "job_id" else f"n{number}"} if named else {}
        insert(engine, table, **{key: number, **columns, **names})
    with refused(engine, f"OLD.{key} = 3", "DELETE", table):
        remove(engine)
        assert [row[key] for row in helpers.rows_of(engine, table).values()] == [3]
        assert "3 was refused by the database" in caplog.text
        remove(engine)
    remove(engine)
    assert helpers.rows_of(engine, table) == {}


@pytest.mark.promise("bad-row-any-statement")
@pytest.mark.parametrize("name", PROOFS)
def test_statement_one_row_refused_writes_the_others(committing, engine, name):
    PROOFS[name](engine)


def test_in_ranges_error_of_all_rows_is_raised_at_once(engine):
    seen = []

    def write(part):
        seen.append(part)
        engine.execute("DO $$BEGIN RAISE EXCEPTION 'all of them' USING ERRCODE = '53100'; END$$")

    with pytest.raises(Exception, match="all of them"):
        ranges.in_ranges(engine, "nothing", write)
    assert seen == [ranges.ALL]


def test_in_ranges_failure_without_any_row_is_raised(engine):
    """A missing privilege refuses the statement for each range, also for one without rows."""
    seen = []

    def write(part):
        seen.append(part)
        engine.execute("DO $$BEGIN RAISE EXCEPTION 'no privilege' USING ERRCODE = '42501'; END$$")

    with pytest.raises(Exception, match="no privilege"):
        ranges.in_ranges(engine, "nothing", write)
    assert seen == [ranges.ALL, ranges.NONE]


def test_in_ranges_all_rows_refused_ends(engine, monkeypatch):
    monkeypatch.setattr(ranges, "MOST_REFUSED", 5)
    for number in range(1, 21):
        insert(engine, "pgqueue_event", id=number)
    with refused(engine, "true", "DELETE", "pgqueue_event"):
        assert events.prune_events(engine, 0.0).removed == 0
    with refused(engine, "OLD.id <= 4", "DELETE", "pgqueue_event"):
        events.prune_events(engine, 0.0)
    assert sorted(helpers.rows_of(engine, "pgqueue_event")) == [1, 2, 3, 4]


def test_in_ranges_many_refused_reaches_all_in_later_calls(engine, monkeypatch):
    """Each call tries other rows first than the call before it, and the last call begins with the first rows again."""
    monkeypatch.setattr(ranges, "MOST_REFUSED", 5)
    for number in range(1, 31):
        insert(engine, "pgqueue_event", id=number)
    with refused(engine, "OLD.id <= 22 OR OLD.id = 28", "DELETE", "pgqueue_event"):
        for _ in range(5):
            events.prune_events(engine, 0.0)
        assert sorted(helpers.rows_of(engine, "pgqueue_event")) == [*range(1, 23), 28]
    with refused(engine, "OLD.id > 22", "DELETE", "pgqueue_event"):
        events.prune_events(engine, 0.0)
    assert sorted(helpers.rows_of(engine, "pgqueue_event")) == [28]


def test_in_ranges_slow_statement_ends_in_time_and_goes_on(monkeypatch, engine):
    """Even a call with time for one part only divides it, so that later calls reach every row."""
    clock, done, calls = helpers.Clock(monkeypatch, ranges), set(), []

    def write(part):
        clock.pass_by(ranges.MOST_SECONDS)
        calls.append(part)
        if part.first_id <= 7 <= part.last_id:
            engine.execute("DO $$BEGIN RAISE EXCEPTION 'not this one'; END$$")
        done.update(number for number in range(100) if part.first_id <= number <= part.last_id)

    for _ in range(60):
        before = len(calls)
        ranges.in_ranges(engine, "nothing", write)
        assert len(calls) - before == 3, "all rows, no row, and one part"
        left = ranges._left.get("nothing", [])
        assert sum(part.last_id - part.first_id + 1 for part in left) <= 2**63, "no part is there twice"
    assert done == set(range(100)) - {7}


def test_wake_missed_many_refused_wakes_the_others_at_once(committing, engine, monkeypatch):
    """Each part names its jobs: no part reads the waits again. Without refused jobs, two statements are enough."""
    helpers.Clock(monkeypatch, refused_rows)  # a slow machine must not end the division
    job_ids = waiting_jobs(engine, 400)
    seen = statements_of(monkeypatch)
    events.send_event(engine, "paid", "7", None)
    with refused(engine, "NEW.id % 2 = 0"):
        woken = steps.wake_missed(engine)
    assert sorted(woken.job_ids) == due(engine) == [job_id for job_id in job_ids if job_id % 2]
    assert (woken.mark, seen.count("missed_wake_ups")) == (None, 1)
    assert len(seen) <= 2 * 400 + 2
    seen.clear()
    assert len(steps.wake_missed(engine).job_ids) == 200
    assert len(seen) == 2
    assert steps.wake_missed(engine).job_ids == []
    assert len(seen) == 3


def test_halves_cover_the_range_without_a_gap():
    for whole in (ranges.ALL, ranges.IdRange(5000, ranges.HIGHEST_ID), ranges.IdRange(3, 9), ranges.IdRange(4, 5)):
        parts = whole.halves()
        assert (parts[0].first_id, parts[-1].last_id) == whole
        assert [part.last_id + 1 for part in parts[:-1]] == [part.first_id for part in parts[1:]]
        assert all(part.first_id <= part.last_id for part in parts)
