"""System checks: report configuration errors before a job runs into them.

`manage.py check` calls them, and so does each management command that checks the project first. Every check has an id
of its own (`pgqueue.E001` …). A check that needs valid settings returns no messages while `pgqueue.E001` reports an
error in `PGQUEUE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.apps import AppConfig, apps
from django.conf import global_settings, settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils import translation

from . import middleware
from .arguments.plan import new_plan
from .encoding import codecs
from .exceptions import InvalidTask
from .schedules import declarations
from .settings import conf
from .tasks import registry

if TYPE_CHECKING:
    from .doctor import Finding

COMMAND = "runworker"


@register("pgqueue")
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E001: `PGQUEUE` has an unknown option or an invalid value."""
    return [Error(problem, id="pgqueue.E001") for problem in conf.problems(getattr(settings, "PGQUEUE", {}))]


@register("pgqueue")
def check_name_of_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.W005: a setting looks like a misspelled `PGQUEUE`, which would have no effect."""
    # Django warns of a deprecated setting of its own if somebody reads it.
    own = {"PGQUEUE", *vars(global_settings)}
    names = [name for name in dir(settings) if name.isupper() and name not in own]
    return [
        checks.Warning(f"The setting {name} has no effect.", hint=f"Write {meant}.", id="pgqueue.W005")
        for name in names
        if (meant := conf.meant_setting(name, getattr(settings, name, None)))
    ]


@register("pgqueue")
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E002: a task is in a module that workers do not import."""
    return [
        Error(registry.not_found(task), id="pgqueue.E002")
        for task in registry.all_tasks()
        if not registry.is_found_by_workers(task.func.__module__)
    ]


@register("pgqueue")
def check_annotations(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E008 and W003: the annotations of a task cannot be used, or one of them is ignored."""
    found: list[CheckMessage] = []
    for task in registry.all_tasks():
        if task.adapter is not None:
            continue
        try:
            plan = new_plan(task.func, int(task.takes_context))
        except InvalidTask as error:
            found.append(Error(f"{task.name}: {error}", id="pgqueue.E008"))
            continue
        found += [
            checks.Warning(
                f"{task.name}: the annotation of {name!r} is not used, so its values stay plain JSON: {reason}",
                hint="If a name is not defined, import it outside `if TYPE_CHECKING:`.",
                id="pgqueue.W003",
            )
            for name, reason in plan.ignored.items()
        ]
    return found


@register("pgqueue")
def check_schedules(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E006: a schedule declared in code cannot run, or two schedules have the same name."""
    if conf.problems(getattr(settings, "PGQUEUE", {})):  # E001 reports it; schedules depend on valid settings
        return []
    return [Error(problem, id="pgqueue.E006") for problem in declarations.problems()]


@register("pgqueue")
def check_database(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E003: the database that stores the jobs is not PostgreSQL."""
    from .models import Job  # checks are registered before the models can be imported

    alias = router.db_for_write(Job)
    if connections[alias].vendor == "postgresql":
        return []
    return [
        Error(
            f"Jobs are stored in the database {alias!r}, which is {connections[alias].display_name}, not PostgreSQL.",
            hint="Use django.db.backends.postgresql with psycopg 3, or a router that sends pgqueue's models there.",
            id="pgqueue.E003",
        )
    ]


EXAMINED: Final = {"indexes": "pgqueue.W011", "autovacuum": "pgqueue.W012", "grants": "pgqueue.W013"}
"""The checks of the doctor that are system checks too, and their ids."""


@register(Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report what the doctor finds, with `check --database` only.

    pgqueue.W011: an index is missing or invalid. W012: the queue's tables are not vacuumed. W013: the role lacks grants
    that it needs.
    """
    return [
        checks.Warning(finding.what, hint=finding.fix, obj=alias, id=message_id)
        for check_id, message_id in EXAMINED.items()
        for alias, finding in _database_findings(check_id, databases)
    ]


def _database_findings(check_id: str, databases: Sequence[str] | None) -> Iterator[tuple[str, Finding]]:
    """Yield what one check of the doctor finds in each database that has the queue's tables.

    The messages are warnings, because `migrate` runs these checks too, and an error would stop it. A database that is
    new or cannot be examined gives none.
    """
    if not databases:  # Django calls these checks at each start; only `check --database` names databases
        return
    from .db.queue_databases import has_tables
    from .doctor import Level, examine  # imported only if needed: a worker examines no database
    from .doctor.catalogue import CHECKS

    check = next(check for check in CHECKS if check.id == check_id)
    for alias in databases:
        if not has_tables(alias):
            continue
        with translation.override("en"):
            findings = examine(alias, [check])
        for finding in findings:
            if finding.id == check_id and finding.level is not Level.OK and "cannot_see" not in finding.data:
                yield alias, finding


@register("pgqueue")
def check_classes(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.E005 or E010: a middleware or a codec cannot be imported, or is not a valid class."""
    if conf.problems(getattr(settings, "PGQUEUE", {})):
        return []
    found: list[CheckMessage] = []
    for message_id, load in (("pgqueue.E005", middleware.chain), ("pgqueue.E010", codecs.project_codecs)):
        try:
            load()
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id=message_id))
    return found


@register("pgqueue", deploy=True)
def check_immediate(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.W002 (`check --deploy` only): jobs run in the process that enqueues them."""
    if conf.problems(getattr(settings, "PGQUEUE", {})) or not conf.get_settings().IMMEDIATE:
        return []
    return [
        checks.Warning(
            "PGQUEUE['IMMEDIATE'] is True: jobs run during enqueue(), also in requests, and no worker retries them.",
            hint="Set it only for tests and the development server.",
            id="pgqueue.W002",
        )
    ]


@register("pgqueue", deploy=True)
def check_environment(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.W004 (`check --deploy` only): workers do not recognise a physical copy of the database."""
    if conf.problems(getattr(settings, "PGQUEUE", {})):
        return []
    if conf.get_settings().ENVIRONMENT or conf.get_settings().CLONE_GUARD == "off":
        return []
    return [
        checks.Warning(
            "PGQUEUE['ENVIRONMENT'] is not set: a worker would run the jobs of a snapshot of this database.",
            hint="Set another name in each environment, such as 'production' and 'staging'.",
            id="pgqueue.W004",
        )
    ]


@register(Tags.compatibility)
def check_command(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report pgqueue.W001: Channels has a `runworker` command too, and the app listed first provides it."""
    if not apps.is_installed("channels"):
        return []
    names = [config.name for config in apps.get_app_configs()]
    ours = names.index("django_pgqueue") < names.index("channels")
    winner, loser = ("django_pgqueue", "channels") if ours else ("channels", "django_pgqueue")
    return [
        checks.Warning(
            f"`manage.py {COMMAND}` is {winner}'s, because {winner} is listed before {loser} in INSTALLED_APPS.",
            hint="`manage.py pgqueue worker` always starts django_pgqueue's worker.",
            id="pgqueue.W001",
        )
    ]
