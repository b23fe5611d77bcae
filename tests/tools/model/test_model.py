"""The protocol has the properties that are promised, and the model would tell if it had not."""

import pytest

from django_pgqueue.lifecycle import TransitionStatus
from tests.tools.model import explore, protocol
from tests.tools.model.__main__ import under, violations
from tests.tools.model.explore import ENDING
from tests.tools.model.protocol import Act, Rules, World

SMALL = Rules(give_backs=1, max_attempts=1, crash_budget=1)


@pytest.fixture(scope="module")
def fenced():
    """All that can happen where an execution is the fence."""
    return under("execution")


def test_with_the_execution_as_fence_every_invariant_holds(fenced):
    assert violations(fenced) == {}


def test_all_that_can_happen_has_happened(fenced):
    """A model in which something never happens proves nothing about it."""
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
def test_every_weaker_fence_lets_a_stale_finish_through(fence, violated):
    traces = violations(under(fence, most=500))
    assert set(traces) >= {"no stale finish is accepted", "an execution ends once", *violated}


def test_a_task_that_is_not_atomic_may_have_its_effect_twice_and_an_atomic_one_may_not(fenced):
    assert [bool(explore.twice(found)) for found in fenced] == [not found.rules.atomic for found in fenced]


def test_a_trace_is_a_shortest_one_and_can_be_followed():
    rules = Rules(fence="state")
    trace = explore.explore(rules, most=2000).violations["no stale finish is accepted"]
    world = World()
    for act in trace:
        world = dict(protocol.steps(world, rules))[act]
    assert len(trace) == 5
    assert [str(act) for act in trace[:2]] == ["claim A1", "end A1 (succeeded)"]


# ------------------------------------------------------------------ each invariant can fail: break the protocol


def broken(monkeypatch, name, function, rules=SMALL):
    monkeypatch.setattr(protocol, name, function)
    return set(explore.explore(rules).violations)


def test_a_crash_budget_that_nobody_looks_at_is_found(monkeypatch):
    endless = lambda world, rules, started: protocol.READY  # noqa: E731 -- a line says it
    found = broken(monkeypatch, "after_crash", endless, Rules(max_attempts=2, crash_budget=1))
    assert "crashes are within their budget" in found


def test_a_rescue_that_leaves_the_execution_open_is_found(monkeypatch):
    def rescued(world, number, rules):
        return world._replace(state=protocol.READY)

    assert "running is to have an open execution" in broken(monkeypatch, "rescued", rescued)


def test_a_claim_that_takes_what_runs_is_found(monkeypatch):
    def claim(world, rules):
        for _, after in original(world._replace(state=protocol.READY), rules):
            yield Act("claim"), after

    original = protocol.claim
    acts = (claim, *protocol.ACTS[1:])
    assert "at most one execution is open" in broken(monkeypatch, "ACTS", acts, Rules(max_attempts=2))


def test_an_effect_that_is_committed_before_the_finish_is_found(monkeypatch):
    """As an atomic task would be whose models are in another database than its job."""

    def end_body(world, rules):
        return original(world, rules._replace(atomic=False))

    original = protocol.end_body
    acts = tuple(end_body if act is original else act for act in protocol.ACTS)
    assert "the effect is exactly once" in broken(monkeypatch, "ACTS", acts)


def test_a_request_to_cancel_that_a_release_forgets_is_found(monkeypatch):
    def finished(world, *args):
        after, fate = original(world._replace(asked=False), *args)
        return after._replace(asked=world.asked), fate

    original = protocol.finished
    assert "what waits is not asked to stop" in broken(monkeypatch, "finished", finished)


def test_a_release_that_counts_the_attempt_is_found(monkeypatch):
    def finished(world, number, ending, rules):
        after, fate = original(world, number, ending, rules)
        return after._replace(attempt=world.attempt), fate

    original = protocol.finished
    assert "attempts are counted, and within the maximum" in broken(monkeypatch, "finished", finished)


def test_without_rescue_a_job_may_never_end(monkeypatch):
    acts = tuple(act for act in protocol.ACTS if act is not protocol.rescue)
    assert broken(monkeypatch, "ACTS", acts) == {ENDING}
