"""The least Django project, for the queues that live in one."""

from collections.abc import Mapping

PACKAGES = ("django==6.1.3", "psycopg[binary]==3.3.9")
MIGRATE = ("-m", "django", "migrate", "-v0")
ENQUEUE = ("-c", "import django; django.setup(); from app.tasks import hold; hold.enqueue()")

SETTINGS = """
import os

SECRET_KEY = "measurement"
USE_TZ = True
INSTALLED_APPS = ["{app}", "app"]
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "USER": os.environ["PGUSER"],
    }}
}}
LOGGING = {{
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {{"line": {{"format": "{{asctime}} {{process}} {{name}} {{levelname}} {{message}}", "style": "{{"}}}},
    "handlers": {{"console": {{"class": "logging.StreamHandler", "formatter": "line"}}}},
    "root": {{"handlers": ["console"], "level": "INFO"}},
}}
"""

TASKS = """
from {module} import task

import job


@task
def hold():
    job.hold()
"""


def project(app: str, module: str, more_settings: str = "") -> Mapping[str, str]:
    """A project with that queue's app installed, and one task, whose decorator is in `module`."""
    return {
        "settings.py": SETTINGS.format(app=app) + more_settings,
        "app/__init__.py": "",
        "app/tasks.py": TASKS.format(module=module),
    }
