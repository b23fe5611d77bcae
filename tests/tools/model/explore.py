"""Walks every world that the model can reach, breadth first, so that the way to a violation is a shortest one."""

import functools
import gc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from django_pgqueue.lifecycle.types import TransitionStatus
from django_pgqueue.states import FINISHED
from tests.tools.model import protocol
from tests.tools.model.protocol import GONE, Act, Rules, World

TERMINAL = {*FINISHED, GONE}


def counted(world: World) -> int:
    """The executions that cost an attempt since the operator's last retry."""
    return world.counted + sum(map(protocol.costs_an_attempt, world.executions))


def effects_are_right(world: World, rules: Rules) -> bool:
    """Of an atomic task: one if it succeeded, else none. Of a plain one: at least one if it succeeded."""
    if world.state == GONE:
        return True
    succeeded = world.state == protocol.SUCCEEDED
    return world.effects == succeeded if rules.atomic else world.effects >= succeeded


WORLDS: dict[str, Callable[[World, Rules], bool]] = {
    "at most one execution is open": lambda world, rules: len(protocol.open_executions(world)) <= 1,
    "running is to have an open execution": lambda world, rules: (
        (world.state == protocol.RUNNING) == bool(protocol.open_executions(world))
    ),
    "the effect is exactly once": effects_are_right,
    "attempts are counted, and within the maximum": lambda world, rules: (
        world.state == GONE or world.attempt == counted(world) <= rules.max_attempts
    ),
    "crashes are within their budget": lambda world, rules: world.crashes <= min(rules.crash_budget, world.attempt),
    "what waits is not asked to stop": lambda world, rules: not (world.state == protocol.READY and world.asked),
}
"""What must hold in each world."""


def stays_finished(before: World, act: Act, after: World) -> bool:
    """Only an operator's retry leaves a finished state, and only prune removes it."""
    return before.state not in TERMINAL or before.state == after.state or act.name in ("retry", "prune")


def names_the_open_one(before: World, act: Act, after: World) -> bool:
    """What a worker is told is done was done to the execution that was open."""
    if act.fate is not TransitionStatus.DONE or not isinstance(act.place, int):
        return True
    return protocol.open_executions(before) == [before.slots[act.place].execution]


def stays_closed(before: World, act: Act, after: World) -> bool:
    """An execution ends once, and its end is not written over."""
    pairs = zip(before.executions, after.executions, strict=False)
    return all(one.outcome is None or one.outcome is other.outcome for one, other in pairs)


STEPS: dict[str, Callable[[World, Act, World], bool]] = {
    "a finished job stays finished": stays_finished,
    "no stale finish is accepted": names_the_open_one,
    "an execution ends once": stays_closed,
}
"""What must hold in each step."""
ENDING = "every job can still end"
INVARIANTS = (*WORLDS, *STEPS, ENDING)


@dataclass
class Explored:
    """What was found: every world with the step that led there first, and of each violation a shortest trace."""

    rules: Rules
    came_by: dict[World, tuple[World, Act] | None] = field(default_factory=dict)
    edges: dict[World, list[tuple[Act, World]]] = field(default_factory=dict)
    violations: dict[str, list[Act]] = field(default_factory=dict)

    def trace(self, world: World) -> list[Act]:
        """Return the acts of a shortest way to this world."""
        acts: list[Act] = []
        while (step := self.came_by[world]) is not None:
            world, act = step
            acts.append(act)
        return acts[::-1]


def explore(rules: Rules, most: int | None = None) -> Explored:
    """Explore all that is reachable, or `most` worlds of it. What comes after a violation is not looked at."""
    gc.disable()  # a third of the time: nothing here is garbage
    try:
        return _explore(Explored(rules, {World(): None}), most)
    finally:
        gc.enable()


explored = functools.cache(explore)
"""The same, once for each question."""


def _explore(found: Explored, most: int | None) -> Explored:
    rules = found.rules
    queue = deque([World()])
    while queue and (most is None or len(found.edges) < most):
        world = queue.popleft()
        found.edges[world] = []
        for act, next_world in protocol.steps(world, rules):
            violated = [name for name, holds in STEPS.items() if not holds(world, act, next_world)]
            after = protocol.forget(next_world)
            found.edges[world].append((act, after))
            if not violated and after in found.came_by:
                continue
            violated += [name for name, holds in WORLDS.items() if not holds(after, rules)]
            for name in violated:
                found.violations.setdefault(name, [*found.trace(world), act])
            if not violated:
                found.came_by[after] = (world, act)
                queue.append(after)
    if not queue and not found.violations:
        look_for_dead_ends(found)
    return found


def look_for_dead_ends(found: Explored) -> None:
    """Walk back from the ended worlds: what is not met can never end."""
    before: dict[World, list[World]] = {world: [] for world in found.came_by}
    for world, edges in found.edges.items():
        for _, after in edges:
            before[after].append(world)
    met = {world for world in found.came_by if world.state in TERMINAL}
    queue = deque(met)
    while queue:
        for world in before[queue.popleft()]:
            if world not in met:
                met.add(world)
                queue.append(world)
    for world in found.came_by:
        if world not in met:
            found.violations.setdefault(ENDING, found.trace(world))


def twice(found: Explored) -> list[Act]:
    """Return a shortest way to a second effect in one life of the job, or nothing if there is none."""
    return next((found.trace(world) for world in found.came_by if world.effects > 1), [])
