"""Tests of ids that are used again: after `TRUNCATE … RESTART IDENTITY` (`manage.py flush`) or a restored older dump.

A worker that keeps running still has executions from before in flight. Soon, new executions of other jobs have the same
ids. No write of such a worker may change the new executions.
"""

import pytest

from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions, leases, rescues
from django_pgqueue.lifecycle.completions import SUCCEEDED
from django_pgqueue.lifecycle.types import Cancelled, Noted, Released, TransitionStatus
from tests import helpers

pytestmark = [pytest.mark.django_db(transaction=True)]


def start_ids_anew(engine):
    helpers.empty_tables(engine)


def restore_an_older_dump(engine):
    """Restore the tables and the sequence of the execution ids to their state before the claim."""
    engine.execute("DELETE FROM pgqueue_execution")
    engine.execute("UPDATE pgqueue_job SET state = 'ready', attempt = 0")
    engine.execute("SELECT setval('pgqueue_execution_id_seq', 1, false)")


def one_running(engine):
    if not engine.execute("SELECT FROM pgqueue_job").fetchall():
        helpers.make_job(engine)
    return helpers.claim_one(engine)


FENCED = {
    "succeed": lambda engine, key: completions.succeed(engine, helpers.succeeded(key)),
    "succeed_and_discard": lambda engine, key: completions.succeed_and_discard(engine, [key]),
    "fail": lambda engine, key: completions.fail(engine, helpers.failed(key, None)),
    "crash": lambda engine, key: completions.fail(engine, helpers.failed(key, 0.0, "crashed")),
    "release": lambda engine, key: completions.release(engine, [Released(key)]),
    "snooze": lambda engine, key: completions.snooze(engine, [Released(key, 60.0)]),
    "end_cancelled": lambda engine, key: completions.end_cancelled(engine, [Cancelled(key, None, 0.0)]),
    "note_progress": lambda engine, key: completions.note_progress(engine, [Noted(key, Progress(7.0), 0.0)]),
}


@pytest.mark.promise("restarted-ids-do-no-harm", "defect-restarted-ids")
@pytest.mark.parametrize("ids_recur", [start_ids_anew, restore_an_older_dump])
@pytest.mark.parametrize("act", FENCED)
def test_transition_of_old_execution_leaves_new_one_open(engine, act, ids_recur):
    old = one_running(engine)
    ids_recur(engine)
    new = one_running(engine)
    assert new.execution_id == old.execution_id
    before = helpers.everything(engine)
    result = FENCED[act](engine, old.key)[old.execution_id]
    status = result.status
    assert status is (TransitionStatus.ALREADY_DONE if act == "succeed_and_discard" else TransitionStatus.LOST)
    assert helpers.everything(engine) == before
    done = FENCED[act](engine, new.key)[new.execution_id]
    assert done.status is TransitionStatus.DONE


@pytest.mark.parametrize("act", sorted(set(FENCED) - {"note_progress"}))
def test_end_of_old_execution_after_new_one_ended_is_lost(engine, act):
    """SETTLE must not mistake the end of the new execution for an earlier write of the old execution."""
    old = one_running(engine)
    start_ids_anew(engine)
    new = one_running(engine)
    assert FENCED[act](engine, new.key)
    result = FENCED[act](engine, old.key)[old.execution_id]
    status = result.status
    assert status is (TransitionStatus.ALREADY_DONE if act == "succeed_and_discard" else TransitionStatus.LOST)


def test_rescue_execution_id_reused_leaves_new_execution(engine, second, gates):
    old = one_running(engine)
    helpers.end_lease(engine)

    def ids_restart_meanwhile(execution):
        start_ids_anew(second)
        assert one_running(second).execution_id == old.execution_id
        helpers.end_lease(second)
        return 0.0

    assert rescues.rescue(engine, ids_restart_meanwhile, error="lost") == []
    assert helpers.execution_row(engine, old.execution_id)["outcome"] is None


def test_remove_orphans_of_old_execution_leaves_new_orphan(engine):
    old = one_running(engine)
    start_ids_anew(engine)
    new = one_running(engine)
    engine.execute("DELETE FROM pgqueue_job")
    completions.remove_orphans(engine, [old.key])
    assert list(helpers.rows_of(engine, "pgqueue_execution")) == [new.execution_id]
    completions.remove_orphans(engine, [new.key])
    assert helpers.rows_of(engine, "pgqueue_execution") == {}


def test_key_of_claim_equals_key_of_open_execution(engine):
    claimed = one_running(engine)
    [execution] = leases.open_executions(engine, 1)
    assert execution.key == claimed.key == helpers.key_of(engine, claimed.execution_id)


def test_fence_with_rounded_floats_still_matches(engine):
    """A role can have `extra_float_digits = 0`, which rounds a double to 15 digits."""
    engine.execute("SET extra_float_digits = 0")
    claimed = one_running(engine)
    engine.execute("SET extra_float_digits = 1")
    assert completions.succeed(engine, helpers.succeeded(claimed.key)) == {claimed.execution_id: SUCCEEDED}
