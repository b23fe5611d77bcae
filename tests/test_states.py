"""The state machine, transition by transition: each one in every state that a job can be in.

A transition reaches only the states that `states.TRANSITIONS` lists for the state of the job, and all listed states are
reached. A transition that is not listed for a state changes nothing: the tests compare the whole rows of the job and of
all its executions, and the result of the transition reports that nothing was done.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from django_pgqueue import lifecycle, states
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import (
    audit,
    claims,
    completions,
    expiry,
    graphs,
    history,
    leases,
    operator,
    pruning,
    steps,
    stranded,
    ticks,
)
from django_pgqueue.lifecycle.types import EPOCH, Cancelled, Noted, Released, TransitionResult, TransitionStatus
from django_pgqueue.states import FINISHED, GONE, TRANSITIONS, State, StepKind, TransitionName
from tests import helpers

pytestmark = pytest.mark.slow

SITUATIONS = (
    *("new", "ready", "ready later", "running", "succeeded", "dead", "cancelled", "waiting", "waiting later", "gone"),
)
STATE_OF = {"new": State.READY, "ready later": State.READY, "waiting later": State.WAITING, "gone": GONE}
NOTHING_TO_DO = {
    ("ready later", TransitionName.CLAIM),
    ("new", TransitionName.RUN_NOW),
    ("ready", TransitionName.RUN_NOW),
    ("waiting", TransitionName.RUN_NOW),
    ("new", TransitionName.WAKE),
    ("ready", TransitionName.WAKE),
}
"""A job that is due later is not claimed, and a job that is already due cannot be made due."""


MAKING = {TransitionName.ENQUEUE, TransitionName.FIRE}
"""Transitions that always make a new job."""


class Variant(NamedTuple):
    """One way to make a transition. `do` returns its result; `idle` has the results that mean nothing was done."""

    act: TransitionName
    label: str
    do: Callable[..., Any]
    idle: tuple[Any, ...]
    asked_to_cancel: bool = False

    def __str__(self) -> str:
        return f"{self.act}-{self.label}"


def claim(engine, specimen):
    return [(job.job_id, job.attempt) for job in helpers.claim_all(engine)]


def claim_one(engine, specimen):
    return claims.claim_one(engine, specimen.job_id or 0, worker_id=1, lease_seconds=60.0)


def enqueue(engine, specimen):
    """Return the id of the new job, which is not the id of the specimen."""
    return helpers.make_job(engine)


def enqueue_node(engine, specimen):
    """Return the id of the new job, which waits for another one."""
    return helpers.make_nodes(engine, needs=[helpers.make_job(engine, queue_name="other")])[0]


def advance(*, succeeds):
    """End a dependency of the specimen, beside which it has no other."""

    def end_and_advance(engine, specimen):
        ended = helpers.make_job(engine, queue_name="other")
        engine.execute(
            "UPDATE pgqueue_job SET state = %s, finished_at = now() WHERE id = %s",
            ["succeeded" if succeeds else "dead", ended],
        )
        engine.execute("DELETE FROM pgqueue_dependency WHERE job_id = %s", [specimen.job_id])
        graphs.add_dependencies(engine, [(specimen.job_id or 0, ended, "cancel")])
        return graphs.advance(engine, [ended]).jobs

    return end_and_advance


def restore(engine, specimen):
    """Restore the specimen after the retry of a job whose end has cancelled it."""
    retried = helpers.make_job(engine, queue_name="other")
    engine.execute(
        "INSERT INTO pgqueue_dependency (job_id, needs_id, policy, has_cancelled) VALUES (%s, %s, 'cancel', true)",
        [specimen.job_id or 0, retried],
    )
    before = helpers.state_of(engine, specimen.job_id)
    with engine.transaction():
        assert graphs.restore(engine, [retried]).keys() <= {specimen.job_id}
    return helpers.state_of(engine, specimen.job_id) != before


def postpone(engine, specimen):
    """Find that a dependency of the specimen has not ended."""
    unfinished = helpers.make_job(engine, queue_name="other")
    graphs.add_dependencies(engine, [(specimen.job_id or 0, unfinished, "cancel")])
    return graphs.postpone(engine, [specimen.job_id or 0])


def retry_node(engine, specimen):
    """Retry a job whose dependency has not ended."""
    [needed] = helpers.make_nodes(engine)
    engine.execute("UPDATE pgqueue_job SET queue_name = 'other' WHERE id = %s", [needed])
    engine.execute(
        "UPDATE pgqueue_job SET in_graph = true WHERE id = %s AND finished_at IS NOT NULL", [specimen.job_id]
    )
    graphs.add_dependencies(engine, [(specimen.job_id or 0, needed, "cancel")])
    return operator.retry(engine, [specimen.job_id]).get(specimen.job_id)


def fire(engine, specimen):
    """Return the id of the new job, as `enqueue` does."""
    return helpers.fire(
        engine, helpers.schedule_of(engine, helpers.make_schedule(engine, f"of {specimen.job_id}"))
    ).job_id


def run_schedule(engine, specimen):
    schedule_id = helpers.make_schedule(engine, f"of {specimen.job_id}", due_in=3600.0)
    schedule = helpers.schedule_of(engine, schedule_id)
    return ticks.run_schedule(engine, schedule, helpers.new_job()).job_id


def extend(engine, specimen):
    return leases.extend_executions(engine, {specimen.key: 600.0})[specimen.execution_id]


def note_progress(engine, specimen):
    noted = Noted(specimen.key, Progress(1.0, 2.0, "half"), 0.0)
    return completions.note_progress(engine, [noted])[specimen.execution_id]


def succeed(engine, specimen):
    return completions.succeed(engine, helpers.succeeded(specimen.key, result='"new"'))[specimen.execution_id]


def discard(engine, specimen):
    return completions.succeed_and_discard(engine, [specimen.key])[specimen.execution_id]


def fail(delay, outcome="failed"):
    return lambda engine, specimen: completions.fail(engine, helpers.failed(specimen.key, delay, outcome))[
        specimen.execution_id
    ]


def release(delay=None, unknown=False):
    return lambda engine, specimen: completions.release(
        engine, [Released(specimen.key, delay, "why")], unknown=unknown
    )[specimen.execution_id]


def snooze(engine, specimen):
    return completions.snooze(engine, [Released(specimen.key, 60.0, "later")])[specimen.execution_id]


def suspend(engine, specimen):
    suspension = Suspension("nap", 1.0, StepKind.SLEEP, 60.0)
    row = steps.SuspendedExecution(specimen.key, suspension, *helpers.AGES)
    return steps.suspend(engine, [row])[specimen.execution_id]


def wake(engine, specimen):
    """Wake a job that a wait suspends: it is due at the end of the wait. Only a job that is due later can be woken."""
    engine.execute(
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, wake_at, event_name, event_key) "
        "SELECT id, 'wait', 1, 'event', 1, statement_timestamp(), run_after, 'approved', '7' FROM pgqueue_job "
        "WHERE id = %s",
        [specimen.job_id],
    )
    return steps.wake(engine, "approved", "7")[0]


def replace(engine, specimen):
    """Replace the call of a ready job. If the specimen is not ready, add a job and leave the specimen unchanged."""
    engine.execute("UPDATE pgqueue_job SET unique_key = 'k' WHERE id = %s AND state = 'ready'", [specimen.job_id])
    added = helpers.enqueue_unique(engine, "k", replace=True, arguments='{"args":[8],"kwargs":{}}')
    return added is not None and added.job_id == specimen.job_id


def expire(engine, specimen):
    """Expire a ready job that should have started a second ago."""
    past = "statement_timestamp() - interval '1 s'"
    engine.execute(f"UPDATE pgqueue_job SET expires_at = {past} WHERE id = %s AND state = 'ready'", [specimen.job_id])
    return expiry.expire(engine, worker_id=1, error="too late")


def end_cancelled(engine, specimen):
    return completions.end_cancelled(engine, [Cancelled(specimen.key, None, 0.0, "obeyed")])[specimen.execution_id]


def rescue(delay):
    def expire_and_rescue(engine, specimen):
        helpers.end_lease(engine, specimen.execution_id)
        return helpers.rescue(engine, delay).get(specimen.execution_id)

    return expire_and_rescue


def requeue(delay):
    """Requeue a running job after its open execution was deleted."""

    def delete_and_requeue(engine, specimen):
        engine.execute("DELETE FROM pgqueue_execution WHERE job_id = %s AND outcome IS NULL", [specimen.job_id])
        found = stranded.requeue(engine, lambda job: delay, worker_id=1, error="its execution was removed")
        return {job.job_id: result for job, result in found.requeued}.get(specimen.job_id)

    return delete_and_requeue


def rescue_too_early(engine, specimen):
    return helpers.rescue(engine, 0.0).get(specimen.execution_id)


def set_aside(engine, specimen):
    return claims.set_aside(engine, specimen.job_id, worker_id=1, exception_class="DataError", error="cannot be read")


def operators(function):
    return lambda engine, specimen: function(engine, [specimen.job_id]).get(specimen.job_id)


def prune(engine, specimen):
    return sum(pruning.prune(engine, state, 0.0).removed for state in FINISHED)


def prune_task(engine, specimen):
    return sum(pruning.prune(engine, state, 0.0, task_name=helpers.NOOP).removed for state in FINISHED)


def as_finished(engine, specimen):
    """Return the job with its `finished_at`, or with a made-up one if it is not finished."""
    rows = engine.execute("SELECT finished_at FROM pgqueue_job WHERE id = %s", [specimen.job_id]).fetchall()
    return {specimen.job_id or 0: (rows and rows[0][0]) or EPOCH}


def archive(engine, specimen):
    return history.archive(engine, as_finished(engine, specimen))


def remove_archived(engine, specimen):
    return history.remove_archived(engine, as_finished(engine, specimen))


def erase(engine, specimen):
    audit_id = audit.begin_audit(engine, "erase", {})
    kinds = {"arguments": True, "results": True, "errors": True, "logs": True}
    return history.erase(engine, as_finished(engine, specimen), audit_id=audit_id, **kinds)


NOT_DONE = (
    TransitionResult(TransitionStatus.LOST),
    TransitionResult(TransitionStatus.ALREADY_DONE),
)

VARIANTS = [
    Variant(TransitionName.ENQUEUE, "one", enqueue, ()),
    Variant(TransitionName.ENQUEUE, "a node", enqueue_node, ()),
    Variant(TransitionName.FIRE, "a tick", fire, ()),
    Variant(TransitionName.FIRE, "by an operator", run_schedule, ()),
    Variant(TransitionName.CLAIM, "one", claim, ([],)),
    Variant(TransitionName.CLAIM_ONE, "by its id", claim_one, (None,)),
    Variant(TransitionName.EXTEND, "one", extend, NOT_DONE),
    Variant(TransitionName.NOTE_PROGRESS, "one", note_progress, NOT_DONE),
    Variant(TransitionName.SUCCEED, "kept", succeed, NOT_DONE),
    Variant(TransitionName.SUCCEED, "kept though asked to cancel", succeed, NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.SUCCEED, "discarded", discard, NOT_DONE),
    Variant(TransitionName.FAIL, "retried", fail(60.0), NOT_DONE),
    Variant(TransitionName.FAIL, "for the last time", fail(None), NOT_DONE),
    Variant(TransitionName.FAIL, "crashed", fail(60.0, "crashed"), NOT_DONE),
    Variant(TransitionName.FAIL, "asked to cancel", fail(60.0), NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.FAIL, "for the last time and asked to cancel", fail(None), NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.RELEASE, "as it was", release(), NOT_DONE),
    Variant(TransitionName.RELEASE, "unknown task", release(15.0, unknown=True), NOT_DONE),
    Variant(TransitionName.RELEASE, "asked to cancel", release(), NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.SNOOZE, "later", snooze, NOT_DONE),
    Variant(TransitionName.SNOOZE, "asked to cancel", snooze, NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.SUSPEND, "for a sleep", suspend, NOT_DONE),
    Variant(TransitionName.SUSPEND, "asked to cancel", suspend, NOT_DONE, asked_to_cancel=True),
    Variant(TransitionName.END_CANCELLED, "one", end_cancelled, NOT_DONE),
    Variant(TransitionName.RESCUE, "retried", rescue(30.0), (None,)),
    Variant(TransitionName.RESCUE, "for the last time", rescue(None), (None,)),
    Variant(TransitionName.RESCUE, "asked to cancel", rescue(30.0), (None,), asked_to_cancel=True),
    Variant(TransitionName.REQUEUE, "retried", requeue(30.0), (None,)),
    Variant(TransitionName.REQUEUE, "for the last time", requeue(None), (None,)),
    Variant(TransitionName.REQUEUE, "asked to cancel", requeue(30.0), (None,), asked_to_cancel=True),
    Variant(TransitionName.SET_ASIDE, "one", set_aside, (None,)),
    Variant(TransitionName.REPLACE, "one", replace, (False,)),
    Variant(TransitionName.EXPIRE, "one", expire, ([],)),
    Variant(TransitionName.CANCEL, "one", operators(operator.cancel), (None,)),
    Variant(TransitionName.RETRY, "one", operators(operator.retry), (None,)),
    Variant(TransitionName.RETRY, "a node", retry_node, (None,)),
    Variant(TransitionName.ACKNOWLEDGE, "one", operators(operator.acknowledge), (None,)),
    Variant(TransitionName.ADVANCE, "after a success", advance(succeeds=True), ([],)),
    Variant(TransitionName.ADVANCE, "after a failure", advance(succeeds=False), ([],)),
    Variant(TransitionName.RESTORE, "one", restore, (False,)),
    Variant(TransitionName.POSTPONE, "one", postpone, ([],)),
    Variant(TransitionName.RUN_NOW, "one", operators(operator.run_now), (None,)),
    Variant(TransitionName.ARCHIVE, "to the table", archive, ([],)),
    Variant(TransitionName.ARCHIVE, "in a file", remove_archived, ([],)),
    Variant(TransitionName.ERASE, "all values", erase, ([],)),
    Variant(TransitionName.WAKE, "one", wake, ([],)),
    Variant(TransitionName.MOVE, "to a queue", operators(partial(operator.move, queue_name="other")), (None,)),
    Variant(TransitionName.MOVE, "to a priority", operators(partial(operator.move, priority=7)), (None,)),
    Variant(
        TransitionName.SET_MAX_ATTEMPTS, "one", operators(partial(operator.set_max_attempts, max_attempts=77)), (None,)
    ),
    Variant(TransitionName.DELETE, "one", operators(operator.delete), (None,)),
    Variant(TransitionName.PRUNE, "all tasks", prune, (0,)),
    Variant(TransitionName.PRUNE, "one task", prune_task, (0,)),
]


def of_job(engine, job_id):
    executions = helpers.rows_of(engine, "pgqueue_execution")
    return helpers.job_row(engine, job_id), [row for row in executions.values() if row["job_id"] == job_id]


def reached(engine, specimen, variant):
    """Make the transition; return the state afterwards, its result, and whether any row of the job changed."""
    before = of_job(engine, specimen.job_id)
    answer = variant.do(engine, specimen)
    after = of_job(engine, specimen.job_id)
    job_id = answer if variant.act in MAKING and before[0] is None else specimen.job_id
    return helpers.state_of(engine, job_id), answer, after != before or job_id != specimen.job_id


def prepared(engine, job_in, situation, variant):
    specimen = job_in(situation)
    if situation == "running" and variant.asked_to_cancel:
        assert operator.cancel(engine, [specimen.job_id]) == {specimen.job_id: State.RUNNING}
    return specimen


def is_as_listed(situation, variant, state, answer, changed):
    """Return whether a transition has done in a situation what the table says."""
    start = STATE_OF.get(situation, situation)
    targets = TRANSITIONS[start].get(variant.act)
    if targets is None or (situation, variant.act) in NOTHING_TO_DO:
        return not changed and state == start and (variant.act in MAKING or answer in variant.idle)
    return changed and state in targets and answer not in variant.idle


def test_transitions_reach_the_listed_states_and_no_others(engine, job_in):
    found: dict[Any, dict[Any, set[Any]]] = {}
    wrong = []
    for situation in SITUATIONS:
        for variant in VARIANTS:
            helpers.begin_anew(engine)
            specimen = prepared(engine, job_in, situation, variant)
            state, answer, changed = reached(engine, specimen, variant)
            if not is_as_listed(situation, variant, state, answer, changed):
                wrong.append((situation, str(variant), state, answer, changed))
            if changed:
                found.setdefault(STATE_OF.get(situation, situation), {}).setdefault(variant.act, set()).add(state)
    assert wrong == []
    assert found == TRANSITIONS


@pytest.mark.quick
def test_transition_names_are_functions_of_lifecycle():
    modules = [module for module in vars(lifecycle).values() if isinstance(module, ModuleType)]
    for act in TransitionName:
        assert any(callable(getattr(module, act.value, None)) for module in modules), act


@pytest.mark.quick
def test_transitions_cover_each_state():
    assert set(TRANSITIONS) == {GONE, *State}
    assert {variant.act for variant in VARIANTS} == set(TransitionName)
    assert {state for state, acts in TRANSITIONS.items() if TransitionName.RETRY in acts} == states.FINISHED


def test_rescue_before_the_lease_ends_changes_nothing(engine, job_in):
    specimen = job_in("running")
    before = of_job(engine, specimen.job_id)
    assert rescue_too_early(engine, specimen) is None
    assert of_job(engine, specimen.job_id) == before


@pytest.mark.quick
def test_release_does_not_count_the_attempt_but_failure_does(engine, job_in):
    assert helpers.job_row(engine, job_in("ready").job_id)["attempt"] == 0
    operator.cancel(engine, list(helpers.rows_of(engine, "pgqueue_job")))
    assert helpers.job_row(engine, job_in("ready later").job_id)["attempt"] == 1


@pytest.mark.promise("lost-host-charges")
@pytest.mark.parametrize(("free_slots", "crashes"), [(1, 1), (0, 0)], ids=["started", "not started"])
def test_rescue_counts_a_crash_only_for_started_jobs(engine, free_slots, crashes):
    job_id = helpers.make_job(engine)
    [claimed] = helpers.claim_all(engine, limit=1, free_slots=free_slots)
    helpers.end_lease(engine)
    assert helpers.rescue(engine) == {claimed.execution_id: TransitionResult(TransitionStatus.DONE, State.READY)}
    row = helpers.job_row(engine, job_id)
    assert (row["attempt"], row["crashes"]) == (1, crashes)
    assert row["isolated"] == bool(crashes)


@pytest.mark.parametrize(("outcome", "isolated"), [("crashed", True), ("failed", False)])
def test_fail_after_crash_isolates_later_attempts(engine, outcome, isolated):
    helpers.make_job(engine)
    first = helpers.claim_one(engine)
    assert (first.isolated, first.crashes) == (False, 0)
    completions.fail(engine, helpers.failed(first.key, outcome=outcome))
    second = helpers.claim_one(engine)
    assert (second.isolated, second.crashes) == (isolated, int(isolated))
    completions.fail(engine, helpers.failed(second.key, None))
    operator.retry(engine, [second.job_id])
    after_retry = helpers.claim_one(engine)
    assert (after_retry.isolated, after_retry.crashes, after_retry.attempt) == (isolated, 0, 1)


def test_retry_resets_counters_and_keeps_executions(engine, job_in):
    specimen = job_in("dead")
    engine.execute("UPDATE pgqueue_job SET crashes = 2, cancel_requested_at = now(), unknown_since = now()")
    executions = helpers.rows_of(engine, "pgqueue_execution")
    assert operator.retry(engine, [specimen.job_id]) == {specimen.job_id: State.READY}
    row = helpers.job_row(engine, specimen.job_id)
    wanted = {"attempt": 0, "crashes": 0, "finished_at": None, "cancel_requested_at": None, "unknown_since": None}
    assert {name: row[name] for name in wanted} == wanted
    assert helpers.rows_of(engine, "pgqueue_execution") == executions
    assert [job.attempt for job in helpers.claim_all(engine)] == [1]


@pytest.mark.parametrize(("state", "kept"), [("succeeded", None), ("dead", 1.0), ("cancelled", 1.0)])
def test_retry_keeps_progress_unless_job_succeeded(engine, job_in, state, kept):
    """A retried task can continue from its progress. A job that had succeeded starts again from the beginning."""
    specimen = job_in(state)
    engine.execute("UPDATE pgqueue_job SET progress_done = 1, progress_total = 2, progress_message = 'half', "
                   "progress_at = now()")  # fmt: skip
    operator.retry(engine, [specimen.job_id])
    row = helpers.job_row(engine, specimen.job_id)
    progress = [row[f"progress_{name}"] for name in ("done", "total", "message", "at")]
    assert progress[0] == kept
    assert [value is None for value in progress] == [kept is None] * 4


def test_retry_succeeded_job_clears_its_result(engine):
    job_id = helpers.make_job(engine)
    completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key, result="7"))
    assert helpers.job_row(engine, job_id)["result"] == 7
    operator.retry(engine, [job_id])
    assert helpers.job_row(engine, job_id)["result"] is None


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_prune_keeps_jobs_within_their_retention(engine, job_in, state):
    specimen = job_in(state)
    assert pruning.prune(engine, state, 3600.0).removed == 0
    assert pruning.prunable(engine, state, 0.0) == (1, 0)
    assert helpers.state_of(engine, specimen.job_id) == state
    others = FINISHED - {state}
    assert [pruning.prune(engine, other, 0.0).removed for other in others] == [0, 0]
    assert pruning.prune(engine, state, 0.0, other_task_names=[helpers.NOOP]).removed == 0
    assert pruning.prune(engine, state, 0.0, task_name="other").removed == 0
    assert pruning.prune(engine, state, 0.0).removed == 1
    assert helpers.rows_of(engine, "pgqueue_execution") == {}


def test_prune_continues_from_its_mark(engine):
    job_ids = helpers.make_jobs(engine, 5)
    for job_id in job_ids:
        operator.cancel(engine, [job_id])
    first = pruning.prune(engine, State.CANCELLED, 0.0, limit=2)
    assert (first.removed, first.locked, first.is_full) == (2, 0, True)
    rest = pruning.prune(engine, State.CANCELLED, 0.0, after=first.last)
    assert (rest.removed, rest.is_full) == (3, False)
    assert pruning.prune(engine, State.CANCELLED, 0.0, after=rest.last) == (0, 0, rest.last, False)


def test_prune_jobs_of_one_instant_by_pages(engine):
    operator.cancel(engine, helpers.make_jobs(engine, 5))
    first = pruning.prune(engine, State.CANCELLED, 0.0, limit=2)
    assert (first.removed, first.is_full) == (2, True)
    assert pruning.prune(engine, State.CANCELLED, 0.0, after=first.last).removed == 3


def test_set_aside_stores_error_and_counts_no_attempt(engine, job_in):
    specimen = job_in("new")
    assert set_aside(engine, specimen)
    row = helpers.job_row(engine, specimen.job_id)
    [execution] = helpers.rows_of(engine, "pgqueue_execution").values()
    assert (row["state"], row["attempt"]) == ("dead", 0)
    assert (execution["outcome"], execution["error"]) == ("released", "cannot be read")


def test_unknown_since_is_kept_until_an_attempt_has_run(engine):
    """The release of a job that waited for a slot changes nothing. If a job has started, a worker knows its task."""
    job_id = helpers.make_job(engine)

    def since(act, *, started=True, **options):
        claimed = helpers.claim_one(engine, free_slots=int(started))
        act(engine, [Released(claimed.key, 0.0)], **options)
        return helpers.job_row(engine, job_id)["unknown_since"]

    def fail(engine, released):
        completions.fail(engine, helpers.failed(released[0].key))

    def rescue(engine, released):
        helpers.end_lease(engine)
        helpers.rescue(engine)

    assert since(completions.release) is None
    first = since(completions.release, unknown=True)
    assert first is not None
    assert since(completions.release, unknown=True) == since(completions.release, started=False) == first
    assert since(rescue, started=False) == first
    for has_run in (completions.snooze, completions.release, rescue, fail):
        assert since(has_run) is None
        assert since(completions.release, unknown=True) > first
