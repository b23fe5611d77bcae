"""Run the adapter without the harness: `python -m tests.tools.outside_harness.cells [CELL…] [--scale 0.1]`.

Each cell starts the adapter on a new database of a private server, and measures its phases. The program prints a table
in Markdown, with a row for each phase. Nothing else should run on the machine. All cells take about an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.tools.benchmarks.server import Counters, Server, server
from tests.tools.peers.brokers import connect

from .replica import Replica

DATABASE: Final = "pgqueue_bench"
HELD: Final = "held"
"""The name of a phase in which another transaction holds a snapshot."""
RESTARTED: Final = "restarted"
"""The name of a phase that begins with SIGKILL to the replica and the start of a new one."""
SIZES: Final = (
    "SELECT sum(n_dead_tup)::bigint, (pg_database_size(current_database()) / 1000000)::int FROM pg_stat_user_tables"
)
LONG_S: Final = 30
"""In cells whose phases are shorter than this, the adapter samples each second instead of every 5 s."""


class Cell(NamedTuple):
    """One run of the adapter: its variables, and its phases with their seconds."""

    variables: dict[str, object]
    phases: tuple[tuple[str, float], ...]


def peak(workers: int, **variables: object) -> Cell:
    """Return a cell in which 4,000 jobs wait all the time. Its figure is the rate."""
    depth = {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": 4000, "WORKER_COUNT": workers}
    return Cell({**depth, **variables}, (("warmup", 10), ("clean", 60)))


def held(cell: Cell) -> Cell:
    """Return the cell with a snapshot that is held for ten minutes."""
    return Cell(cell.variables, (("warmup", 10), ("clean", 60), (HELD, 600), ("recovery", 120)))


LOAD_800: Final = Cell({"PRODUCER_RATE": 800, "WORKER_COUNT": 32}, ())
ASYNC: Final = {"PGQUEUE_TASK": "async"}
CELLS: Final = {
    "peak_w16": peak(16),
    "peak_w64": peak(64),
    "peak_w64_async": peak(64, **ASYNC),
    "peak_w64_p2": peak(64, PGQUEUE_PROCESSES=2),
    "peak_w64_p2_async": peak(64, PGQUEUE_PROCESSES=2, **ASYNC),
    "wait_100ms_w64": peak(64, JOB_WORK_MS=100),
    "wait_100ms_w64_async": peak(64, JOB_WORK_MS=100, **ASYNC),
    "wait_100ms_w500": peak(500, JOB_WORK_MS=100),
    "wait_100ms_w500_async": peak(500, JOB_WORK_MS=100, **ASYNC),
    "restart": Cell({"PRODUCER_RATE": 300, "WORKER_COUNT": 32}, (("clean", 15), *((RESTARTED, 15),) * 3)),
    "held_800": held(LOAD_800),
    "held_peak": held(peak(64)),
    "held_peak_p2": held(peak(64, PGQUEUE_PROCESSES=2)),
}


@dataclass
class Figures:
    """The figures of one phase, as its row shows them."""

    cell: str
    phase: str
    rate: float
    least: float
    most: float
    p50_ms: float
    p99_ms: float
    depth: float
    row_versions: float
    """Row versions that one job has written over or deleted."""
    wal_bytes: float
    dead_rows: int
    """How many dead rows the tables have at the end of the phase."""
    size_mb: int
    """The size of the database at the end of the phase."""
    ready_seconds: float
    """From the start of the newest replica until its worker was ready."""


def run(name: str, on: Server, scale: float) -> Iterator[Figures]:
    """Run one cell, and yield the figures of each phase when it is over."""
    cell = CELLS[name]
    variables = on.make_database(DATABASE)
    period = 5 if scale * max(seconds for _, seconds in cell.phases) >= LONG_S else 1
    environment = {**cell.variables, "DATABASE_URL": url(variables), "SAMPLE_EVERY_S": period}
    replica = Replica(environment)
    try:
        with connect(variables, DATABASE) as connection:
            replica.wait_until_sampling()
            for phase, seconds in cell.phases:
                if phase == RESTARTED:
                    replica.kill()
                    replica = Replica(environment)
                    replica.wait_until_sampling()
                with snapshot(variables) if phase == HELD else contextlib.nullcontext():
                    yield measured(name, phase, replica, connection, max(seconds * scale, 2 * period))
        replica.stop()
    finally:
        replica.kill()


def measured(name: str, phase: str, replica: Replica, connection: psycopg.Connection[Any], seconds: float) -> Figures:
    """Let the replica work for some seconds, and return its figures."""
    replica.new_values()
    before = Counters.read(connection)
    time.sleep(seconds)
    replica.check()
    values, counted = replica.new_values(), Counters.read(connection).since(before)
    rates = values["completion_rate"]
    jobs = max(1.0, statistics.mean(rates) * seconds)
    [(dead_rows, size_mb)] = connection.execute(SIZES).fetchall()
    return Figures(
        cell=name,
        phase=phase,
        rate=statistics.median(rates),
        least=min(rates),
        most=max(rates),
        p50_ms=statistics.median(values["end_to_end_p50_ms"]),
        p99_ms=statistics.median(values["end_to_end_p99_ms"]),
        depth=statistics.median(values["queue_depth"]),
        row_versions=counted.row_versions / jobs,
        wal_bytes=counted.wal_bytes / jobs,
        dead_rows=dead_rows,
        size_mb=size_mb,
        ready_seconds=replica.ready_seconds(),
    )


@contextlib.contextmanager
def snapshot(variables: dict[str, str]) -> Iterator[None]:
    """Hold a snapshot in another session, so that no dead row can be removed."""
    with connect(variables, DATABASE) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        yield
        holder.execute("COMMIT")


def url(variables: dict[str, str]) -> str:
    """Return the address of the database."""
    where = f"host={variables['PGHOST']}&port={variables['PGPORT']}"
    password = f":{variables['PGPASSWORD']}" if "PGPASSWORD" in variables else ""
    return f"postgresql://{variables['PGUSER']}{password}@/{DATABASE}?{where}"


HEADER: Final = (
    "| cell | phase | jobs/s | range | p50 | p99 ms | depth | versions a job | WAL a job | dead rows | MB | ready s |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def row(figures: Figures) -> str:
    """Return the row of a phase."""
    return (
        f"| {figures.cell} | {figures.phase} | {figures.rate:,.0f} | {figures.least:,.0f}–{figures.most:,.0f} "
        f"| {figures.p50_ms:,.1f} | {figures.p99_ms:,.1f} | {figures.depth:,.0f} | {figures.row_versions:.2f} "
        f"| {figures.wal_bytes:,.0f} B | {figures.dead_rows:,} | {figures.size_mb:,} | {figures.ready_seconds:.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells, print a row for each phase, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.outside_harness.cells", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"Default: all of {', '.join(CELLS)}.")
    parser.add_argument("--scale", type=float, default=1.0, help="Multiply the duration of each phase by this.")
    parser.add_argument("--json", type=Path, metavar="PATH", help="Also write all figures to this file.")
    options = parser.parse_args(arguments)
    if unknown := set(options.cells) - set(CELLS):
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    found: list[Figures] = []
    print(*HEADER, sep="\n", flush=True)  # noqa: T201 -- the output of the program
    for name in options.cells or CELLS:
        with server() as on:  # a new one for each cell, so that none inherits the dead rows of another
            for figures in run(name, on, options.scale):
                found.append(figures)
                print(row(figures), flush=True)  # noqa: T201 -- as above
    if options.json:
        options.json.write_text(json.dumps([vars(figures) for figures in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
