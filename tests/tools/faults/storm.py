"""The storm: real workers, real applications and all kinds of faults for half an hour, then a check of every promise.

`bin/faults --storm` uses the crew and the checker of the soak. It differs in three ways. It also injects faults that
hit all jobs at once (see `storm_faults`). Some workers are behind a pooler. And it leaves out the faults that make rows
which no worker can claim, so that each death and each crash must have a cause of its own (I28).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.process.harness import Worker
from tests.tools.faults import checker, needs, ticks
from tests.tools.faults.lives import Violation
from tests.tools.faults.pooler import Pooler, beside_pooler
from tests.tools.faults.run import Run
from tests.tools.faults.soak import (
    OBEY_SECONDS,
    PASSED_OVER_SECONDS,
    RETENTION_SECONDS,
    Crew,
    disturb,
    drain,
    run_stuck,
)
from tests.tools.faults.soak_faults import FAULTS
from tests.tools.faults.storm_faults import LEASE_SECONDS, STORM
from tests.tools.faults.suite import Suite

MINUTES: Final = 30.0
DRAIN_SECONDS: Final = 300.0
"""A storm ends with a backlog: commits may have hung for longer than a lease just before."""
BLOWING: Final = (
    *("process killed", "supervisor killed", "host lost", "below killed", "process frozen", "host frozen", "deploy"),
    *("producer killed", "sessions ended", "statements cancelled", "server restarted", "backend killed"),
    *("commits hang", "column altered", "column added", "trigger without its table", "pooler restarted"),
    *("table locked", "rows locked", "horizon pinned", "tables rewritten", "read only", "completions refused"),
    *("bulk act", "operator", "two operators", "finished deleted", "running cancelled", "schedule run", "queue paused"),
    *("key paused", "limit overridden", "service down", "full chunks", "workflow retried", "workflow cancelled"),
    "suspended hurried",
)
"""The faults of the storm. Each comes once before any comes again."""
PROMISES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "I8": (
        "no job is lost, and none is there twice",
        ("rollback-leaves-no-job", "batch-all-or-nothing", "acknowledged-job-survives-crash"),
    ),
    "I19": ("nothing is left running, waiting or due", ("killed-worker-job-still-ends", "lost-worker-jobs-return")),
    "I28": ("no job dies or crashes because of a fault that hits all", ("bad-row-stops-no-queue",)),
    "I1": ("a job has at most one current execution", ("claims-never-share-a-job",)),
    "I2": ("a job is running if and only if it has one", ("tables-match-model",)),
    "I3": ("an outcome is written once", ("late-success-is-refused", "lost-completion-reply-is-looked-up")),
    "I4": ("a finished job stays finished", ("tables-match-model",)),
    "I5": ("the effects of atomic jobs are there exactly once", ("atomic-under-random-faults",)),
    "I6": ("attempts and crashes are what the executions say", ("only-started-jobs-charged",)),
    "I7": ("attempts and crashes stay within their budgets", ("crashing-job-becomes-dead",)),
    "I9": ("nothing starts early, paused, expired or cancelled", ("pause-under-faults", "expiry-under-faults")),
    "I10": ("a unique key has one live job", ("unique-lost-host", "unique-key-free-at-end")),
    "I11": (
        "limits are never exceeded, and ordered keys keep their order",
        ("limit-slots", "limit-rate", "limit-order"),
    ),
    "I16": ("each tick of a schedule counts once", ("tick-fired-once", "tick-all-or-nothing")),
    "I17": ("no job is removed too early", ("workflow-keeps-nodes",)),
    "I22": ("an open circuit breaker admits one probe at a time", ("breaker-probes",)),
    "I23": ("the jobs of a chunk end by themselves", ()),
    "I24": ("nodes run after what they need", ("workflow-advance-once", "workflow-retry-restores")),
    "I25": ("the callbacks of a batch are added exactly once", ("batch-callbacks-once", "batch-misses-no-job")),
    "I26": ("steps and events are stored and delivered once", ("atomic-step-once", "event-is-never-lost")),
    "I27": ("compensations are added once, in reverse order", ("compensation-once", "compensation-in-reverse-order")),
}
"""Of each invariant that the summary lists: its promise, and the ids of that in `guarantees.md`."""
ERROR_SHOWN: Final = 500
"""Characters of an assertion, which may contain the log of a worker."""
RETRY_SECONDS: Final = "1"
"""How long PgBouncer waits after a failed connection. By default it is 15 s, which outlasts a lease."""
OPEN_ACTS: Final = "SELECT count(*) FROM pgqueue_audit WHERE next_batch_at IS NOT NULL"
FAILED_ACTS: Final = "SELECT action, error FROM pgqueue_audit WHERE outcome = 'failed'"


class StormCrew(Crew):
    """Workers and producers as in the soak. Every third worker is behind the pooler, if there is one."""

    def __init__(self, run: Run, chance: random.Random, pooler: Pooler | None) -> None:
        super().__init__(run, chance)
        self.pooler = pooler
        self._started = 0

    def new_worker(self, **options: Any) -> Worker:
        """Start a worker."""
        self._started += 1
        is_pooled = self.pooler is not None and self._started % 3 == 0
        database = self.pooler.settings(self.run.settings) if self.pooler and is_pooled else None
        return super().new_worker(LEASE=LEASE_SECONDS, database=database, **options)


def storm(shared: Suite, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run for so long; return the figures, `violations` among them (an empty list is what it has to be)."""
    run = Run(shared, "storm")
    try:
        return _stormed(run, minutes, say)
    except BaseException:
        run.abandon()  # else its processes outlive this one, and their server
        raise


def _stormed(run: Run, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    run.rules = run.rules._replace(
        retention_seconds=RETENTION_SECONDS,
        obey_seconds=OBEY_SECONDS,
        passed_over_seconds=PASSED_OVER_SECONDS,
        blames_rightly=True,
    )
    reason = needs.missing(("pgbouncer",))
    pooler = None if reason else beside_pooler(run, server_login_retry=RETRY_SECONDS)
    say(f"storm: a pooler before some workers: {f'NOT RUN: {reason}' if reason else 'PgBouncer, by transaction'}")
    schedules = [
        ticks.add(run, "each second", "every 1 second", missed="all"),
        ticks.add(run, "one at a time", "every 2 seconds", missed="all", if_running="skip"),
    ]
    crew = StormCrew(run, random.Random(run.suite.seed), pooler)
    problems: list[Violation] = []
    faults = {name: _noting(problems, name, fault) for name, fault in {**FAULTS, **STORM}.items()}
    names = _each_once(crew.chance, without=() if pooler else ("pooler restarted",))
    injected = disturb(crew, faults, names, minutes, say)
    say("storm: it is over, and what is left is worked off")
    began = time.monotonic()
    with _noted(problems, "I19"):
        _drain(run, crew, schedules)
    drained = time.monotonic() - began
    problems += [Violation("bulk act", 0, f"{action} failed: {error}") for action, error in run.sql(FAILED_ACTS)]
    history, violations = run.close()
    return {
        **checker.summary(history),
        "minutes": minutes,
        "seed": run.suite.seed,
        "faults": dict(sorted(injected.items())),
        "drained_seconds": round(drained, 1),
        "violations": [str(violation) for violation in [*violations, *problems]],
        "stuck": run_stuck(history.jobs),
    }


def _drain(run: Run, crew: Crew, schedules: list[int]) -> None:
    """Wait for the end of all jobs. If it does not come, the checker still reports what was left."""
    run.rules = run.rules._replace(finished=True)
    run.wait_until(lambda: not run.scalar(OPEN_ACTS), DRAIN_SECONDS, "bulk acts to end")  # they retry jobs
    drain(crew, schedules, DRAIN_SECONDS)


def _noting(problems: list[Violation], name: str, fault: Callable[[Crew], None]) -> Callable[[Crew], None]:
    """Return a fault that notes what it asserts itself, such as the end of a worker in time, and goes on."""

    def inject(crew: Crew) -> None:
        with _noted(problems, f"fault {name}"):
            fault(crew)

    return inject


@contextmanager
def _noted(problems: list[Violation], about: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        problems.append(Violation(about, 0, str(error)[:ERROR_SHOWN]))


def _each_once(chance: random.Random, without: tuple[str, ...]) -> Iterator[str]:
    """Yield the faults in a random order, each once before any comes again."""
    names = [name for name in BLOWING if name not in without]
    while True:
        yield from chance.sample(names, len(names))


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures as text: one line for each promise, and the violations."""
    broken = Counter(violation.partition(":")[0] for violation in figures["violations"])
    faults = ", ".join(f"{number} {name}" for name, number in figures["faults"].items())
    return [
        f"storm: {figures['minutes']:g} min, seed {figures['seed']}, {figures['jobs']} jobs, {figures['states']}",
        f"storm: executions {figures['executions']}, {figures['overlaps']} overlaps after a rescue",
        f"storm: {sum(figures['faults'].values())} faults: {faults}",
        f"storm: {figures['ticks']} ticks, {figures['batches']} batches, {figures['nodes']} nodes with dependencies",
        f"storm: starts of jobs with a limit {figures['limited']}",
        f"storm: calls by the size of their chunk {figures['chunks']}, callbacks {figures['callbacks']}",
        f"storm: drained in {figures['drained_seconds']} s, {figures['stuck']} stuck",
        *(
            f"{'VIOLATED' if broken[number] else 'kept':8} {number:4} {promise}"
            + (f" ({', '.join(ids)})" if ids else "")
            + (f": {broken[number]} times" if broken[number] else "")
            for number, (promise, ids) in PROMISES.items()
        ),
        *(f"VIOLATED {number}: {times} times" for number, times in broken.items() if number not in PROMISES),
        f"storm: {len(figures['violations'])} violations",
        *figures["violations"][:50],
    ]
