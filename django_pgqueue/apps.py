"""The configuration of the Django app.

Django calls `PgQueueConfig.ready()` once in each process, after it has loaded all apps. The app label is `pgqueue`, so
that the names of tables in SQL statements are short and fixed.
"""

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _


class PgQueueConfig(AppConfig):
    """Configure the app: register the system checks and import every tasks module of the project."""

    name = "django_pgqueue"
    label = "pgqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, import the tasks modules and apply `PGQUEUE["IMMEDIATE"]`.

        Every process imports the tasks modules, so that it can look up every task by name.

        Raises:
            ImproperlyConfigured: `PGQUEUE["TASK_MODULES"]` names a module that does not exist.
            Exception: Any error that a tasks module raises during its import.
        """
        from . import checks  # noqa: F401 -- the import registers the checks
        from .ends import job_operations

        self.job_operations = job_operations

        with suppress(ModuleNotFoundError):  # Django 5.2 has no django.tasks
            import django.tasks  # noqa: F401 -- the import registers Django's check, which checks our backend too

        from .tasks.registry import import_task_modules  # here, because the apps are loaded by now

        import_task_modules()
        _apply_immediate()
        setting_changed.connect(_apply_immediate)


def _apply_immediate(*, setting: str = "PGQUEUE", **kwargs: Any) -> None:
    """Start or stop running jobs when they are enqueued, according to `PGQUEUE["IMMEDIATE"]`.

    Also a receiver of `setting_changed`, so that `override_settings` takes effect in tests.
    """
    if setting != "PGQUEUE":
        return
    from .settings.conf import get_settings
    from .signals import job_enqueued

    immediate = False
    with suppress(ImproperlyConfigured):  # system check pgqueue.E001 reports the invalid setting
        immediate = get_settings().IMMEDIATE
    if immediate or job_enqueued.receivers:
        from .worker.foreground import run_at_enqueue  # imported only if needed: worker code

        (job_enqueued.connect if immediate else job_enqueued.disconnect)(run_at_enqueue)
