"""Measure the queue beside a long history: `python -m tests.tools.long_history --jobs 50000000`.

The program starts a private server, and fills one database with this many finished jobs of the last 12 months, and
another one with 20,000. Each has 200 pending jobs. Then it measures both in turns: the rate of a worker, of enqueues,
of archiving and of pruning, and the SQL of the console and of `stats`. It prints tables, and removes the server.

The fill of 50,000,000 jobs needs 45 GB of disk and half an hour. With `--directory`, the server stays, and the next
call continues: `--fill-seconds 280` ends a fill after that time, and `--measure` chooses the measurements.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from example_project.embedded.server import Cluster

os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": "postgres:///postgres"}


def main() -> int:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000_000, help="finished jobs in the long history")
    parser.add_argument("--small-jobs", type=int, default=20_000, help="finished jobs in the small one")
    parser.add_argument("--directory", type=Path, help="keep the server here, and continue with it; a short path")
    parser.add_argument("--fill-seconds", type=float, default=float("inf"), help="stop filling after this time")
    parser.add_argument("--measure", default="sizes,rates,moves,stats,console", help="what to measure, by commas")
    parser.add_argument("--soak-seconds", type=float, default=0.0, help="then run a steady load for this time")
    parser.add_argument("--soak-rate", type=int, default=1000, help="jobs enqueued, run and pruned per second in it")
    parser.add_argument("--soak-every", type=float, default=60.0, help="seconds between two rows of its table")
    parser.add_argument("--soak-small", action="store_true", help="soak the small history instead")
    options = parser.parse_args()
    import django

    django.setup()
    home = options.directory or Path(tempfile.mkdtemp(prefix="pgh", dir="/var/tmp"))
    try:
        return prepare_and_measure(home, options)
    finally:
        if options.directory is None:
            shutil.rmtree(home)


def prepare_and_measure(home: Path, options: argparse.Namespace) -> int:
    """Make both databases, then measure. Return 1 if the fill is not complete."""
    from tests.tools.long_history import measure, place, soak

    until = time.monotonic() + options.fill_seconds
    if not (home / "filled").exists():
        with place.running(home, place.FILLING) as cluster:
            if not make_databases(cluster, {place.SMALL: options.small_jobs, place.LONG: options.jobs}, until):
                return 1
        (home / "filled").touch()
    with place.running(home, place.MEASURED) as cluster:
        if options.measure:
            measure.measure(cluster, home, options.measure.split(","))
        if options.soak_seconds:
            database = place.SMALL if options.soak_small else place.LONG
            every, rate = options.soak_every, options.soak_rate
            soak.soak(cluster, home, database, seconds=options.soak_seconds, every=every, rate=rate)
    return 0


def make_databases(cluster: Cluster, jobs: dict[str, int], until: float) -> bool:
    """Create the two databases and fill them. Return whether they are complete."""
    from django.core.management import call_command

    from tests.tools.long_history import fill, place

    for name, number in jobs.items():
        place.use_database(cluster, "postgres")
        if not place.scalar("SELECT count(*) FROM pg_database WHERE datname = %s", [name]):
            place.run(f"CREATE DATABASE {name}")
        place.use_database(cluster, name)
        call_command("migrate", verbosity=0)
        if not fill.fill(number, until):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
