"""Settings of a worker that a test starts as a process: the test's own database, and quick leases."""

import json
import os

from tests import settings

globals().update({name: value for name, value in vars(settings).items() if name.isupper()})

DATABASES = {"default": settings.DATABASES["default"] | json.loads(os.environ["PGQUEUE_TEST_DATABASE"])}
for _alias, _settings in json.loads(os.environ.get("PGQUEUE_TEST_MORE_DATABASES", "{}")).items():
    DATABASES[_alias] = settings.DATABASES["default"] | _settings
if "PGQUEUE_TEST_HOOKS" in os.environ:
    globals()["INSTALLED_APPS"] = [*settings.INSTALLED_APPS, "tests.hooks"]
PGQUEUE = json.loads(os.environ.get("PGQUEUE_TEST_OPTIONS", "{}"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {process} {threadName} {levelname} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_pgqueue": {"handlers": ["console"], "level": os.environ.get("PGQUEUE_TEST_LOG", "INFO")}},
}
