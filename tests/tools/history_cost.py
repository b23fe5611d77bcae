"""Measure what the record of jobs and attempts costs: `python -m tests.tools.history_cost [--jobs 50000]`.

It runs the least SQL for a queue that keeps nothing, and adds one thing at a time: the fence, the finished jobs, a
record of each attempt. The last row is this package's own statements. Each variant claims and completes the same jobs
in the same batches on two connections, and the program reads the processor time of their two server processes. It
starts a private server; `PGQUEUE_POSTGRES_BIN` chooses its version. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import django
import psycopg
from django.conf import settings
from django.core.management import call_command

from tests.tools.benchmarks.server import server
from tests.tools.history_variants import FILL, VARIANTS, Variant

NAME_OF_DATABASE = "history_cost"
BATCH = 500


class Cost(NamedTuple):
    """Microseconds of the server's processor time, and bytes of WAL, each for one job."""

    claim_us: float
    complete_us: float
    claim_wal: float
    complete_wal: float


class Meter:
    """Reads the processor time of two sessions, and the WAL of the server."""

    def __init__(self, jobs: int, watcher: Any, *sessions: Any) -> None:
        self.jobs, self.watcher = jobs, watcher
        self.pids = [session.info.backend_pid for session in sessions]
        self.began = self._spent()
        self.wal = [0, 0]

    def _spent(self) -> list[int]:
        return [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in self.pids]

    @contextmanager
    def half(self, number: int) -> Iterator[None]:
        """Count the WAL of one half of a batch: 0 is the claim, 1 the completion."""
        before = self._position()
        yield
        self.wal[number] += self._position() - before

    def _position(self) -> int:
        return int(self.watcher.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])

    def cost(self) -> Cost:
        claim, complete = (now - then for now, then in zip(self._spent(), self.began, strict=True))
        return Cost(claim / self.jobs / 1e3, complete / self.jobs / 1e3, *(count / self.jobs for count in self.wal))


def run(variant: Variant, jobs: int, connect: Callable[[], Any]) -> Cost:
    """Make the tables of a variant, fill them, and claim and complete all jobs."""
    with connect() as watcher, connect() as claiming, connect() as completing:
        watcher.execute("DROP TABLE IF EXISTS job, execution; DROP SEQUENCE IF EXISTS execution_ids")
        watcher.execute(f"CREATE SEQUENCE execution_ids; {variant.tables}")
        settle(watcher, FILL.format(jobs=jobs))
        meter, done, after_at, after_id = Meter(jobs, watcher, claiming, completing), 0, "-infinity", 0
        while done < jobs:
            position = {"after_at": after_at, "after_id": after_id, "limit": BATCH}
            with meter.half(0):
                rows = claiming.execute(variant.claim, position, prepare=True).fetchall()
            given = {"job_ids": [row[0] for row in rows], "execution_ids": [row[1] for row in rows]}
            with meter.half(1):
                completed = completing.execute(variant.complete, given, prepare=True).rowcount
            if not rows or completed != len(rows):
                raise RuntimeError(f"{variant.keeps}: {completed} of {len(rows)} claimed jobs were completed")
            done, after_at, after_id = done + completed, rows[-1][2], rows[-1][0]
        return meter.cost()


def settle(watcher: Any, fill: str) -> None:
    """Fill the table, and have the planner know it."""
    watcher.execute(fill)
    watcher.execute("VACUUM ANALYZE")
    watcher.execute("CHECKPOINT")


def run_own(jobs: int, connect: Callable[[], Any]) -> Cost:
    """Claim and complete jobs by this package's own statements."""
    from django_pgqueue.db import engine_connection
    from django_pgqueue.lifecycle import claims, completions
    from django_pgqueue.lifecycle.types import Cursor, Lane, Succeeded

    claiming, completing = (engine_connection.connect("default", name) for name in ("claim", "complete"))
    with connect() as watcher, claiming, completing:
        watcher.execute("TRUNCATE pgqueue_job, pgqueue_execution CASCADE")
        settle(watcher, FILL.format(jobs=jobs).replace("INTO job", "INTO pgqueue_job"))
        meter, done, cursor = Meter(jobs, watcher, claiming, completing), 0, Cursor()
        options: dict[str, Any] = {"limit": BATCH, "free_slots": BATCH, "worker_id": 7, "lease_seconds": 30.0}
        while done < jobs:
            cursors = {Lane("default", 0): cursor}
            with meter.half(0):
                claimed = claims.claim(claiming, cursors, **options)
            ended = [Succeeded(job.key, None, 0.001, 0.0) for job in claimed]
            with meter.half(1):
                completed = completions.succeed(completing, ended)
            if not claimed or len(completed) != len(ended):
                raise RuntimeError("claimed jobs were not completed")
            done, cursor = done + len(claimed), Cursor(claimed[-1].run_after, claimed[-1].job_id)
        return meter.cost()


def median(costs: list[Cost]) -> Cost:
    """Return the median of each figure."""
    return Cost(*(statistics.median(figures) for figures in zip(*costs, strict=True)))


def main() -> None:
    """Print a table with a row for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with server() as running:
        variables = running.make_database(NAME_OF_DATABASE)
        where: dict[str, Any] = {name: variables[f"PG{name.upper()}"] for name in ("host", "port", "user")}
        configure(where)

        def connect() -> Any:
            return psycopg.connect(**where, dbname=NAME_OF_DATABASE, autocommit=True)

        measured = measure(options.jobs, options.rounds, connect)
    sys.stdout.write("| what is kept | claim + completion | WAL |\n|---|---|---|\n")
    for keeps, cost in measured.items():
        total = cost.claim_us + cost.complete_us
        wal = f"{cost.claim_wal + cost.complete_wal:,.0f} B"
        sys.stdout.write(f"| {keeps} | {cost.claim_us:.1f} + {cost.complete_us:.1f} = {total:.1f} µs | {wal} |\n")


def configure(where: dict[str, Any]) -> None:
    """Set up Django with this package and the database."""
    database = {name.upper(): value for name, value in where.items()} | {"NAME": NAME_OF_DATABASE}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_pgqueue"],
    )
    django.setup()


def measure(jobs: int, rounds: int, connect: Callable[[], Any]) -> dict[str, Cost]:
    """Run all variants in turns, and return the median of each."""
    call_command("migrate", verbosity=0)
    costs: dict[str, list[Cost]] = {}
    for _ in range(rounds):
        for variant in VARIANTS:
            costs.setdefault(variant.keeps, []).append(run(variant, jobs, connect))
        costs.setdefault("this package", []).append(run_own(jobs, connect))
    return {keeps: median(found) for keeps, found in costs.items()}


if __name__ == "__main__":
    main()
