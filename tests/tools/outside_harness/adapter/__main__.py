"""Speak the protocol of hardbyte/postgresql-job-queue-benchmarking: `python -m tests.tools.outside_harness.adapter`.

This process enqueues, measures, and prints JSON lines. Its child, `runworker`, runs the jobs. The worker
starts first, so that it imports Django at the same time as this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from . import config
from .samples import Figures, emit, sample_until, timestamp
from .worker import Worker


def main() -> int:
    """Run a replica until SIGTERM or until its worker ends, and return the exit code."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if config.SCENARIO not in ("long_horizon", "migrate_only"):
        raise SystemExit(f"unknown scenario {config.SCENARIO}")
    os.environ["DJANGO_SETTINGS_MODULE"] = f"{__package__}.settings"
    if config.SCENARIO == "migrate_only":
        migrate()
        return 0
    worker = Worker()
    try:
        migrate()
        emit(**descriptor())
        return run(worker, stopping)
    finally:
        worker.stop()
        worker.close()


def migrate() -> None:
    """Make the tables, unless they exist."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def descriptor() -> dict[str, Any]:
    """Return the first line that the adapter prints."""
    import django
    from django.db import connection
    from django.db.migrations.recorder import MigrationRecorder

    manifest = json.loads((config.HERE / "adapter.json").read_text())
    applied = MigrationRecorder(connection).applied_migrations()
    return {
        "kind": "descriptor",
        "system": config.SYSTEM,
        "event_tables": manifest["event_tables"],
        "extensions": manifest["extensions"],
        "version": f"dj-pgqueue {version('dj-pgqueue')}, Django {django.__version__}",
        "schema_version": max(name for app, name in applied if app == "pgqueue"),
        "db_name": connection.settings_dict["NAME"],
        "started_at": timestamp(),
    }


def run(worker: Worker, stopping: threading.Event) -> int:
    """Enqueue, measure and report until the replica has to stop. Return 1 if the worker ended by itself."""
    from .producer import Producer, count_waiting_until, log

    worker.wait_until_ready(stopping)
    log(f"ready after {time.monotonic() - config.STARTED_AT:.2f} s")
    figures = Figures()
    start(Producer(stopping, figures).run)
    start(sample_until, stopping, figures)
    start(worker.receive_until, stopping, figures)
    if config.INSTANCE == 0 or config.MODE == "depth-target":
        start(count_waiting_until, stopping, figures)
    while not stopping.wait(0.5):
        if worker.process.poll() is not None:
            log(f"the worker has exited with {worker.process.returncode}")
            return 1
    return 0


def start(target: Callable[..., None], *arguments: object) -> None:
    """Call a function in a thread that does not delay the exit."""
    threading.Thread(target=target, args=arguments, daemon=True).start()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the threads wait in system calls
