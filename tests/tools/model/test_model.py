"""The model of the protocol has the promised properties, and it detects a protocol that lacks one of them."""

import pytest

from django_pgqueue.lifecycle.types import TransitionStatus
from tests.tools.model import explore, protocol
from tests.tools.model.__main__ import under, violations
from tests.tools.model.explore import ENDING
from tests.tools.model.protocol import Act, Rules, World

pytestmark = pytest.mark.slow

SMALL = Rules(give_backs=1, max_attempts=1, crash_budget=1)


@pytest.fixture(scope="module")
def fenced():
    """Return everything that can happen if the execution is the fence."""
    return under("execution")


def test_model_execution_as_fence_keeps_every_invariant(fenced):
    assert violations(fenced) == {}


def test_model_exploration_reaches_every_act_and_state(fenced):
    """The model proves nothing about acts and states that it never reaches."""
    seen = {(act.name, act.way, act.fate) for found in fenced for edges in found.edges.values() for act, _ in edges}
    assert {name for name, _, _ in seen} == {
        *("claim", "start", "beat", "end", "give back", "send", "commit", "crash", "rescue", "cancel", "prune", "retry")
    }
    assert {fate for _, _, fate in seen} == {
        TransitionStatus.DONE,
        TransitionStatus.ALREADY_DONE,
        TransitionStatus.LOST,
        None,
    }
    assert {way for name, way, _ in seen if name == "claim"} == {"", "ahead", "reply lost"}
    assert {way for name, way, _ in seen if name == "commit"} == {"", "reply lost", "failed", "refused"}
    assert {world.state for found in fenced for world in found.came_by} == {
        *("ready", "running", "succeeded", "dead", "cancelled", "gone")
    }


@pytest.mark.parametrize(
    ("fence", "violated"),
    [
        ("none", {"a finished job stays finished", "the effect is exactly once", "crashes are within their budget"}),
        ("state", {"running is to have an open execution"}),
        ("worker", {"running is to have an open execution"}),
        ("attempt", {"running is to have an open execution"}),
    ],
)
def test_model_weaker_fence_accepts_stale_completion(fence, violated):
    traces = violations(under(fence, most=500))
    assert set(traces) >= {"no stale finish is accepted", "an execution ends once", *violated}


def test_model_only_non_atomic_task_can_repeat_its_effect(fenced):
    assert [bool(explore.twice(found)) for found in fenced] == [not found.rules.atomic for found in fenced]


def test_trace_of_violation_is_shortest_and_can_be_followed():
    rules = Rules(fence="state")
    trace = explore.explore(rules, most=2000).violations["no stale finish is accepted"]
    world = World()
    for act in trace:
        world = dict(protocol.steps(world, rules))[act]
    assert len(trace) == 5
    assert [str(act) for act in trace[:2]] == ["claim A1", "end A1 (succeeded)"]


# ------------------------------------------------------------------ each invariant fails if the protocol is broken


def broken(monkeypatch, name, function, rules=SMALL):
    monkeypatch.setattr(protocol, name, function)
    return set(explore.explore(rules).violations)


def test_model_ignored_crash_budget_is_found(monkeypatch):
    endless = lambda world, rules, started: protocol.READY  # noqa: E731 -- fits in one line
    found = broken(monkeypatch, "after_crash", endless, Rules(max_attempts=2, crash_budget=1))
    assert "crashes are within their budget" in found


def test_model_rescue_leaving_execution_open_is_found(monkeypatch):
    def rescued(world, number, rules):
        return world._replace(state=protocol.READY)

    assert "running is to have an open execution" in broken(monkeypatch, "rescued", rescued)


def test_model_claim_of_running_job_is_found(monkeypatch):
    def claim(world, rules):
        for _, after in original(world._replace(state=protocol.READY), rules):
            yield Act("claim"), after

    original = protocol.claim
    acts = (claim, *protocol.ACTS[1:])
    assert "at most one execution is open" in broken(monkeypatch, "ACTS", acts, Rules(max_attempts=2))


def test_model_effect_committed_before_completion_is_found(monkeypatch):
    """This would happen to an atomic task whose models are in another database than its job."""

    def end_body(world, rules):
        return original(world, rules._replace(atomic=False))

    original = protocol.end_body
    acts = tuple(end_body if act is original else act for act in protocol.ACTS)
    assert "the effect is exactly once" in broken(monkeypatch, "ACTS", acts)


def test_model_release_ignoring_cancel_request_is_found(monkeypatch):
    def finished(world, *args):
        after, status = original(world._replace(asked=False), *args)
        return after._replace(asked=world.asked), status

    original = protocol.finished
    assert "what waits is not asked to stop" in broken(monkeypatch, "finished", finished)


def test_model_release_counting_the_attempt_is_found(monkeypatch):
    def finished(world, number, ending, rules):
        after, status = original(world, number, ending, rules)
        return after._replace(attempt=world.attempt), status

    original = protocol.finished
    assert "attempts are counted, and within the maximum" in broken(monkeypatch, "finished", finished)


def test_model_without_rescue_job_may_never_end(monkeypatch):
    acts = tuple(act for act in protocol.ACTS if act is not protocol.rescue)
    assert broken(monkeypatch, "ACTS", acts) == {ENDING}
