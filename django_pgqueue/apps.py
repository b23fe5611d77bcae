"""The app's configuration: label `pgqueue`, so that tables and statements have short fixed names."""

from django.apps import AppConfig
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
        from .registry import import_task_modules  # after the apps are loaded

        import_task_modules()
