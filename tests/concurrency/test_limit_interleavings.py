"""Claims of limited jobs beside each transition of another session, in every order of their steps.

Session A locks keys, claims and commits: three steps. Session B makes a transition and commits, or claims in three
steps too. Each test runs all orders of these steps, and once more with B's transition in the middle of A's claim,
between its snapshot and its row locks. What A has to claim depends only on whether B had committed when A's claim
began: otherwise A sees the state before, and skips rows that B has locked. No statement may wait.

Afterwards no key has more open than its limit, and a further claim fills it: no slot is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from operator import attrgetter
from typing import Any, NamedTuple

import pytest

from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions, limits, operator
from django_pgqueue.lifecycle.limits import KeyToClaim
from django_pgqueue.lifecycle.types import Cancelled, Cursor, Released
from tests import helpers
from tests.concurrency.conftest import GATE
from tests.concurrency.limits import LANE, add, claim, found, ids
from tests.statements import STATEMENTS, replace_statement

SLOTS = Limit("slots", concurrency=2)
RATE = Limit("rate", rate="1/h", burst=2)
ORDER = Limit("order", ordered=True)
BLOCK = Limit("block", ordered=True, on_dead="block")
LIMITS = (SLOTS, ORDER, BLOCK, RATE)
CLAIMS = ((SLOTS, "running"), (ORDER, "ready"), (RATE, "running"))
GIVEN = "CROSS JOIN clock_timestamp() AS clock (at)\n"
LOCKED = "WHERE {gate} pg_try_advisory_xact_lock(hashtextextended('pgqueue:' || each.limit_key, 0))"
BEHIND_GATE = f"(SELECT pg_advisory_xact_lock_shared({GATE}) IS NOT NULL) AND"
NAME = attrgetter("name")
OPEN = "SELECT coalesce(sum(limit_weight), 0) FROM pgqueue_execution WHERE finished_at IS NULL"
STARTED = "SELECT count(*) FROM pgqueue_execution"
RUNNING = "SELECT id FROM pgqueue_execution WHERE finished_at IS NULL ORDER BY id"
LEFT = "SELECT id FROM pgqueue_job WHERE state IN ('ready', 'running') AND queue_name = %s"
BLOCKED = "SELECT id FROM pgqueue_job WHERE queue_name = 'other' OR state = 'dead' AND limit_order = 2"

Do = Callable[[Any], Any]


class Scene:
    """Jobs of one key: a that runs, or is dead, or is ready; then b, c and others that are ready."""

    def __init__(self, engine: Any, limit: Limit, first: str) -> None:
        self.limit = limit
        self.a, self.b, self.c, *_ = add(engine, limit.name, 6, order=limit.order)
        if first != "ready":
            [self.running] = claim(engine, limit, limit.name, count=1).claimed
            assert self.running.job_id == self.a
        if first == "dead":
            completions.fail(engine, helpers.failed(self.running.key, None))

    def names(self, job_ids: list[int]) -> str:
        """Return the claimed jobs by their letters."""
        return "".join("abcdef"[job_id - self.a] for job_id in job_ids)


class Transition(NamedTuple):
    """A transition of B beside a claim of A."""

    do: Callable[[Scene], Do]
    limit: Limit
    first: str
    """The state of the first job."""
    after: str
    """The jobs that A claims if B has committed before."""
    during: str
    """The jobs that A claims if B has made the transition, but has not committed."""

    def __str__(self) -> str:
        return f"{self.limit.name}-{self.first}-{self.do.__name__}"

    @property
    def alone(self) -> str:
        """The jobs that A claims if B has done nothing yet."""
        return ALONE[self.limit.name, self.first]


ALONE = {
    ("slots", "running"): "b",
    ("slots", "ready"): "ab",
    ("slots", "dead"): "bc",
    ("order", "running"): "",
    ("order", "ready"): "a",
    ("order", "dead"): "b",
    ("block", "running"): "",
    ("block", "dead"): "",
    ("rate", "running"): "b",
}


def succeed(scene: Scene) -> Do:
    return lambda session: completions.succeed(session, helpers.succeeded(scene.running.key))


def fail(scene: Scene) -> Do:
    return lambda session: completions.fail(session, helpers.failed(scene.running.key, 3600.0))


def die(scene: Scene) -> Do:
    return lambda session: completions.fail(session, helpers.failed(scene.running.key, None))


def release(scene: Scene) -> Do:
    return lambda session: completions.release(session, [Released(scene.running.key)])


def throttle(scene: Scene) -> Do:
    released = [Released(scene.running.key, 3600.0, holds_key=True)]
    return lambda session: completions.snooze(session, released)


def obey(scene: Scene) -> Do:
    return lambda session: completions.end_cancelled(session, [Cancelled(scene.running.key, None, 0.0)])


def rescue(scene: Scene) -> Do:
    def expire_and_rescue(session: Any) -> None:
        helpers.end_lease(session, scene.running.execution_id)
        assert helpers.rescue(session, 3600.0)

    return expire_and_rescue


def cancel_first(scene: Scene) -> Do:
    return lambda session: operator.cancel(session, [scene.a])


def cancel(scene: Scene) -> Do:
    return lambda session: operator.cancel(session, [scene.b])


def move_first(scene: Scene) -> Do:
    return lambda session: operator.move(session, [scene.a], queue_name="other")


def move(scene: Scene) -> Do:
    return lambda session: operator.move(session, [scene.b], queue_name="other")


def retry(scene: Scene) -> Do:
    return lambda session: operator.retry(session, [scene.a])


def delete(scene: Scene) -> Do:
    return lambda session: operator.delete(session, [scene.a])


def enqueue(scene: Scene) -> Do:
    return lambda session: add(session, scene.limit.name, order=scene.limit.order)


def prune(scene: Scene) -> Do:
    return limits.prune_limit_states


TRANSITIONS = [
    *(Transition(do, SLOTS, "running", "bc", "b") for do in (succeed, fail, rescue)),
    Transition(release, SLOTS, "running", "ab", "b"),
    Transition(throttle, SLOTS, "running", "", "b"),
    *(Transition(do, SLOTS, "running", "c", "c") for do in (cancel, move)),
    *(Transition(do, SLOTS, "running", "b", "b") for do in (cancel_first, enqueue)),
    *(Transition(do, SLOTS, "dead", "bc", "bc") for do in (retry, delete)),
    *(Transition(do, ORDER, "running", "b", "") for do in (die, obey)),
    Transition(fail, ORDER, "running", "", ""),
    Transition(release, ORDER, "running", "a", ""),
    Transition(cancel_first, ORDER, "ready", "b", ""),
    Transition(move_first, ORDER, "ready", "", ""),
    Transition(cancel, ORDER, "ready", "a", "a"),
    Transition(retry, ORDER, "dead", "a", "b"),
    Transition(retry, BLOCK, "dead", "a", ""),
    Transition(delete, BLOCK, "dead", "b", ""),
    Transition(die, BLOCK, "running", "", ""),
    Transition(prune, RATE, "running", "b", "b"),
    Transition(release, RATE, "running", "a", "b"),
]


def orders(own: int, others: int) -> Iterator[str]:
    """Yield all orders of the steps of two sessions, such as "aabba"."""
    for places in combinations(range(own + others), own):
        yield "".join("a" if place in places else "b" for place in range(own + others))


class Claiming:
    """A claim in three steps."""

    def __init__(self, session: Any, limit: Limit, ending: str = "COMMIT") -> None:
        self.session, self.limit, self.ending = session, limit, ending
        self.claimed: list[int] = []
        self.locked: list[str] = []

    def steps(self) -> Iterator[str]:
        """Run the next step, and yield its name."""
        self.session.execute("BEGIN")
        self.locked = [key.limit_key for key in found(self.session) if key.is_locked]
        yield "lock"
        self.claim()
        yield "claim"
        self.session.execute(self.ending)
        yield "commit"

    def claim(self) -> None:
        """Claim from the locked keys."""
        if self.locked:
            keys = [KeyToClaim(key, policy_of(self.limit), Cursor()) for key in self.locked]
            options: dict[str, Any] = {"limit": 9, "free_slots": 9, "worker_id": 1, "lease_seconds": 60.0}
            self.claimed = ids(limits.claim_keys(self.session, LANE, keys, **options))


@pytest.fixture
def sessions(new_connection, engine, monkeypatch):
    """Return two sessions that raise an error instead of waiting."""
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.0)
    both = new_connection(), new_connection()
    for session in (engine, *both):
        session.execute("SET lock_timeout = '500ms'")
        session.execute("SET synchronous_commit = off")  # a test commits a hundred times
    return both


def transition_steps(session: Any, do: Do, ending: str) -> Iterator[str]:
    session.execute("BEGIN")
    do(session)
    yield "do"
    session.execute(ending)
    yield "end"


def begin(engine: Any, limit: Limit, first: str) -> Scene:
    helpers.begin_anew(engine)
    return Scene(engine, limit, first)


def check_limit(engine: Any, scene: Scene) -> None:
    """Check that no more is open, or has started, than the limit admits, after a further claim."""
    claim(engine, scene.limit, scene.limit.name)
    assert helpers.scalar(engine, OPEN) <= (1 if scene.limit.ordered else scene.limit.concurrency or 2)
    assert scene.limit.rate is None or helpers.scalar(engine, STARTED) <= scene.limit.burst


def check_no_slot_is_lost(engine: Any, scene: Scene) -> None:
    """Check that claims start all jobs that can start now, one after the other if they are ordered."""
    engine.execute("UPDATE pgqueue_job SET run_after = now() WHERE state = 'ready'")
    engine.execute("DELETE FROM pgqueue_limit_state")
    keys = [helpers.key_of(engine, row[0]) for row in engine.execute(RUNNING).fetchall()]
    completions.succeed(engine, helpers.succeeded(*keys))
    while begun := claim(engine, scene.limit, scene.limit.name).claimed:
        completions.succeed(engine, helpers.succeeded(*(job.key for job in begun)))
        engine.execute("DELETE FROM pgqueue_limit_state")
    left = engine.execute(LEFT, [LANE.queue_name]).fetchall()
    blocked = scene.limit.ordered and engine.execute(BLOCKED).fetchall()
    assert bool(left) == bool(blocked), left


def of_limit(limit: Limit) -> list[Transition]:
    return [transition for transition in TRANSITIONS if transition.limit is limit]


@pytest.mark.promise("limit-slots")
@pytest.mark.promise("limit-order")
@pytest.mark.promise("limit-admits")
@pytest.mark.parametrize("limit", LIMITS, ids=NAME)
def test_claim_beside_transition_in_every_order(engine, sessions, limit):
    for transition in of_limit(limit):
        for order in orders(3, 2):
            scene = begin(engine, limit, transition.first)
            claiming = Claiming(sessions[0], limit)
            own, other = claiming.steps(), transition_steps(sessions[1], transition.do(scene), "COMMIT")
            steps = [next(own if session == "a" else other) for session in order]
            done = steps[: steps.index("claim")]
            expected = transition.after if "end" in done else transition.during if "do" in done else transition.alone
            assert scene.names(claiming.claimed) == expected, (str(transition), steps)
            check_limit(engine, scene)
        check_no_slot_is_lost(engine, scene)


@pytest.mark.parametrize("limit", LIMITS, ids=NAME)
def test_claim_beside_transition_that_is_rolled_back(engine, sessions, limit):
    for transition in of_limit(limit):
        scene = begin(engine, limit, transition.first)
        claiming = Claiming(sessions[0], limit)
        own, other = claiming.steps(), transition_steps(sessions[1], transition.do(scene), "ROLLBACK")
        for steps in (own, other, own, other, own):
            next(steps)
        assert scene.names(claiming.claimed) == transition.during, str(transition)
        check_limit(engine, scene)
        check_no_slot_is_lost(engine, scene)


@pytest.mark.parametrize("limit", LIMITS, ids=NAME)
def test_transition_commits_within_the_statement_of_a_claim(engine, sessions, gates, limit):
    """A's claim has its snapshot, and has locked no rows. What B commits meanwhile is as if it had not committed."""
    for transition in of_limit(limit):
        scene = begin(engine, limit, transition.first)
        claiming = Claiming(sessions[0], limit)
        steps = claiming.steps()
        next(steps)
        sessions[0].execute(f"SET LOCAL lock_timeout = '{helpers.LOCK_WAIT_SECONDS:g}s'")  # it waits at the gate
        with gates("CLAIM_KEYS", sessions[0], claiming.claim) as waiting:
            for _ in transition_steps(sessions[1], transition.do(scene), "COMMIT"):
                pass
        waiting.result()
        sessions[0].execute("COMMIT")
        assert scene.names(claiming.claimed) == transition.during, str(transition)
        check_limit(engine, scene)
        check_no_slot_is_lost(engine, scene)


@pytest.mark.promise("limit-slots")
@pytest.mark.promise("limit-rate")
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_two_claims_of_a_key_in_every_order(engine, sessions, ending):
    """Whoever locks the key first claims. The other one claims nothing, unless it locks after a rollback."""
    for (limit, first), order in product(CLAIMS, orders(3, 3)):
        scene = begin(engine, limit, first)
        both = [Claiming(session, limit, ending) for session in sessions]
        own, other = (claiming.steps() for claiming in both)
        for session in order:
            next(own if session == "a" else other)
        earlier, later = both if order[0] == "a" else both[::-1]
        assert scene.names(earlier.claimed) == ALONE[limit.name, first], order
        again = ending == "ROLLBACK" and order in ("aaabbb", "bbbaaa")
        assert scene.names(later.claimed) == (ALONE[limit.name, first] if again else ""), order
        check_limit(engine, scene)


def test_lock_and_count_in_one_statement_exceed_the_limit(engine, sessions, monkeypatch):
    """This is why there are two statements: A's snapshot is older than its lock, so it does not count B's claim."""
    scene = begin(engine, SLOTS, "running")
    text = STATEMENTS["CLAIM_KEYS"]
    joined = text.replace(GIVEN, GIVEN + LOCKED.format(gate=""), 1)
    assert joined != text
    first, second = (Claiming(session, SLOTS) for session in sessions)
    first.locked = second.locked = [SLOTS.name]
    engine.execute("SELECT pg_advisory_lock(%s)", [GATE])
    replace_statement(monkeypatch, "CLAIM_KEYS", text.replace(GIVEN, GIVEN + LOCKED.format(gate=BEHIND_GATE), 1))
    waiting = helpers.Background(first.claim)
    helpers.wait_until(lambda: helpers.waits_for_lock(engine, sessions[0].info.backend_pid))
    replace_statement(monkeypatch, "CLAIM_KEYS", joined)
    second.claim()
    engine.execute("SELECT pg_advisory_unlock(%s)", [GATE])
    waiting.result()
    assert (scene.names(second.claimed), scene.names(first.claimed)) == ("b", "c")
    assert helpers.scalar(engine, OPEN) == 3 > SLOTS.concurrency
