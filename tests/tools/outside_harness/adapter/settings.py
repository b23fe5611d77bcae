"""The settings of the adapter and of its worker. They contain nothing but the queue and one task."""

import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = "a benchmark has no secrets"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_pgqueue", "tests.tools.outside_harness.adapter.jobs"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.get("dbname"),
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
        "HOST": _database.get("host", ""),
        "PORT": _database.get("port", ""),
        "CONN_MAX_AGE": None,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

PGQUEUE: dict[str, Any] = {"QUEUES": ["bench"], "MAX_ATTEMPTS": 10}
if "PGQUEUE_LEASE" in os.environ:
    PGQUEUE["LEASE"] = float(os.environ["PGQUEUE_LEASE"])

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "[pgqueue] %(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_pgqueue": {"handlers": ["console"], "level": "WARNING"}},
}
