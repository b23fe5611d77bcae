"""Fixtures of the tests that start workers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness import Worker
from .server import Server


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


@pytest.fixture
def server() -> Iterator[Server]:
    """A private server, stopped after the test; in a short path, for a socket's ends at 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as home:
        Path(home).chmod(0o755)
        own = Server(Path(home))
        yield own
        own.cluster.stop("immediate")
