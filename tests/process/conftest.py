"""Fixtures of the tests that start workers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue import db
from example_project.embedded.server import Cluster, binaries

from .harness import Worker, django


@pytest.fixture
def start(committing: None, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers on the test database; whatever state a test leaves them in, they are gone after it."""
    workers: list[Worker] = []
    with contextlib.ExitStack() as stack:

        def start_worker(*arguments: str, **options: Any) -> Worker:
            worker = Worker(tmp_path / f"worker-{len(list(tmp_path.glob('worker-*')))}.log", *arguments, **options)
            stack.callback(worker.end)
            workers.append(worker)
            return worker

        yield start_worker
        for worker in workers:
            worker.assert_sound()


class Server:
    """A PostgreSQL of the test's own, to crash and restart at will."""

    def __init__(self, home: Path) -> None:
        self.cluster = Cluster(home, binaries())
        self.cluster.start()
        self.settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "PASSWORD": "",
            "PORT": "",
            **self.cluster.connection_settings,
        }
        django("migrate", "-v0", database=self.settings)

    def connect(self) -> db.EngineConnection:
        """A session of the test's own on it."""
        host, user = str(self.settings["HOST"]), str(self.settings["USER"])
        return db.EngineConnection.connect(host=host, user=user, dbname="postgres", autocommit=True)


@pytest.fixture
def server() -> Iterator[Server]:
    """A private server, stopped after the test; in a short path, for a socket's ends at 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as home:
        Path(home).chmod(0o755)
        own = Server(Path(home))
        yield own
        own.cluster.stop("immediate")
