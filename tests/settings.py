"""Settings for the tests: the example project's, with only the apps that the library's own tests need."""

import django

from example_project.settings import (
    DATABASES,
    DEFAULT_AUTO_FIELD,
    MIDDLEWARE,
    STATIC_URL,
    TEMPLATES,
    TIME_ZONE,
    USE_TZ,
)

__all__ = [
    "DATABASES",
    "DEFAULT_AUTO_FIELD",
    "MIDDLEWARE",
    "STATIC_URL",
    "TEMPLATES",
    "TIME_ZONE",
    "USE_TZ",
]

SECRET_KEY = "tests"
ROOT_URLCONF = "tests.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django_pgqueue",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django_pgqueue.contrib.remote",
    "tests.app",
    "tests.framework",
]
TASKS = {"default": {"BACKEND": "django_pgqueue.backend.PgQueueBackend", "QUEUES": []}}
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
