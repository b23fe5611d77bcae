"""The settings of a remote machine: those of the project, with a database that it cannot reach."""

from tests.settings import (
    DEFAULT_AUTO_FIELD,
    INSTALLED_APPS,
    MIDDLEWARE,
    ROOT_URLCONF,
    SECRET_KEY,
    TASKS,
    TEMPLATES,
    TIME_ZONE,
    USE_TZ,
)

__all__ = [
    "DEFAULT_AUTO_FIELD",
    "INSTALLED_APPS",
    "MIDDLEWARE",
    "ROOT_URLCONF",
    "SECRET_KEY",
    "TASKS",
    "TEMPLATES",
    "TIME_ZONE",
    "USE_TZ",
]

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": 1, "NAME": "none"}}
