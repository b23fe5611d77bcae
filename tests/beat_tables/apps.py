"""The stand-in's configuration."""

from django.apps import AppConfig


class BeatTablesConfig(AppConfig):
    """Has the label of django-celery-beat."""

    name = "tests.beat_tables"
    label = "django_celery_beat"
    default_auto_field = "django.db.models.BigAutoField"
