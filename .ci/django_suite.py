"""Runs Django's own tests of its tasks framework with our backend in the place of its two.

They come from the source distribution of the Django that is installed, which pip fetches, and are changed by `CHANGES`
in a directory for temporary files. Exits with 1 if others fail than those of `CANNOT_HOLD`, or one of these does not.
Where nothing could be fetched, that is said, and the exit code is 0.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import Any

import django
from django.conf import settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from django_pgqueue.backend import PgQueueBackend

PATIENCE_SECONDS = 300
BACKEND = "django_suite.Recording"
CANNOT_HOLD = {
    "ImmediateBackendTestCase.test_cannot_get_result": "ours has results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "ours has results",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "ours defers",
}
"""All of them say what the immediate backend is, or cannot do."""
DATABASE = [
    (r"\bSimpleTestCase\b", "TestCase"),  # the simple one may not ask a database
    (r"\A", "from asgiref.sync import sync_to_async\nfrom django_pgqueue.testing import run_jobs\n"),
]
TABLES = (r"available_apps = \[\]", "available_apps = ['django_pgqueue']")  # theirs are emptied after a test
DUMMY = [
    (r"django\.tasks\.backends\.dummy\.DummyBackend", BACKEND),
    (r"from django\.tasks\.backends\.dummy import", "from django_suite import Recording as"),
    # Synchronous calls in coroutines, which Django refuses where a database is asked.
    (r"(?m)^( +)(default_task_backend|test_tasks\.noop_task)(\.get_result)\(\"", r'\1await sync_to_async(\2\3)("'),
]
REFRESH = (r"(?m)^( +)result\.refresh\(\)", r"\1await sync_to_async(result.refresh)()")
IMMEDIATE = [
    (r"django\.tasks\.backends\.immediate\.ImmediateBackend", BACKEND),
    (r"from django\.tasks\.backends\.immediate import", "from django_suite import Recording as"),
    (r"override_settings\(\n", "override_settings(\nPGQUEUE={'IMMEDIATE': True},\n"),
]
# Where the dummy's store is made to say that a task has succeeded: once in a function, then in a coroutine.
RUNS = [
    (r"(?s)\A(.*?) enqueued_result = .*?\n.*?\n", rf"\1 {call}\n")
    for call in ("run_jobs()", "await sync_to_async(run_jobs)()")
]
CHANGES = {
    "test_dummy_backend.py": [*DUMMY, *RUNS, *DATABASE, TABLES],
    "test_immediate_backend.py": [*IMMEDIATE, *DATABASE, TABLES],
    "test_tasks.py": [*DUMMY, REFRESH, *DATABASE],
}


class Recording(PgQueueBackend):
    """Our backend, with the two names that the tests of Django's dummy backend look at."""

    results: list[Any] = []

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Keep what was enqueued."""
        self.results.append(super().enqueue(*args, **kwargs))
        return self.results[-1]

    def clear(self) -> None:
        """Forget what was enqueued."""
        from django_pgqueue.testing import delete_all_jobs  # after the apps are loaded

        delete_all_jobs()
        self.results.clear()


def fetch(place: Path) -> str:
    """Put Django's tests into a directory; return what went wrong."""
    options = ("--no-deps", "--no-binary", ":all:", "--quiet", "--dest", str(place), f"django=={django.get_version()}")
    pip = [sys.executable, "-m", "pip", "download"]
    try:
        done = subprocess.run([*pip, *options], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # noqa: S603 -- our own words
    except subprocess.TimeoutExpired:
        return f"no answer in {PATIENCE_SECONDS} s"
    if done.returncode:
        return str(done.stderr[-500:])
    with tarfile.open(next(place.glob("*.tar.gz"))) as archive:
        archive.extractall(place, [one for one in archive if "/tests/tasks/" in one.name], filter="data")
    next(place.glob("*/tests/tasks")).rename(place / "tasks")
    return ""


def change(suite: Path) -> None:
    """Put our backend into the tests; raises `ValueError` where they are not as they are known."""
    for name, changes in CHANGES.items():
        text = (suite / name).read_text()
        for pattern, new in changes:
            text, count = re.subn(pattern, new, text)
            if not count:
                raise ValueError(f"{name} has no {pattern}")
        (suite / name).write_text(text)


def run(place: Path) -> unittest.TestResult:
    """Run them on a test database, with the settings of our own tests."""
    from tests import settings as ours

    sys.path.insert(0, str(place))
    values = {name: value for name, value in vars(ours).items() if name.isupper()}
    values["TASKS"] = {"default": {"BACKEND": BACKEND, "QUEUES": []}}
    settings.configure(**values | {"INSTALLED_APPS": [*ours.INSTALLED_APPS, "tasks"]})
    django.setup()
    from django.test.runner import DiscoverRunner  # once there are settings

    logging.getLogger().addHandler(logging.NullHandler())  # tasks that fail as they are meant to
    runner, result = DiscoverRunner(verbosity=0, interactive=False), unittest.TestResult()
    runner.setup_test_environment()
    suite, databases = runner.build_suite(["tasks"]), runner.setup_databases()
    try:
        suite.run(result)
    finally:
        runner.teardown_databases(databases)
    return result


def main() -> int:
    """Fetch, change, run, say, and return the exit code."""
    with tempfile.TemporaryDirectory() as place:
        if problem := fetch(Path(place)) if django.VERSION >= (6, 0) else "before 6.0 it has none":
            print(f"NOT RUN, the tests of Django {django.get_version()}: {problem}", file=sys.stderr)  # noqa: T201 -- its purpose
            return 0
        change(Path(place, "tasks"))
        result = run(Path(place))
    failed = {".".join(test.id().split()[0].split(".")[-2:]): text for test, text in result.failures + result.errors}
    unknown = [f"FAILED: {name}\n{text}" for name, text in failed.items() if name not in CANNOT_HOLD]
    unknown += [f"HOLDS after all: {name}" for name in CANNOT_HOLD if name not in failed]
    lines = [f"CANNOT HOLD: {name}: {why}" for name, why in CANNOT_HOLD.items() if name in failed]
    told = f"Django {django.get_version()}: {result.testsRun - len(failed)} of {result.testsRun} tests hold"
    print(*lines, *unknown, told, sep="\n", file=sys.stderr)  # noqa: T201 -- its purpose
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
