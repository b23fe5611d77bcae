"""A long run under load with one random fault after another, and the checker at its end: `--soak MINUTES`."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg

from django_pgqueue.lifecycle import pauses
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.states import Pausable
from tests.process.harness import Worker
from tests.tools.faults import checker, soak_applications, soak_flows, soak_limits, ticks
from tests.tools.faults.app.receivers import VARIABLE as RECEIVERS
from tests.tools.faults.pooler import Pooler
from tests.tools.faults.run import Run
from tests.tools.faults.soak_faults import FAULTS, PAUSED_QUEUE
from tests.tools.faults.suite import Suite

WORKERS: Final = 3
PRODUCERS: Final = 2
JOBS_PER_SECOND: Final = 15.0
"""Of each producer: so that an hour's history fits into memory, and two cores are not the bottleneck."""
RETENTION_SECONDS: Final = 60.0
PAUSES_SECONDS: Final = (1.0, 10.0)
SLOPE_AFTER_SECONDS: Final = 60.0
"""A process that lived for less says nothing about growth."""
DRAIN_SECONDS: Final = 120.0
BESIDES: Final = {
    "queue paused": 0.2,
    "key paused": 0.3,
    "limit overridden": 0.4,
    "service down": 0.4,
    "full chunks": 0.4,
    "workflow retried": 0.4,
    "workflow cancelled": 0.2,
    "suspended hurried": 0.2,
}
"""How often these come just before another fault: a pause is one only with something in it."""
FLOWS: Final = (
    *("nodes", "advanced", "restored", "longest_advance_seconds", "batches", "callbacks", "steps", "functions"),
)
"""The figures of workflows, batches and steps."""
PASSED_OVER_SECONDS: Final = 20.0
"""Of a key: a fault stops the process for five seconds that has just locked it, and may do so three times in a row."""
OBEY_SECONDS: Final = 12.0
"""Of a pause: a claim may be frozen, or wait for a locked table, for a while after the look that it goes by."""


class Crew:
    """Workers and producers that are there again whenever one has gone."""

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run = run
        self.chance = chance
        self.workers: list[Worker] = []
        self.producers: list[subprocess.Popen[str]] = []
        self.sizes: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """Of each process: when it was looked at, and its resident MiB."""
        self.unrunnable: list[int] = []
        """Jobs inserted by hand that no worker can run; they are cancelled at the end."""
        self.pooler: Pooler | None = None

    def fill(self) -> None:
        """Start what is missing, note who has ended, and measure who lives."""
        soak_flows.arm_again(self)
        for worker in [one for one in self.workers if one.process.poll() is not None]:
            self.workers.remove(worker)
        while len(self.workers) < WORKERS:
            self.workers.append(self.new_worker())
        self.producers = [one for one in self.producers if one.poll() is None]
        while len(self.producers) < PRODUCERS:
            seed = str(self.chance.randrange(10**6))
            self.producers.append(self.run.producer("--per-second", str(JOBS_PER_SECOND), "--seed", seed))
        self.measure()

    def new_worker(self, **options: Any) -> Worker:
        """Start a worker. Options are those of `Run.worker()`."""
        return self.run.worker(
            *("--processes", str(self.chance.choice([1, 2]))),
            *self.chance.choice([(), ("--max-jobs", "100")]),
            failpoint=soak_flows.kill_somewhere(self),
            variables={RECEIVERS: "1"},
            ready=False,
            **{"RETENTION": {"succeeded": RETENTION_SECONDS, "cancelled": RETENTION_SECONDS}} | options,
        )

    def measure(self) -> None:
        """Note how large each process of the workers is."""
        for worker in self.workers:
            for pid in (worker.process.pid, *worker.children):
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                except (OSError, IndexError):
                    continue
                if pages:  # none: it has ended
                    self.sizes[pid].append((time.monotonic(), pages * 4096 / 2**20))

    def one(self) -> Worker:
        """A worker that lives."""
        return self.chance.choice([worker for worker in self.workers if worker.process.poll() is None])


def soak(shared: Suite, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run for so long; return the figures, `violations` among them (an empty list is what it has to be)."""
    run = Run(shared, "soak")
    try:
        return _soaked(run, minutes, say)
    except BaseException:
        run.abandon()  # else its processes outlive this one, and their server
        raise


def _soaked(run: Run, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    run.rules = run.rules._replace(
        retention_seconds=RETENTION_SECONDS, obey_seconds=OBEY_SECONDS, passed_over_seconds=PASSED_OVER_SECONDS
    )
    schedules = [
        ticks.add(run, "each second", "every 1 second", missed="all"),
        ticks.add(run, "one at a time", "every 2 seconds", missed="all", if_running="skip"),
    ]
    crew = Crew(run, random.Random(run.suite.seed))
    injected = disturb(crew, FAULTS, iter(lambda: crew.chance.choice(list(FAULTS)), ""), minutes, say)
    return _figures(crew, injected, minutes, schedules)


def disturb(
    crew: Crew,
    faults: Mapping[str, Callable[[Crew], None]],
    names: Iterator[str],
    minutes: float,
    say: Callable[[str], None],
) -> Counter[str]:
    """Inject the named faults one after another, for so long; return how often each was injected."""
    run, injected = crew.run, Counter[str]()
    crew.fill()
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        _wait(crew, crew.chance.uniform(*PAUSES_SECONDS))
        name = next(names)
        say(f"{run.name}: {max(0.0, end - time.monotonic()):5.0f} s left: {name}")
        run.note("fault", name=name)
        try:
            for beside, odds in BESIDES.items():
                if crew.chance.random() < odds:
                    FAULTS[beside](crew)
            faults[name](crew)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            run.note("fault-error", name=name, error=str(error))  # its own session went with the server
        injected[name] += 1
        crew.fill()
    return injected


def _wait(crew: Crew, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        crew.measure()


def drain(crew: Crew, schedules: list[int], within: float = DRAIN_SECONDS) -> float:
    """Enqueue nothing more, hold nothing back, and wait for the end of all jobs; return how many seconds that took."""
    run = crew.run
    for producer in crew.producers:
        producer.kill()
    run.wait_until(lambda: _is_quiet(run, schedules), what="schedules and pauses to end")
    soak_applications.end_unrunnable(crew)
    run.wait_until(lambda: is_unblocked(run), within, what="blocked keys to go on")
    drained = run.wait_until(lambda: soak_flows.are_over(run), within, what="everything to end")
    run.wait_until_done()
    return drained


def _figures(crew: Crew, injected: Counter[str], minutes: float, schedules: list[int]) -> dict[str, Any]:
    run = crew.run
    drained = drain(crew, schedules)
    dead = run.sql("SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE relname LIKE 'pgqueue%' ORDER BY 1")
    killed = soak_flows.killed_at(run)
    history, violations = run.close()
    summary = checker.summary(history)
    return {
        "minutes": minutes,
        "jobs": summary["jobs"],
        "executions": summary["executions"],
        "overlaps": summary["overlaps"],
        "ticks": summary["ticks"],
        "pauses": summary["pauses"],
        "expired": summary["expired"],
        "duplicates": summary["duplicates"],
        "limited": summary["limited"],
        "holds": summary["holds"],
        **{name: summary[name] for name in ("overrides", "pauses_of_keys", "breakers", "chunks", *FLOWS)},
        "killed_at": killed,
        "faults": dict(sorted(injected.items())),
        "violations": [str(violation) for violation in violations],
        "stuck": run_stuck(history.jobs),
        "drained_seconds": round(drained, 1),
        "dead_rows": dict(dead),
        "growth": growth(crew.sizes),
    }


def _is_quiet(run: Run, schedules: list[int]) -> bool:
    """Fire nothing more, and hold nothing back; said in a session that a fault may have ended."""
    for schedule_id in schedules:
        lifecycle_schedules.pause_schedule(run.connection, schedule_id)
    pauses.resume(run.connection, Pausable.QUEUE, PAUSED_QUEUE)
    soak_limits.end_changes(run)
    return True


def is_unblocked(run: Run) -> bool:
    """Retry the dead jobs that block a key, as an operator does; return whether no job waits behind one."""
    rows = run.sql("SELECT id FROM pgqueue_job WHERE limit_order = 2 AND state = 'dead'")
    if rows:
        run.act("retry", [row[0] for row in rows])
        run.sql("NOTIFY pgqueue")
    return not run.scalar("SELECT count(*) FROM pgqueue_job WHERE limit_order = 2 AND finished_at IS NULL")


def run_stuck(jobs: dict[int, dict[str, Any]]) -> int:
    """How many jobs have not ended."""
    return sum(row["state"] in ("waiting", "ready", "running") for row in jobs.values())


def growth(sizes: dict[int, list[tuple[float, float]]]) -> list[dict[str, float]]:
    """Return how the processes grew that lived for a minute or more: MiB at first and at last, and MiB an hour."""
    told = []
    for samples in sizes.values():
        (began, first), (ended, last) = samples[0], samples[-1]
        if ended - began < SLOPE_AFTER_SECONDS:
            continue
        later = [one for one in samples if one[0] > began + (ended - began) / 4]  # past its start
        told.append(
            {
                "seconds": round(ended - began),
                "first_mib": round(first, 1),
                "last_mib": round(last, 1),
                "mib_per_hour": round(slope(later) * 3600, 1),
            }
        )
    return sorted(told, key=lambda one: -one["seconds"])[:6]


def slope(samples: list[tuple[float, float]]) -> float:
    """The least-squares slope of (x, y)."""
    count = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / count, sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures as text."""
    faults = ", ".join(f"{number} {name}" for name, number in figures["faults"].items())
    left = f"{figures['stuck']} stuck, {figures['overlaps']} overlaps after a rescue, dead rows {figures['dead_rows']}"
    asked = f"{figures['ticks']} ticks, {figures['pauses']} pauses, {figures['expired']} jobs expired"
    return [
        f"soak: {figures['minutes']:g} min, {figures['jobs']} jobs, executions {figures['executions']}",
        f"soak: {sum(figures['faults'].values())} faults: {faults}",
        f"soak: {left}, drained in {figures['drained_seconds']} s",
        f"soak: {asked}, {figures['duplicates']} calls had a job already",
        f"soak: starts of jobs with a limit {figures['limited']}, {figures['holds']} holds of keys",
        f"soak: {figures['overrides']} changes of overrides, {figures['pauses_of_keys']} pauses of keys",
        f"soak: breakers {figures['breakers']}, calls by the size of their chunk {figures['chunks']}",
        f"soak: {figures['nodes']} nodes with dependencies: {figures['advanced']}, {figures['restored']} restored",
        f"soak: ready at most {figures['longest_advance_seconds']} s after the last dependency",
        f"soak: {figures['batches']} batches, callbacks {figures['callbacks']}",
        f"soak: steps {figures['steps']}, {figures['functions']} calls of their functions",
        f"soak: processes killed at points {figures['killed_at']}",
        f"soak: growth of the longest-lived: {figures['growth']}",
        f"soak: {len(figures['violations'])} violations",
        *figures["violations"][:50],
    ]
