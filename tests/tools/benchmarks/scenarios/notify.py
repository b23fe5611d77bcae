"""Scenario 13: what it costs producers to wake workers, and what is gained by it."""

from __future__ import annotations

from array import array

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.percentiles import percentile, pick_up_ms
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import seconds
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.systems import notifying
from tests.tools.benchmarks.systems.system import Load, System

PRODUCERS = (1, 8, 16)
PRODUCING_SECONDS = 5.0
WARM = 20
"""Jobs that are run first, so that nothing waits for the worker's start."""
ROOM = 50_000
"""Numbers for each producer: more than it can use."""
PACES = {20: 15.0, 200: 5.0}
"""Jobs a second of a lone producer whose jobs' pick-up is timed, and for how long."""


def paced_jobs(pace: int) -> int:
    return round(pace * seconds(PACES[pace], least=2.0))


def measure(bench: Bench, system: System) -> dict[str, float]:
    bench.produce("bulk", "began", 0, WARM)
    worker = bench.start(system.worker(Load("began")))
    wait_for(lambda: bench.runs.count(1) == WARM and not system.unfinished(bench), 60, "a worker that does not begin")
    measured: dict[str, float] = {}
    first = WARM
    for pace in PACES:
        measured |= picked_up(bench, system, first, pace)
        first += paced_jobs(pace)
    for producers in PRODUCERS:
        measured |= flood(bench, system, first, producers)
        first += producers * ROOM
    bench.stop([worker])
    return measured


def picked_up(bench: Bench, system: System, first: int, pace: int) -> dict[str, float]:
    """A lone producer, whose worker has slept for at least as long as two jobs are apart."""
    last = first + paced_jobs(pace)
    bench.produce("paced", "began", first, last - first, pace)
    wait_for(lambda: not system.unfinished(bench) and not bench.runs[first:last].count(0), 60, "jobs that have not run")
    bench.check_each_ran_once(range(last))
    waited = pick_up_ms(bench, first, last)
    return {
        f"pick_up_p50_ms_at_{pace}": percentile(waited, 0.5),
        f"pick_up_p99_ms_at_{pace}": percentile(waited, 0.99),
    }


def flood(bench: Bench, system: System, first: int, producers: int) -> dict[str, float]:
    """So many producers at once, each as fast as it can; all begin together."""
    firsts = [first + ROOM * number for number in range(producers)]
    lasting = seconds(PRODUCING_SECONDS)
    started = [bench.start_producer("timed", "began", its_first, ROOM, lasting) for its_first in firsts]
    ready = [bench.directory / f"{record.READY}-{its_first}" for its_first in firsts]
    wait_for(lambda: all(path.exists() for path in ready), 60, "producers that are not ready")
    (bench.directory / record.GO).touch()
    done = [bench.produced(producer) for producer in started]
    (bench.directory / record.GO).unlink()
    wait_for(lambda: not system.unfinished(bench), 300, "jobs that are not finished", pause=0.05)
    for its_first, its in zip(firsts, done, strict=True):
        runs = bench.runs[its_first : its_first + ROOM]
        if runs.count(1) != its["enqueued"] or runs.count(0) != ROOM - its["enqueued"]:
            raise RuntimeError("not every job that was enqueued ran once")
    took = array("d")
    for its_first in firsts:
        took.frombytes((bench.directory / f"{record.TOOK}-{its_first}").read_bytes())
    return {
        f"enqueued_per_second_{producers}": sum(its["per_second"] for its in done),
        f"enqueue_p50_ms_{producers}": percentile(took, 0.5) * 1000,
        f"enqueue_p99_ms_{producers}": percentile(took, 0.99) * 1000,
    }


NOTIFY = Scenario(
    name="13",
    title="one enqueue after the other by 1, 8 and 16 producers at once, while a worker runs them; and their pick-up",
    measure=measure,
    takes_part=lambda system: system.name in ("us", notifying.WITHIN.name, notifying.NEVER.name),
    jobs=lambda system: WARM + sum(map(paced_jobs, PACES)) + sum(PRODUCERS) * ROOM,
    figure="enqueued_per_second_16",
)
