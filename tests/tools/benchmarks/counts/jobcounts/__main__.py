"""Count some forms of a job: `python -m jobcounts --meter calls --batches 5 thread orm`. Prints JSON.

The variables PGHOST, PGPORT, PGUSER and PGDATABASE name the database. `--migrate` creates its tables.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from .batches import BATCH, WARM_BATCHES
from .meters import BEFORE_DJANGO, METERS, Meter, by_function, measuring

if TYPE_CHECKING:
    from .clock import Clock
    from .engine import Engine
    from .forms import Form
    from .server_counts import Observer


def main() -> None:
    """Print what was counted, for each form."""
    options = _options()
    meter = METERS[options.meter]() if options.meter else None
    if meter is not None and options.meter in BEFORE_DJANGO:
        meter.install()
    os.environ["DJANGO_SETTINGS_MODULE"] = "jobcounts.settings"
    import django

    django.setup()
    if options.migrate:
        from django.core.management import call_command

        call_command("migrate", verbosity=0, run_syncdb=True)
        return
    if meter is not None and options.meter not in BEFORE_DJANGO:
        meter.install()
    json.dump(_all_counted(options, meter), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the slots still wait for jobs


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jobcounts", description=__doc__)
    parser.add_argument("forms", nargs="*")
    parser.add_argument("--migrate", action="store_true", help="create the tables, and end")
    parser.add_argument("--meter", choices=METERS, help="what to count in this process (nothing)")
    parser.add_argument("--batches", type=int, default=2, help=f"batches of {BATCH} jobs to count (%(default)s)")
    parser.add_argument("--alone", action="store_true", help="do not read what the server has counted")
    return parser.parse_args()


def _all_counted(options: argparse.Namespace, meter: Meter | None) -> dict[str, Any]:
    """Count the forms that an application runs, and then those that a worker runs. Only a worker has an `Engine`."""
    from django.db import connection

    from .clock import Clock
    from .engine import Engine
    from .forms import APPLICATION_FORMS, WORKER_FORMS
    from .server_counts import Observer

    clock = Clock()
    clock.install()
    count = partial(_counted, options=options, meter=meter, clock=clock)
    chosen = [form for form in APPLICATION_FORMS if form.name in options.forms]
    with Observer(os.environ["PGDATABASE"]) as observer:
        found = {form.name: count(form, observer=observer) for form in chosen}
        sessions = observer.sessions()
    if chosen := [form for form in WORKER_FORMS if form.name in options.forms]:
        connection.close()  # an older checkout forks here
        engine = Engine(clock)
        with Observer(os.environ["PGDATABASE"]) as observer:
            found |= {form.name: count(form, observer=observer, engine=engine) for form in chosen}
            sessions = observer.sessions()
    return {"versions": _versions(), "jobs": options.batches * BATCH, "forms": found, "sessions": sessions}


def _counted(
    form: Form,
    *,
    options: argparse.Namespace,
    meter: Meter | None,
    clock: Clock,
    observer: Observer,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Return what the batches of one form have cost, after the first ones."""
    _prepare(form, WARM_BATCHES + options.batches, observer)
    for _ in range(WARM_BATCHES):
        form.run(clock, engine)
    clock.install()  # in the modules that were imported meanwhile
    observer.begin()
    _mark(f"begin {form.name}")
    with measuring(meter):
        for _ in range(options.batches):
            form.run(clock, engine)
    _mark("end")
    figures = {} if options.alone else observer.counts()
    if engine is not None:
        observer.check_succeeded((WARM_BATCHES + options.batches) * BATCH)
    return {**figures, "functions": {} if meter is None else by_function(meter.tally)}


def _prepare(form: Form, batches: int, observer: Observer) -> None:
    """Empty the tables, and enqueue what the worker will run. The session that does this ends before the count.

    The ids go on. A worker that receives ids again compares each with those in use, which a plain job does not cost.
    """
    from django.db import connection

    from .models import Visit

    observer.execute("TRUNCATE pgqueue_job, pgqueue_execution")
    observer.execute("TRUNCATE jobcounts_visit RESTART IDENTITY")
    Visit.objects.create(number=0)
    form.prepare(batches)
    connection.close()
    observer.execute("VACUUM ANALYZE pgqueue_job, pgqueue_execution")


def _mark(text: str) -> None:
    """Make a system call that a reader of a trace finds."""
    os.access(f"/jobcounts/{text}", os.F_OK)


def _versions() -> dict[str, str]:
    import django
    import psycopg
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        [server] = cursor.fetchone()
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "django": django.get_version(),
        "psycopg": psycopg.__version__,
        "postgresql": str(server).partition(".")[0].partition(" ")[0],
    }


if __name__ == "__main__":
    main()
