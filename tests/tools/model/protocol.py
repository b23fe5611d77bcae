"""The protocol on a few pages: one job, its executions, and three slots of two workers that may fail at any point.

A `World` is everything there is: the two tables, and what each slot believes. `steps(world, rules)` yields every act
that can come next, with the world after it. Nothing has a time: a lease may be over at any moment, a reply may be lost,
a message may arrive as late as it likes (a slot that waits with its report is the same thing), a backoff is no wait.
So whatever the real queue can do in some timing, the model can do too.

`Rules.fence` says what the end of an execution must match to be written:

* `none`: nothing but its own row;
* `state`: the job is running, by whomever;
* `worker`: the job is running under the worker that writes;
* `attempt`: the job is running, and on the attempt that writes;
* `execution`: the execution itself is open. This is what `django_pgqueue` does.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from django_pgqueue.lifecycle.types import TransitionStatus
from django_pgqueue.states import FINISHED, Outcome, State

WORKERS = ("A", "A", "B")
"""The worker of each slot. A worker that was lost and started again keeps its letter, which the real ones do not."""

READY, RUNNING, SUCCEEDED, DEAD, CANCELLED = State.READY, State.RUNNING, State.SUCCEEDED, State.DEAD, State.CANCELLED
GONE = "gone"
REPORTS = {Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RELEASED, Outcome.CRASHED}


class Execution(NamedTuple):
    """A row of pgqueue_execution. `started` is what the database knows, and is forgotten once it is closed."""

    worker: str
    attempt: int
    started: bool
    outcome: Outcome | None = None
    old: bool = False
    """From before the operator's retry: it counts no more."""


class Slot(NamedTuple):
    """What a worker has in hand: the number of an execution (0: none), and what it is doing with it.

    `doing` is "" (idle), "waiting" (claimed ahead), "running", or the outcome that it has to report.
    """

    execution: int = 0
    doing: str = ""


IDLE = Slot()


class World(NamedTuple):
    """Both tables, the slots, and the task's effect."""

    state: str = READY
    attempt: int = 0
    crashes: int = 0
    asked: bool = False
    """Somebody asked to cancel the job."""
    executions: tuple[Execution, ...] = ()
    slots: tuple[Slot, ...] = (IDLE,) * len(WORKERS)
    effects: int = 0
    """How often the task's effect on the database was committed since the enqueue, or an operator's retry."""
    counted: int = 0
    """Executions that cost an attempt since then, and are forgotten by now."""
    given_back: int = 0
    retries: int = 0


class Rules(NamedTuple):
    """What is explored: which fence, whether the task is `atomic`, and how much may happen in one history."""

    fence: str = "execution"
    atomic: bool = True
    max_attempts: int = 2
    crash_budget: int = 2
    give_backs: int = 0
    """Releases. They give the attempt back, so that without a bound they could go on for ever."""
    retries: int = 0
    """Retries by an operator; bounded for the same reason."""


class Act(NamedTuple):
    """What happened: by which slot (or "", for all), in which way, and what the writer was told if it asked."""

    name: str
    place: str | int = ""
    way: str = ""
    fate: TransitionStatus | None = None

    def __str__(self) -> str:
        place = (
            f" {WORKERS[self.place]}{self.place + 1}"
            if isinstance(self.place, int)
            else self.place and f" {self.place}"
        )
        fate = f" -> {self.fate.value}" if self.fate else ""
        return f"{self.name}{place}{self.way and f' ({self.way})'}{fate}"


Step = tuple[Act, World]


def open_executions(world: World) -> list[int]:
    """Return the numbers (from 1) of the open executions."""
    return [number for number, one in enumerate(world.executions, 1) if one.outcome is None]


# ------------------------------------------------------------------ the database: one function a statement


def claimed(world: World, place: int, *, started: bool) -> World:
    """CLAIM: the job runs, an execution is open, the attempt is counted."""
    opened = Execution(WORKERS[place], world.attempt + 1, started)
    return world._replace(state=RUNNING, attempt=world.attempt + 1, executions=(*world.executions, opened))


def accepts(world: World, number: int, fence: str) -> bool:
    """Whether the end of this execution is written."""
    mine = world.executions[number - 1]
    running = world.state == RUNNING
    if fence == "none":
        return True
    if fence == "state":
        return running
    if fence == "worker":
        return running and any(world.executions[one - 1].worker == mine.worker for one in open_executions(world))
    if fence == "attempt":
        return running and world.attempt == mine.attempt
    return mine.outcome is None


def finished(world: World, number: int, ending: Outcome, rules: Rules) -> tuple[World, TransitionStatus]:
    """SUCCEED, FAIL, RELEASE: the end of an execution, if the fence lets it through."""
    if number > len(world.executions):
        return world, TransitionStatus.LOST  # the job was pruned
    if not accepts(world, number, rules.fence):
        return world, TransitionStatus.ALREADY_DONE if world.executions[
            number - 1
        ].outcome is ending else TransitionStatus.LOST
    attempt, after = world.executions[number - 1].attempt, closed(world, number, ending)
    if ending is Outcome.SUCCEEDED:
        return after._replace(state=SUCCEEDED), TransitionStatus.DONE
    if world.asked:
        after = after._replace(state=CANCELLED)
    elif ending is Outcome.RELEASED:
        after = after._replace(state=READY)
    elif ending is Outcome.CRASHED:
        after = after._replace(state=after_crash(world, rules, started=True))
    else:
        after = after._replace(state=DEAD if attempt >= rules.max_attempts else READY)
    return after._replace(
        attempt=max(0, world.attempt - (ending is Outcome.RELEASED)),
        crashes=world.crashes + (ending is Outcome.CRASHED),
    ), TransitionStatus.DONE


def closed(world: World, number: int, outcome: Outcome) -> World:
    """The execution's row, closed."""
    rows = list(world.executions)
    rows[number - 1] = rows[number - 1]._replace(outcome=outcome, started=False)
    return world._replace(executions=tuple(rows))


def after_crash(world: World, rules: Rules, *, started: bool) -> State:
    """The policy for a job whose worker was lost: `worker.policy.delay_after_crash`."""
    if started and world.crashes + 1 >= rules.crash_budget:
        return DEAD
    return DEAD if world.attempt >= rules.max_attempts else READY


def rescued(world: World, number: int, rules: Rules) -> World:
    """RESCUE: close what a lost worker held; only what is known to have started costs a crash."""
    started = world.executions[number - 1].started
    state = CANCELLED if world.asked else after_crash(world, rules, started=started)
    return closed(world, number, Outcome.CRASHED)._replace(state=state, crashes=world.crashes + started)


# ------------------------------------------------------------------ the acts: what may happen next


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Yield every act that is possible now, and the world after it."""
    for act in ACTS:
        yield from act(world, rules)


def put(world: World, place: int, slot: Slot) -> World:
    """Return the world with another content of one slot."""
    return world._replace(slots=(*world.slots[:place], slot, *world.slots[place + 1 :]))


def free_places(world: World) -> list[int]:
    """The first idle slot of each worker: which of several takes a job makes no difference."""
    idle = [place for place, slot in enumerate(world.slots) if slot == IDLE]
    return [place for place in idle if WORKERS[place] not in [WORKERS[one] for one in idle if one < place]]


def claim(world: World, rules: Rules) -> Iterator[Step]:
    """A free slot claims: for itself, ahead of its need (never a last attempt), or without getting the reply."""
    number = len(world.executions) + 1
    for place in free_places(world):
        if world.state == READY:
            now = claimed(world, place, started=True)
            yield Act("claim", place), put(now, place, Slot(number, "running"))
            yield Act("claim", place, "reply lost"), now
            if now.attempt < rules.max_attempts:
                ahead = claimed(world, place, started=False)
                yield Act("claim", place, "ahead"), put(ahead, place, Slot(number, "waiting"))


def start(world: World, rules: Rules) -> Iterator[Step]:
    """What waited begins to run; the database does not know until the next beat."""
    for place, slot in enumerate(world.slots):
        if slot.doing == "waiting":
            yield Act("start", place), put(world, place, slot._replace(doing="running"))


def beat(world: World, rules: Rules) -> Iterator[Step]:
    """The worker's supervisor tells the database which of its executions have started."""
    for number in open_executions(world):
        for place, slot in enumerate(world.slots):
            if slot == Slot(number, "running") and not world.executions[number - 1].started:
                rows = list(world.executions)
                rows[number - 1] = rows[number - 1]._replace(started=True)
                yield Act("beat", place), world._replace(executions=tuple(rows))


def end_body(world: World, rules: Rules) -> Iterator[Step]:
    """The task's function ends: it has something to report. What a plain task wrote is committed by now."""
    for place, slot in enumerate(world.slots):
        if slot.doing != "running":
            continue
        for ending in (Outcome.SUCCEEDED, Outcome.FAILED):
            after = put(world, place, slot._replace(doing=ending))
            if ending is Outcome.SUCCEEDED and not rules.atomic:
                after = after._replace(effects=min(2, world.effects + 1))
            yield Act("end", place, ending), after


def give_back(world: World, rules: Rules) -> Iterator[Step]:
    """A stopping worker, or one that lost its lease, means to give back what it has; so does one that finds an
    execution of its own which it does not hold, for its claim's reply was lost."""
    if world.given_back >= rules.give_backs:
        return
    after = world._replace(given_back=world.given_back + 1)
    held = {slot.execution for slot in world.slots}
    for place, slot in enumerate(world.slots):
        if slot.doing in ("waiting", "running"):
            yield Act("give back", place), put(after, place, slot._replace(doing=Outcome.RELEASED))
    for place in free_places(world):
        for number in open_executions(world):
            if number not in held and world.executions[number - 1].worker == WORKERS[place]:
                yield (
                    Act("give back", place, "found unknown"),
                    put(after, place, Slot(number, Outcome.RELEASED)),
                )


def send(world: World, rules: Rules) -> Iterator[Step]:
    """A report reaches the database; the reply may be lost, and then it is sent again."""
    for place, slot in enumerate(world.slots):
        if slot.doing not in REPORTS:
            continue
        ending = Outcome(slot.doing)
        if ending is Outcome.SUCCEEDED and rules.atomic:
            yield from commit(world, rules, place, slot)
            continue
        after, fate = finished(world, slot.execution, ending, rules)
        yield Act("send", place, ending, fate), put(after, place, IDLE)
        if fate is TransitionStatus.DONE:
            yield Act("send", place, f"{ending}, reply lost", fate), after


def commit(world: World, rules: Rules, place: int, slot: Slot) -> Iterator[Step]:
    """An atomic task's finish is in its own transaction. Refused: rolled back. Unknown: a failure is reported."""
    after, fate = finished(world, slot.execution, Outcome.SUCCEEDED, rules)
    unsure = slot._replace(doing=Outcome.FAILED)
    if fate is not TransitionStatus.DONE:
        yield Act("commit", place, "refused", fate), put(world, place, IDLE)
        return
    after = after._replace(effects=world.effects + 1)
    yield Act("commit", place, "", fate), put(after, place, IDLE)
    yield Act("commit", place, "reply lost", fate), put(after, place, unsure)
    yield Act("commit", place, "failed"), put(world, place, unsure)


def crash(world: World, rules: Rules) -> Iterator[Step]:
    """A worker is lost with all it had. A supervisor that lives charges what ran, and gives back what did not."""
    for worker in sorted(set(WORKERS)):
        places = [place for place, name in enumerate(WORKERS) if name == worker and world.slots[place] != IDLE]
        if not places:
            continue
        lost, settled = world, world
        for place in places:
            slot = world.slots[place]
            unstarted = slot.doing == "waiting"
            lost = put(lost, place, IDLE)
            settled = put(settled, place, slot._replace(doing=Outcome.RELEASED if unstarted else Outcome.CRASHED))
            settled = settled._replace(given_back=settled.given_back + unstarted)
        yield Act("crash", worker, "with its supervisor"), lost
        if settled.given_back <= rules.give_backs and settled != world:
            yield Act("crash", worker), settled


def rescue(world: World, rules: Rules) -> Iterator[Step]:
    """A lease is over: it may be at any moment, whatever its worker is doing."""
    for number in open_executions(world):
        yield Act("rescue"), rescued(world, number, rules)


def operate(world: World, rules: Rules) -> Iterator[Step]:
    """Cancel, an operator's retry, prune."""
    if world.state == READY:
        yield Act("cancel"), world._replace(state=CANCELLED, asked=True)
    elif world.state == RUNNING and not world.asked:
        yield Act("cancel"), world._replace(asked=True)
    elif world.state in FINISHED:
        yield Act("prune"), world._replace(state=GONE, executions=())
        if world.retries < rules.retries:
            again = world._replace(state=READY, attempt=0, crashes=0, asked=False, effects=0, counted=0)
            rows = tuple(one._replace(old=True) for one in world.executions)
            yield Act("retry"), again._replace(executions=rows, retries=world.retries + 1)


ACTS: tuple[Callable[[World, Rules], Iterator[Step]], ...] = (
    *(claim, start, beat, end_body, give_back, send, crash, rescue, operate),
)


def forget(world: World) -> World:
    """Drop the closed executions that nobody holds any more: nothing can happen to them, they only count."""
    held = {slot.execution for slot in world.slots}
    kept = [number for number, one in enumerate(world.executions, 1) if one.outcome is None or number in held]
    if len(kept) == len(world.executions):
        return world
    numbers = {old: new for new, old in enumerate(kept, 1)}
    gone = [one for number, one in enumerate(world.executions, 1) if number not in numbers]
    return world._replace(
        executions=tuple(world.executions[number - 1] for number in kept),
        slots=tuple(slot._replace(execution=numbers.get(slot.execution, 0)) for slot in world.slots),
        counted=world.counted + sum(costs_an_attempt(one) for one in gone),
    )


def costs_an_attempt(execution: Execution) -> bool:
    """Whether it counts against the job's attempts."""
    return not execution.old and execution.outcome is not Outcome.RELEASED
