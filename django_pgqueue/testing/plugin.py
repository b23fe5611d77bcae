"""The pytest plugin, installed with the package: fixtures `pgqueue` and `live_worker`, and a marker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MARKER = (
    "pgqueue(**options): PGQUEUE as it is, changed by these options for one test, such as IMMEDIATE=True; "
    "see django_pgqueue's page on testing"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(autouse=True)
def _pgqueue_options(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply the marker."""
    marker = request.node.get_closest_marker("pgqueue")
    if marker is None:
        yield
        return
    from django.conf import settings
    from django.test import override_settings

    if marker.args:
        raise pytest.UsageError("pytest.mark.pgqueue takes options by name, as in pgqueue(IMMEDIATE=True)")
    with override_settings(PGQUEUE={**getattr(settings, "PGQUEUE", {}), **marker.kwargs}):
        yield


@pytest.fixture
def pgqueue(db: Any) -> ModuleType:
    """The testing kit, and the database: `pgqueue.run_jobs()`, `pgqueue.assert_enqueued(…)`."""
    from django_pgqueue import testing

    return testing


@pytest.fixture
def live_worker(transactional_db: Any, tmp_path: Path) -> Iterator[Any]:
    """The real worker, started, on the test's database; it is stopped at the end, and has to end well.

    `live_worker.wait_until_idle()` waits for the jobs, `live_worker.log` is what it wrote. For other arguments of
    `runworker`: `live_worker.stop()`, then `live_worker.start("--queues", "mail")`.
    """
    from .live import LiveWorker

    worker = LiveWorker(tmp_path)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
