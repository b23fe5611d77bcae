"""Fixtures of the tests with two releases: their source trees, databases with their schemas, and their processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import connection

from django_pgqueue.db.engine_connection import EngineConnection
from tests import helpers
from tests.process.harness import DATABASE_KEYS, Worker, environment

from . import trees


class Releases(NamedTuple):
    """The two source trees, and for each tree a database that it has migrated and that tests copy."""

    previous: Path
    next: Path
    databases: dict[Path, str]


@pytest.fixture(scope="session")
def releases(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """Both releases. Their databases are on the server that has the test database."""
    home = tmp_path_factory.mktemp("releases")
    made = Releases(trees.build_previous(home), trees.build_next(home), {})
    with contextlib.ExitStack() as stack:
        for tree in (made.previous, made.next):
            # The later schema is made by migrating the earlier one, as in a real upgrade.
            source = made.databases.get(made.previous, "template1")
            made.databases[tree] = stack.enter_context(database(f"schema_{tree.name}", source))
            run(tree, settings_of(made.databases[tree]), "-m", "django", "migrate", "-v0")
        yield made


@contextlib.contextmanager
def database(purpose: str, source: str) -> Iterator[str]:
    """Copy a database, and drop the copy in the end."""
    name = f"{connection.settings_dict['NAME']}_{purpose}"
    drop = f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'
    on_server(drop, f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
    yield name
    on_server(drop)


def on_server(*statements: str) -> None:
    """Run statements in a session of their own: tests between two calls may end all sessions of the database."""
    with contextlib.closing(helpers.connect()) as server:
        for statement in statements:
            server.execute(statement)


def settings_of(name: str) -> dict[str, Any]:
    """Return Django's settings for a database on the server of the test database."""
    return {key: connection.settings_dict[key] for key in DATABASE_KEYS} | {"NAME": name}


def code_of(tree: Path) -> dict[str, str]:
    """Return the environment variables of a process of the release in a tree."""
    return {**trees.path_to(tree), "DJANGO_SETTINGS_MODULE": "tests.deploys.settings"}


def run(tree: Path, settings: dict[str, Any], *arguments: str) -> str:
    """Run Python with the code of a tree until it ends; return its output."""
    command, variables = [sys.executable, *arguments], environment(settings) | code_of(tree)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Deployment:
    """One database, and the processes of either release that a test starts on it."""

    def __init__(self, releases: Releases, settings: dict[str, Any], home: Path, stack: contextlib.ExitStack) -> None:
        self.previous, self.next = releases.previous, releases.next
        self.settings = settings
        self.home = home
        self.record = home / "record"
        """The file to which each task writes a line, with the release that ran it."""
        self.workers: list[Worker] = []
        self._stack = stack
        self.watcher = self.connect()

    def connect(self) -> EngineConnection:
        """Open a session for the test itself on the database."""
        where: dict[str, Any] = {
            key.lower(): self.settings[key] or None for key in ("HOST", "PORT", "USER", "PASSWORD")
        }
        session = EngineConnection.connect(**where, dbname=self.settings["NAME"], autocommit=True)
        self._stack.callback(session.close)
        return session

    def worker(self, tree: Path, *arguments: str, **options: Any) -> Worker:
        """Start a worker of a release."""
        log = self.home / f"worker-{len(self.workers)}.log"
        worker = Worker(log, *arguments, database=self.settings, variables=code_of(tree), **options)
        self._stack.callback(worker.end)
        self.workers.append(worker)
        return worker

    def run(self, tree: Path, code: str) -> str:
        """Run code as an application of a release. `path` is the path of the record, and the tasks are imported."""
        prepare = "import django; django.setup(); from shop.tasks import *; from django_pgqueue.models import Job"
        return run(tree, self.settings, "-c", f"{prepare}; path = {str(self.record)!r}\n{code}")

    def migrate(self, tree: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start `manage.py migrate` of a release."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "migrate"],
                env=environment(self.settings) | code_of(tree),
                stdout=output,
                stderr=output,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state."""
        return dict(self.watcher.execute("SELECT state, count(*) FROM pgqueue_job GROUP BY state").fetchall())

    def lines(self) -> list[str]:
        """Return the lines that the tasks have written."""
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def deployed(committing: None, releases: Releases, tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes a deployment whose database has the schema of a release.

    After the test, its processes are ended and its database is dropped.
    """
    made: list[Deployment] = []
    with contextlib.ExitStack() as stack:

        def deploy(schema: Path) -> Deployment:
            name = stack.enter_context(database("deploy", releases.databases[schema]))
            made.append(Deployment(releases, settings_of(name), tmp_path, stack))
            return made[-1]

        yield deploy
        for worker in [worker for deployment in made for worker in deployment.workers]:
            worker.assert_sound()
