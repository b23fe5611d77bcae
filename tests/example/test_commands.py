"""The demo that gets SIGTERM while it runs, and `import_documents` without the demo."""

import signal
from pathlib import Path

import pytest

from .conftest import Start, end, users_of

pytestmark = pytest.mark.process


def test_demo_sigterm_while_running_stops_all_processes(start: Start, folder: Path, place: Path) -> None:
    process = start("demo", folder)
    assert process.stdout
    for line in process.stdout:
        if "documents and their jobs enqueued" in line:
            break
    process.terminate()
    code, output = end(process)
    assert code == 128 + signal.SIGTERM, output
    assert "The worker has stopped." in output
    assert "Interrupted. All processes are stopped." in output
    assert users_of(place) == []


def test_import_documents_alone_imports_or_reports_missing(start: Start, folder: Path) -> None:
    code, output = end(start("migrate", "--verbosity", 0))
    assert code == 0, output
    code, output = end(start("import_documents", folder))
    assert code == 0, output
    assert "30 documents, each with its job" in output
    code, output = end(start("import_documents", folder / "nowhere"))
    assert code == 1
    assert "is not a folder" in output
