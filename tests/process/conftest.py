"""Fixtures of the tests that start workers and private database servers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness import Worker
from .server import Server

LEASE_SECONDS = 60.0
"""The lease of workers in tests that set none. A short one would end while a busy machine stalls the worker."""


@pytest.fixture
def start(committing: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts workers on the test database, as `preloaded` describes.

    After the test, the fixture checks the logs of the workers and kills those that still run.
    """
    workers: list[Worker] = []
    fresh_start = request.node.get_closest_marker("fresh_start") is not None
    with contextlib.ExitStack() as stack:

        def start_worker(*arguments: str, **options: Any) -> Worker:
            log = tmp_path / f"worker-{len(list(tmp_path.glob('worker-*')))}.log"
            worker = Worker(log, *arguments, fresh_start=fresh_start, **{"LEASE": LEASE_SECONDS, **options})
            stack.callback(worker.end)
            workers.append(worker)
            return worker

        yield start_worker
        for worker in workers:
            worker.assert_sound()


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that returns the lines that the hooks have written so far."""
    path = tmp_path / "notes"
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def start_with(start: Callable[..., Worker], tmp_path: Path) -> Callable[..., Worker]:
    """Return a function that starts a worker with hooks of `tests.hooks`."""

    def start_worker(hooks: str, *arguments: str, **options: Any) -> Worker:
        variables = {"PGQUEUE_TEST_HOOKS": hooks, "PGQUEUE_TEST_HOOKS_FILE": str(tmp_path / "notes")}
        return start(*arguments, variables=variables, **options)

    return start_worker


@contextlib.contextmanager
def short_path() -> Iterator[Path]:
    """Create a directory for a server with a short path: the path of a socket in it can have at most 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as home:
        Path(home).chmod(0o755)
        yield Path(home)


@pytest.fixture(scope="session")
def migrated_data() -> Iterator[Path]:
    """Return the data directory of a stopped server with our tables, which tests copy instead of creating one."""
    with short_path() as home:
        cluster = Server(home).cluster
        cluster.stop()
        yield cluster.data


@pytest.fixture
def server(migrated_data: Path) -> Iterator[Server]:
    """Start a private server, and stop it after the test."""
    with short_path() as home:
        own = Server(home, data=migrated_data)
        yield own
        own.cluster.stop("immediate")
