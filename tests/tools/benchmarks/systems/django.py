"""The Django project that all queues for Django are measured in."""

from __future__ import annotations

from collections.abc import Mapping

from tests.tools.peers.systems.django import MIGRATE, PACKAGES

__all__ = ["DJANGO_FOR_3_11", "MIGRATE", "PACKAGES", "project"]

DJANGO_FOR_3_11 = "django==5.2.9"

SETTINGS = """
import os

SECRET_KEY = "measurement"
USE_TZ = True
INSTALLED_APPS = ["{app}", "app"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "USER": os.environ["PGUSER"],
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "CONN_MAX_AGE": None,
    }}
}}
LOGGING = {{
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {{"console": {{"class": "logging.StreamHandler"}}}},
    "root": {{"handlers": ["console"], "level": "WARNING"}},
}}
"""

MODELS = """
from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=100)


class Visit(models.Model):
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE)
    number = models.IntegerField()
"""

MIGRATION = """
from django.db import migrations, models


def add(apps, schema_editor):
    apps.get_model("app", "Customer").objects.bulk_create(
        [apps.get_model("app", "Customer")(name=f"customer {number}") for number in range(1000)]
    )


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Customer",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("name", models.CharField(max_length=100)),
            ],
        ),
        migrations.CreateModel(
            "Visit",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("customer", models.ForeignKey("app.Customer", on_delete=models.CASCADE)),
                ("number", models.IntegerField()),
            ],
        ),
        migrations.RunPython(add, migrations.RunPython.noop),
    ]
"""

TASKS = """
import base64
import random
import time

from {module} import task

import record
from app.models import Customer, Visit

FRUIT = base64.b64encode(random.Random(0).randbytes(7_500)).decode()  # 10 kB that the server cannot compress


@task
def noop(number):
    record.ran(number)


@task
async def anoop(number):
    record.ran(number)


@task
def began(number):
    record.began(number)


@task
async def abegan(number):
    record.began(number)


@task
def touch(number):
    customer = Customer.objects.get(pk=number % 1000 + 1)
    Visit.objects.create(customer=customer, number=number)
    record.ran(number)


@task
def nap(number):
    time.sleep(0.05)
    record.ran(number)


@task
def carry(number, text):
    record.ran(number)


@task
def fruit(number):
    record.ran(number)
    return FRUIT
"""

ADAPTER = """
from datetime import timedelta

import django
from django.db import transaction
from django.utils import timezone

django.setup()
from app import tasks

transaction = transaction.atomic


def start():
    pass


def enqueue(task, number):
    getattr(tasks, task).enqueue(number)


def enqueue_later(task, number, seconds):
    getattr(tasks, task).using(run_after=timezone.now() + timedelta(seconds=seconds)).enqueue(number)
"""


def project(app: str, module: str, adapter: str, more_settings: str = "") -> Mapping[str, str]:
    """A project with that queue's app installed and our tasks, whose decorator is in `module`.

    `adapter` has `enqueue_many(task, numbers)`, and may have better ways than Django's for the rest.
    """
    return {
        "settings.py": SETTINGS.format(app=app) + more_settings,
        "app/__init__.py": "",
        "app/models.py": MODELS,
        "app/migrations/__init__.py": "",
        "app/migrations/0001_initial.py": MIGRATION,
        "app/tasks.py": TASKS.format(module=module),
        "adapter.py": ADAPTER + adapter,
    }
