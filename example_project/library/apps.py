"""The app's entry in INSTALLED_APPS."""

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    """The document library."""

    name = "example_project.library"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Document library"
