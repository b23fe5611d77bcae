"""System checks: what is wrong with the set-up, said before a job meets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from . import conf, middleware, registry, timetable

COMMAND = "runworker"


@register("pgqueue")
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.E001: `PGQUEUE` has an unknown option or a wrong value."""
    return [Error(problem, id="pgqueue.E001") for problem in conf.problems(getattr(settings, "PGQUEUE", {}))]


@register("pgqueue")
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.E002: a task is where no worker would find it."""
    return [
        Error(registry.not_found(task), id="pgqueue.E002")
        for task in registry.all_tasks()
        if not registry.is_found_by_workers(task.func.__module__)
    ]


@register("pgqueue")
def check_schedules(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.E006: a schedule of the code cannot run, or two have one name."""
    if conf.problems(getattr(settings, "PGQUEUE", {})):  # E001 says so, and nothing can be judged
        return []
    return [Error(problem, id="pgqueue.E006") for problem in timetable.problems()]


@register("pgqueue")
def check_database(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.E003: the database of the jobs is not PostgreSQL."""
    from .models import Job  # checks are registered before the models are loaded

    alias = router.db_for_write(Job)
    if connections[alias].vendor == "postgresql":
        return []
    return [
        Error(
            f"Jobs go to the database {alias!r}, which is {connections[alias].display_name}, not PostgreSQL.",
            hint="Use django.db.backends.postgresql with psycopg 3, or a router that sends pgqueue's models there.",
            id="pgqueue.E003",
        )
    ]


@register("pgqueue")
def check_middleware(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.E005: a middleware cannot be imported, or is none."""
    if conf.problems(getattr(settings, "PGQUEUE", {})):
        return []
    try:
        middleware.chain()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="pgqueue.E005")]
    return []


@register("pgqueue", deploy=True)
def check_immediate(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.W002: jobs run in the process that enqueues them, with `manage.py check --deploy`."""
    if conf.problems(getattr(settings, "PGQUEUE", {})) or not conf.get_settings().IMMEDIATE:
        return []
    return [
        checks.Warning(
            "PGQUEUE['IMMEDIATE'] runs jobs where they are enqueued: in requests, and without a retry by any worker.",
            hint="Leave it to tests and to the development server.",
            id="pgqueue.W002",
        )
    ]


@register(Tags.compatibility)
def check_command(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """pgqueue.W001: Channels has a `runworker` too; the app that stands first has the command."""
    if not apps.is_installed("channels"):
        return []
    names = [config.name for config in apps.get_app_configs()]
    ours = names.index("django_pgqueue") < names.index("channels")
    winner, loser = ("django_pgqueue", "channels") if ours else ("channels", "django_pgqueue")
    return [
        checks.Warning(
            f"`manage.py {COMMAND}` is {winner}'s, which stands before {loser} in INSTALLED_APPS.",
            hint="`manage.py pgqueue worker` is always this package's.",
            id="pgqueue.W001",
        )
    ]
