"""The pytest plugin: the fixtures `pgqueue` and `live_worker`, and the marker `pgqueue`.

pytest loads it as soon as the package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MARKER = (
    "pgqueue(**options): override options of the PGQUEUE setting for one test, such as IMMEDIATE=True; "
    "see the guide on testing of django_pgqueue"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(autouse=True)
def _pgqueue_options(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply the marker's options to the PGQUEUE setting."""
    marker = request.node.get_closest_marker("pgqueue")
    if marker is None:
        yield
        return
    from django.conf import settings
    from django.test import override_settings

    if marker.args:
        raise pytest.UsageError("pytest.mark.pgqueue takes options by name only, such as pgqueue(IMMEDIATE=True)")
    with override_settings(PGQUEUE={**getattr(settings, "PGQUEUE", {}), **marker.kwargs}):
        yield


@pytest.fixture
def pgqueue(db: Any) -> ModuleType:
    """Return the module `django_pgqueue.testing`, with access to the database.

    Example:
        >>> def test_receipt(pgqueue):
        ...     send_receipt.enqueue(7)
        ...     pgqueue.assert_enqueued(send_receipt, args=[7])
        ...     pgqueue.run_jobs()
    """
    from django_pgqueue import testing

    return testing


@pytest.fixture
def live_worker(transactional_db: Any, tmp_path: Path) -> Iterator[Any]:
    """Start a real worker on the test's database, and stop it after the test.

    The test fails if the worker does not exit with code 0. `live_worker.wait_until_idle()` waits for the jobs, and
    `live_worker.log` is the worker's output. For other arguments of `runworker`, call `live_worker.stop()`, then
    `live_worker.start("--queues", "mail")`.

    Yields:
        The `LiveWorker`.
    """
    from .live_worker import LiveWorker

    worker = LiveWorker(tmp_path)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
