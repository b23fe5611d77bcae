"""The app's configuration: label `pgqueue`, so that tables and statements have short fixed names."""

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _


class PgQueueConfig(AppConfig):
    """Registers the checks and imports every tasks module of the project."""

    name = "django_pgqueue"
    label = "pgqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the tasks modules, so that each process knows every task by its name."""
        from . import checks  # noqa: F401 -- registering is what the import is for

        with suppress(ModuleNotFoundError):  # Django 5.2 has none
            import django.tasks  # noqa: F401 -- its check asks the backends, and is registered by the import

        from .registry import import_task_modules  # after the apps are loaded

        import_task_modules()
        _follow_immediate()
        setting_changed.connect(_follow_immediate)


def _follow_immediate(*, setting: str = "PGQUEUE", **kwargs: Any) -> None:
    """Run jobs at their enqueue from now on, or no more, as `PGQUEUE["IMMEDIATE"]` says."""
    if setting != "PGQUEUE":
        return
    from .conf import get_settings
    from .signals import job_enqueued

    immediate = False
    with suppress(ImproperlyConfigured):  # the system check says what is wrong
        immediate = get_settings().IMMEDIATE
    if immediate or job_enqueued.receivers:
        from .worker.foreground import run_at_enqueue  # the worker's code, which others need not have

        (job_enqueued.connect if immediate else job_enqueued.disconnect)(run_at_enqueue)
