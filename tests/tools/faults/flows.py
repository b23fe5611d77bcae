"""Workflows, batches, durable steps and compensations as an application enqueues them, by the public API.

`producer` takes random ones for its mix (`PLANS`), and `flow_producer` one that a scenario describes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from django_pgqueue import Batch, Workflow, send_event
from django_pgqueue.composed.workflows import Node
from tests.tools.faults.app.tasks import nodes, stepped

POLICIES = ("cancel", "cancel", "ignore", "block")
LATE_SECONDS = (0.2, 1.0, 4.0)


class Flow(NamedTuple):
    """What to enqueue in one transaction: the tags of its jobs, and how."""

    tags: list[str]
    enqueue: Callable[[], list[int]]
    """Returns the ids of the jobs, in the order of the tags."""
    late: tuple[float, str] | None = None
    """An event to send some seconds later: with this key."""


def tag() -> str:
    return uuid.uuid4().hex


def callbacks(name: str, *ends: str) -> dict[str, Any]:
    """Return the options of a batch with a callback for each of these ends.

    Each callback has a tag, by which the checker recognizes it.
    """
    calls = {f"on_{end}": nodes.ended.s(tag=f"{end} of {name}") for end in ends or ("failure", "complete", "success")}
    return {"description": name, **calls}


# ------------------------------------------------------------------------------- shapes


def chain_of(length: int, **options: Any) -> Flow:
    """A chain, in which each job gets the result of the one before. The options are those of the first job."""
    return graph([([place - 1] if place else [], "cancel", options if not place else {}) for place in range(length)])


def fan_in(members: int, last: dict[str, Any], queue: str | None = None, **options: Any) -> Flow:
    """Members that one job needs. The last member has options, and perhaps a queue, of its own."""
    rows: list[Row] = [([], "cancel", last if place == members - 1 else options) for place in range(members)]
    queues = {members - 1: queue} if queue else {}
    return graph([*rows, (list(range(members)), "cancel", {})], queues)


Row = tuple[list[int], str, dict[str, Any]]
"""A node: the places of those that it needs, its policy, and its options."""


def graph(rows: list[Row], queues: dict[int, str] | None = None) -> Flow:
    """A workflow with callbacks. A node that needs others gets their results, and returns its own id."""
    tags = [tag() for _ in rows]

    def enqueue() -> list[int]:
        workflow = Workflow(**callbacks(tag()))
        made: list[Node[Any]] = []
        for place, (needs, policy, options) in enumerate(rows):
            task = nodes.node.using(queue_name=(queues or {}).get(place, "default"))
            results = [made[each].result_or_none if policy == "ignore" else made[each].result for each in needs]
            call = task.s(results or None, tag=tags[place], **options)
            made.append(workflow.add(call, if_dependency_fails=policy))  # type: ignore[arg-type]
        return list(workflow.enqueue().job_ids)

    return Flow(tags, enqueue)


def batch_of(jobs: int, nested: int = 0, *, leave_open: bool = False, **options: Any) -> Flow:
    """A batch with callbacks, and with as many in a nested one."""
    tags = [tag() for _ in range(jobs + nested)]

    def enqueue() -> list[int]:
        batch = Batch(**callbacks(tag())).open()
        ids = list(batch.add(nodes.node.s(tag=each, **options) for each in tags[:jobs]))
        if nested:
            with Batch(parent=batch, **callbacks(tag())) as inner:
                ids += inner.add(nodes.node.s(tag=each, **options) for each in tags[jobs:])
        if not leave_open:
            batch.close()
        return ids

    return Flow(tags, enqueue)


def held_batches(sizes: list[int], until: str) -> Flow:
    """Batches with callbacks, whose jobs all end when a file appears. The first job of the first batch dies then."""
    tags = [tag() for _ in range(sum(sizes))]

    def enqueue() -> list[int]:
        ids: list[int] = []
        for size in sizes:
            with Batch(**callbacks(tag())) as batch:
                some = tags[len(ids) : len(ids) + size]
                ids += batch.add(nodes.held.s(until, tag=each, fails=each is tags[0]) for each in some)
        return ids

    return Flow(tags, enqueue)


def tale_of(plan: list[dict[str, Any]], before: str | None = None, late: tuple[float, str] | None = None) -> Flow:
    """A job with steps. `before`: the key of an event to send in the same transaction."""
    own = tag()

    def enqueue() -> list[int]:
        if before:
            send_event("go", before, before)
        return [int(stepped.tale.enqueue(plan, tag=own).pk)]

    return Flow([own], enqueue, late)


# ------------------------------------------------------------------------------- the mix


def _node(chance: random.Random) -> dict[str, Any]:
    """Return the options of a node: now and then it takes a while, or fails."""
    options = {"seconds": chance.choice([0.0, 0.0, 0.05, 0.3])}
    return options | {"before": chance.choices([1, 2, 99], [16, 2, 1])[0]}


def random_chain(chance: random.Random) -> Flow:
    """A chain, each node with a policy of its own."""
    rows: list[Row] = [([], "cancel", _node(chance))]
    return graph([*rows, *(([place], chance.choice(POLICIES), _node(chance)) for place in range(chance.randint(1, 4)))])


def random_graph(chance: random.Random) -> Flow:
    """Nodes, each of which needs some of the earlier ones: fan-out and fan-in in any mixture."""
    rows: list[Row] = []
    for place in range(chance.randint(3, 12)):
        needs = sorted(chance.sample(range(place), k=min(place, chance.choice([0, 1, 1, 2, 5]))))
        rows.append((needs, chance.choice(POLICIES), _node(chance)))
    return graph(rows)


def random_batch(chance: random.Random) -> Flow:
    """A batch, perhaps with a nested one. Some of its jobs may fail."""
    return batch_of(chance.randint(1, 10), chance.choice([0, 0, 3]), before=chance.choices([1, 2, 99], [8, 1, 1])[0])


def random_sleeper(chance: random.Random) -> Flow:
    """A job that sleeps between steps."""
    nap = chance.choice([0.1, 0.5, 3.0])
    return tale_of(
        [_step(chance, "atomic 1"), {"do": "sleep", "name": "nap", "seconds": nap}, _step(chance, "plain 2")]
    )


def random_waiter(chance: random.Random) -> Flow:
    """A job that waits for an event: it comes before the job, with it, later, after a timeout, or at the end of all."""
    key, when = tag(), chance.choice(["with it", "late", "late", "late", "never"])
    wait: dict[str, Any] = {"do": "event", "name": "wait", "key": key}
    if when != "with it" and chance.random() < 0.3:
        wait["timeout"] = chance.choice([0.5, 2.0])
    plan = [_step(chance, "plain 1"), wait, _step(chance, "atomic 2")]
    late = (chance.choice(LATE_SECONDS), key) if when == "late" else None
    return tale_of(plan, key if when == "with it" else None, late)


def random_saga(chance: random.Random) -> Flow:
    """A job whose steps are undone if it fails: in one of three cases."""
    plan = [
        {**_step(chance, f"{chance.choice(['atomic', 'plain'])} {number}"), "undo": chance.random() < 0.8}
        | {"undo_before": chance.choice([1, 1, 2])}
        for number in range(chance.randint(1, 4))
    ]
    if chance.random() < 0.3:
        plan.insert(chance.randint(0, len(plan)), {"do": "sleep", "name": "nap", "seconds": 0.3})
    return tale_of([*plan, *([{"do": "fail"}] if chance.random() < 0.3 else [])])


def _step(chance: random.Random, name: str) -> dict[str, Any]:
    return {"do": "step", "name": name, "odds": chance.choice([0.0, 0.0, 0.3]), "seconds": chance.choice([0.0, 0.1])}


PLANS: dict[str, Callable[[random.Random], Flow]] = {
    "chain": random_chain,
    "graph": random_graph,
    "batch": random_batch,
    "sleeper": random_sleeper,
    "waiter": random_waiter,
    "saga": random_saga,
}
SHAPES: dict[str, Callable[..., Flow]] = {
    "chain": chain_of,
    "fan_in": fan_in,
    "graph": graph,
    "batch": batch_of,
    "held": held_batches,
    "tale": tale_of,
}
