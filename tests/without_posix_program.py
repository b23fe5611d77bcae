"""What an application does with the queue, for `tests.without_posix`. It prints what it has done."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from pkgutil import walk_packages
from threading import Thread

import django

import django_pgqueue

django.setup()

from django.conf import settings  # noqa: E402 -- the apps have to be ready
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, connections  # noqa: E402
from django.test import Client  # noqa: E402

from django_pgqueue.models import Job  # noqa: E402
from django_pgqueue.testing import run_jobs  # noqa: E402
from tests.app import tasks  # noqa: E402

PAGES = ("job/overview/", "job/", "job/tasks/", "job/queues/", "job/doctor/", "worker/", "schedule/", "{}/change/")
COMMANDS = (
    ["jobs", "list"],
    ["jobs", "show", "1"],
    ["doctor"],
    ["workers"],
    ["archive", "--table", "--older-than", "1d"],
    ["adopt", "--dry-run"],
    ["why", "1"],
)


def say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")


def run_in_a_thread() -> None:
    try:
        run_jobs()
    finally:
        connections.close_all()


def command(*arguments: str) -> str:
    """Run a command, and return what it says or why it refuses."""
    output = StringIO()
    try:
        call_command(*arguments, stdout=output)
    except (CommandError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return output.getvalue()


for module in walk_packages(django_pgqueue.__path__, "django_pgqueue."):
    import_module(module.name)
assert vars(sys)["modules"]["fcntl"] is None
settings.ALLOWED_HOSTS = ["testserver"]
job = tasks.add.enqueue(1, 2)
tasks.noop.enqueue_many([((), {})] * 3)
thread = Thread(target=run_in_a_thread)
thread.start()
assert job.wait(60) == 3, "another thread has run it"
thread.join()
failed = tasks.fail.using(max_attempts=1).enqueue()
assert run_jobs() == 1
failed = Job.objects.get(pk=failed.pk)
assert (failed.state, bool(failed.retry())) == ("dead", True)
assert Job.objects.filter(pk=failed.pk).cancel() == 1
say("jobs", Job.objects.filter(state="succeeded").count())

client = Client()
client.force_login(User.objects.get_or_create(username="anna", is_staff=True, is_superuser=True)[0])
for page in PAGES:
    path = f"/admin/pgqueue/{page}".replace("{}", f"job/{job.pk}")
    say("page", path.replace(str(job.pk), "0"), client.get(path).status_code)

later = tasks.add.using(run_after=3600).enqueue(3, 4)
say("run", command("pgqueue", "run", str(later.pk)).replace("\n", " "), Job.objects.get(pk=later.pk).result)
for arguments in COMMANDS:
    say("command", arguments[0], command("pgqueue", *arguments).partition("\n")[0])
say("archive", command("pgqueue", "archive", "--file", "/nonexistent/archive.gz", "--older-than", "1d"))
say("runworker", command("runworker"))
say("worker", command("pgqueue", "worker"))
connection.close()
