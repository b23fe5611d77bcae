"""Settings of the processes of a release, which use its version of the package and of the shop."""

from tests.worker_settings import DATABASES, LOGGING, PGQUEUE

__all__ = ["DATABASES", "LOGGING", "PGQUEUE"]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_pgqueue", "shop"]  # without the admin
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
SECRET_KEY = "tests"
USE_TZ = True
