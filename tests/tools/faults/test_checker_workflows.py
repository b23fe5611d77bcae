"""The checker on workflows, batches, durable steps and compensations. The histories are written by hand."""

from __future__ import annotations

import pytest

from tests.tools.faults.history import Effect, Sent
from tests.tools.faults.invariants_workflows import CONCURRENT_SECONDS
from tests.tools.faults.story import Story, broken


@pytest.fixture
def story() -> Story:
    return Story()


def wait_long(story: Story) -> None:
    """Let what was changed be known to everybody."""
    story.now += CONCURRENT_SECONDS + 1


# ------------------------------------------------------------------ workflows


def test_checker_chain_that_runs_in_order_passes(story):
    story.node(1)
    story.node(2, 1)
    story.finish(1)
    story.move(2, "ready")
    story.finish(2)
    assert broken(story, finished=True) == set()


def test_checker_dependent_that_is_ready_too_early_reports_i24(story):
    story.node(1)
    story.node(2, 1)
    wait_long(story)
    story.move(2, "ready")
    assert broken(story) == {"I24"}


@pytest.mark.parametrize(("policy", "wrong"), [("cancel", {"I24"}), ("block", {"I24"}), ("ignore", set())])
def test_checker_dependent_of_a_dead_job_is_ready_only_if_it_ignores_that(story, policy, wrong):
    story.node(1)
    story.node(2, 1, policy=policy)
    story.finish(1, "dead")
    wait_long(story)
    story.move(2, "ready")
    assert broken(story) == wrong


@pytest.mark.parametrize(("policy", "wrong"), [("cancel", set()), ("block", {"I24"}), ("ignore", {"I24"})])
def test_checker_dependent_of_a_dead_job_is_cancelled_only_by_its_policy(story, policy, wrong):
    story.node(1)
    story.node(2, 1, policy=policy)
    story.finish(1, "dead")
    wait_long(story)
    story.move(2, "cancelled")
    assert broken(story) == wrong


@pytest.mark.parametrize("by_hand", [True, False])
def test_checker_waiting_job_is_cancelled_without_reason_only_by_hand(story, by_hand):
    story.node(1)
    story.node(2, 1)
    if by_hand:
        story.say("operator", act="cancel", jobs=[2])
    story.move(2, "cancelled")
    assert broken(story) == (set() if by_hand else {"I24"})


def test_checker_fan_in_needs_all(story):
    story.node(1)
    story.node(2)
    story.node(3, 1, 2)
    story.finish(1)
    wait_long(story)
    story.move(3, "ready")
    assert broken(story) == {"I24"}


def test_checker_cascade_of_one_statement_passes_in_any_order(story):
    story.node(1)
    story.node(2, 1)
    story.node(3, 2)
    story.finish(1, "dead")
    story.move(3, "cancelled")
    story.move(2, "cancelled", own_transaction=False)
    assert broken(story) == set()


@pytest.mark.parametrize("at_once", [True, False])
def test_checker_advance_beside_a_retry_passes_only_if_it_is_concurrent(story, at_once):
    story.node(1)
    story.node(2, 1)
    story.finish(1)
    story.say("operator", act="retry", jobs=[1])
    story.move(1, "ready")
    if not at_once:
        wait_long(story)
    story.move(2, "ready")
    assert ("I24" in broken(story)) == (not at_once)


@pytest.mark.parametrize("retried", [True, False])
def test_checker_cancelled_job_waits_again_only_with_a_retry(story, retried):
    story.node(1)
    story.node(2, 1)
    story.finish(1, "dead")
    story.move(2, "cancelled")
    story.say("operator", act="retry", jobs=[1])
    story.transaction()
    if retried:
        story.job(1, state="ready", attempt=0)
    story.job(2, state="waiting", finished_at=None)
    assert broken(story) == (set() if retried else {"I4"})


@pytest.mark.parametrize("retried", [True, False])
def test_checker_ready_job_waits_again_only_with_a_retry(story, retried):
    """Its policy ignores the failure of the job that is retried, so it was ready already."""
    story.node(1)
    story.node(2, 1, policy="ignore")
    story.finish(1, "dead")
    story.move(2, "ready")
    story.say("operator", act="retry", jobs=[1])
    story.transaction()
    if retried:
        story.job(1, state="ready", attempt=0)
    story.job(2, state="waiting")
    assert broken(story) == (set() if retried else {"I4"})


def test_checker_running_job_that_waits_reports_i4(story):
    story.node(1)
    story.node(2, 1)
    story.claim(1, 1)
    story.close(1, 1, "released", "waiting", attempt=0)
    assert broken(story) == {"I4"}


def test_checker_waiting_job_that_runs_reports_i4(story):
    story.node(1)
    story.node(2, 1)
    story.claim(2, 2)
    assert "I4" in broken(story)


def test_checker_waiting_job_at_the_end_reports_i19(story):
    story.node(1)
    story.node(2, 1)
    story.finish(1)
    assert broken(story, finished=True) == {"I19"}


@pytest.mark.parametrize(
    ("given", "policy", "wrong"),
    [([1], "cancel", set()), ([7], "cancel", {"I24"}), ([None], "cancel", {"I24"}), ([None], "ignore", set())],
)
def test_checker_result_of_another_job_reports_i24(story, given, policy, wrong):
    story.node(1)
    story.node(2, 1, policy=policy)
    story.finish(1)
    story.move(2, "ready")
    story.claim(2, 2)
    story.say("start", job=2, execution=2, kind="other", given=given)
    assert broken(story) == wrong


@pytest.mark.parametrize(
    ("state", "other", "wrong"),
    [
        ("succeeded", "succeeded", set()),
        ("succeeded", "dead", {"I24"}),
        ("cancelled", "dead", {"I24"}),
        ("dead", "cancelled", set()),
        ("cancelled", "ready", {"I24"}),
    ],
)
def test_checker_node_that_is_needed_is_kept(story, state, other, wrong):
    story.node(1)
    story.node(2)
    for job, end in ((1, state), (2, other)):
        if end in ("succeeded", "dead"):
            story.finish(job, end)
        else:
            story.move(job, end)
    wait_long(story)
    story.transaction()
    story.event("job", "DELETE", 1, None, story.rows[1], None)
    assert broken(story, retention_seconds=1.0) == wrong


# ------------------------------------------------------------------ batches


def batch_of_two(story: Story, *states: str) -> None:
    story.batch(1, calls=["failure", "complete", "success"], closed=True)
    for job, state in enumerate(states or ("succeeded", "succeeded"), 1):
        story.enqueue(job, batch=1)
        story.finish(job, state)


def test_checker_batch_with_each_callback_once_passes(story):
    batch_of_two(story)
    story.batch(1, complete=True, success=True)
    story.callback(8, "complete")
    story.callback(9, "success")
    assert broken(story, finished=True) == set()


@pytest.mark.parametrize("copies", [0, 2])
def test_checker_callback_that_is_lost_or_doubled_reports_i25(story, copies):
    batch_of_two(story)
    story.batch(1, complete=True, success=True)
    story.callback(8, "complete")
    for number in range(copies):
        story.callback(9 + number, "success")
    assert broken(story) == {"I25"}


def test_checker_callback_of_another_transaction_reports_i25(story):
    batch_of_two(story)
    story.batch(1, complete=True, success=True)
    story.callback(8, "complete")
    story.transaction()
    story.callback(9, "success")
    assert broken(story) == {"I25"}


def test_checker_end_that_is_recorded_twice_reports_i25(story):
    batch_of_two(story)
    story.batch(1, calls=[], complete=True, success=True)
    story.batch(1, success=False)
    story.batch(1, success=True)
    assert broken(story) == {"I25"}


def test_checker_batch_that_completes_too_early_reports_i25(story):
    batch_of_two(story)
    story.enqueue(3, batch=1)
    wait_long(story)
    story.batch(1, calls=[], complete=True)
    assert broken(story) == {"I25"}


@pytest.mark.parametrize(("ends", "wrong"), [(["success"], {"I25"}), (["failure"], set())])
def test_checker_batch_with_a_dead_job_fails_and_does_not_succeed(story, ends, wrong):
    batch_of_two(story, "succeeded", "dead")
    wait_long(story)
    story.batch(1, calls=[], complete=True, **dict.fromkeys(ends, True))
    assert broken(story, finished=True) == wrong


def test_checker_batch_that_fails_without_a_dead_job_reports_i25(story):
    batch_of_two(story)
    story.batch(1, calls=[], failure=True, complete=True)
    assert broken(story) == {"I25"}


@pytest.mark.parametrize(("end", "wrong"), [("failure", set()), ("success", {"I25"})])
def test_checker_removed_dead_job_counts_for_its_batch(story, end, wrong):
    batch_of_two(story, "succeeded", "dead")
    wait_long(story)
    story.transaction()
    story.event("job", "DELETE", 2, None, story.rows[2], None)
    story.batch(1, calls=[], complete=True, **{end: True})
    assert broken(story, retention_seconds=1.0) == wrong


def test_checker_open_batch_that_completes_reports_i25(story):
    batch_of_two(story)
    story.batch(1, calls=[], closed=False)
    story.batch(1, complete=True, success=True)
    assert broken(story) == {"I25"}


@pytest.mark.parametrize("nested_ends", [True, False])
def test_checker_batch_completes_after_its_nested_one(story, nested_ends):
    batch_of_two(story)
    story.batch(2, parent=1, closed=True, complete=nested_ends, success=nested_ends)
    story.batch(1, calls=[], complete=True, success=True)
    assert broken(story) == (set() if nested_ends else {"I25"})


def test_checker_batch_that_never_ends_reports_i25(story):
    batch_of_two(story)
    assert broken(story) == set()
    assert broken(story, finished=True) == {"I25"}


def test_checker_complete_batch_without_success_reports_i25(story):
    batch_of_two(story)
    story.batch(1, calls=[], complete=True)
    assert broken(story, finished=True) == {"I25"}


# ------------------------------------------------------------------ steps


def call(story: Story, name: str = "plain", execution: int = 1) -> None:
    """Call the function of a step, which has an effect."""
    story.say("step", job=1, execution=execution, name=name)
    story.history.effects.append(Effect(1, execution, name))


def next_attempt(story: Story, outcome: str = "suspended") -> None:
    story.close(1, 1, outcome, "ready", attempt=0)
    story.claim(1, 2)


@pytest.fixture
def running(story: Story) -> Story:
    story.enqueue(1)
    story.claim(1, 1)
    return story


@pytest.mark.parametrize("stored", [True, False])
def test_checker_function_of_a_stored_step_that_runs_again_reports_i26(running, stored):
    call(running)
    if stored:
        running.step(1, "plain")
    next_attempt(running)
    call(running, execution=2)
    if not stored:
        running.step(1, "plain")
    assert broken(running) == ({"I26"} if stored else set())


def test_checker_function_of_an_earlier_attempt_beside_a_later_one_passes(running):
    next_attempt(running)
    call(running, execution=2)
    running.step(1, "plain")
    call(running, execution=1)
    assert broken(running) == set()


@pytest.mark.parametrize("how", ["removed", "undone"])
def test_checker_step_that_was_removed_or_undone_runs_again(running, how):
    call(running)
    running.step(1, "plain")
    if how == "removed":
        running.remove_step(1, "plain")
    else:
        running.close(1, 1, "failed", "dead")
        running.undo(1, "plain", 5)
        running.finish(5)
        running.say("operator", act="retry", jobs=[1])
        running.transaction()
        running.job(1, state="ready", attempt=0, finished_at=None)
        running.claim(1, 2)
    if how == "removed":
        next_attempt(running)
    call(running, execution=2)
    running.step(1, "plain", undone_by=None)
    assert broken(running) == set()


@pytest.mark.parametrize("effects", [0, 1, 2])
def test_checker_atomic_step_has_one_effect(running, effects):
    running.say("step", job=1, execution=1, name="atomic 1")
    running.step(1, "atomic 1")
    running.history.effects += [Effect(1, 1 + number, "atomic 1") for number in range(effects)]
    assert broken(running) == (set() if effects == 1 else {"I26"})


def test_checker_effect_of_an_atomic_step_that_was_not_stored_reports_i26(running):
    call(running, "atomic 1")
    assert broken(running) == {"I26"}


def test_checker_plain_step_that_is_stored_without_effect_reports_i26(running):
    running.say("step", job=1, execution=1, name="plain")
    running.step(1, "plain")
    assert broken(running) == {"I26"}


@pytest.mark.parametrize("early_seconds", [0.5, -0.5])
def test_checker_sleep_that_is_over_too_early_reports_i26(running, early_seconds):
    running.step(1, "nap", kind="sleep", finished=False, wake_at=running.now + 5)
    wake_at = running.steps[1, "nap"]["wake_at"]
    next_attempt(running)
    running.now = wake_at - early_seconds - 0.1
    running.say("woken", job=1, execution=2, name="nap")
    running.remove_step(1, "nap")
    running.step(1, "nap", kind="sleep", finished=False, wake_at=wake_at + 60)  # of a retry
    assert broken(running) == ({"I26"} if early_seconds > 0 else set())


@pytest.mark.parametrize(("payload", "wrong"), [("a", set()), ("b", {"I26"})])
def test_checker_payload_of_another_event_reports_i26(running, payload, wrong):
    running.say("received", job=1, execution=1, name="wait", key="a", payload=payload)
    assert broken(running) == wrong


@pytest.mark.parametrize(("sent_before", "wrong"), [(60.0, {"I26"}), (1.0, set())])
def test_checker_wait_that_times_out_although_its_event_came_reports_i26(running, sent_before, wrong):
    wake_at = running.now + 100
    running.history.sent.append(Sent(wake_at - sent_before, "go", "a"))
    running.now = wake_at
    running.step(1, "wait", kind="event", event_name="go", event_key="a", wake_at=wake_at)
    assert broken(running) == wrong


# ------------------------------------------------------------------ compensations


@pytest.fixture
def failed(running: Story) -> Story:
    """A dead job with two steps to undo."""
    running.step(1, "first", compensation=True)
    running.step(1, "second", compensation=True)
    running.close(1, 1, "failed", "dead")
    return running


def test_checker_compensations_in_reverse_order_pass(failed):
    failed.undo(1, "second", 5)
    failed.finish(5)
    failed.undo(1, "first", 6)
    failed.finish(6)
    assert broken(failed, finished=True) == set()


def test_checker_compensations_in_order_report_i27(failed):
    failed.undo(1, "first", 5)
    failed.finish(5)
    failed.undo(1, "second", 6)
    assert broken(failed) == {"I27"}


def test_checker_compensation_before_the_last_one_succeeded_reports_i27(failed):
    failed.undo(1, "second", 5)
    failed.undo(1, "first", 6)
    assert broken(failed) == {"I27"}


def test_checker_compensation_of_a_running_job_reports_i27(running):
    running.step(1, "first", compensation=True)
    running.undo(1, "first", 5)
    assert broken(running) == {"I27"}


def test_checker_compensation_that_is_added_twice_reports_i27(failed):
    failed.undo(1, "second", 5)
    new = {**failed.rows[5]}
    failed.event("job", "INSERT", 6, None, None, new)
    assert broken(failed) == {"I27"}


def test_checker_compensation_without_its_job_reports_i27(failed):
    failed.step(1, "second", compensation=False, undone_by=5)
    assert broken(failed) == {"I27"}


def test_checker_step_that_is_left_undone_reports_i27(failed):
    failed.undo(1, "second", 5)
    failed.finish(5)
    assert broken(failed) == set()
    assert broken(failed, finished=True) == {"I27"}


def test_checker_step_that_is_removed_before_it_was_undone_reports_i27(failed):
    failed.remove_step(1, "second")
    assert broken(failed) == {"I27"}
