"""A folder of documents, and the commands of the example project with their own database server."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from example_project.embedded import server

CHECKOUT = Path(__file__).resolve().parents[2]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Yield a directory for the server. Kill the processes that still use it afterwards.

    Its path is short, because the server creates sockets in it. `users_of` finds processes by this path.
    """
    try:
        server.binaries()
    except ImproperlyConfigured as reason:
        pytest.skip(str(reason))
    path = Path(tempfile.mkdtemp(prefix="pgq-"))
    path.chmod(0o711)  # the server's account needs access
    yield path
    for pid in users_of(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 30 documents, five of which cannot be indexed, and two files that are not documents."""
    top = tmp_path_factory.mktemp("documents")
    (top / "package").mkdir()
    for number in range(20):
        text = f'"""Module {number} about savepoints."""\n\n' + f"line_{number} = {number}\n" * number
        (top / "package" / f"module_{number}.py").write_text(text)
    (top / "README.md").write_text("# A heading\n\nWords, wörter, 言葉 and a last line without its end")
    (top / "empty.txt").write_text("")
    (top / "endings.txt").write_bytes(b"one\r\ntwo\rthree\x0cfour\x1cfive\xe2\x80\xa8six\n\n")
    (top / "METADATA").write_text("Name: x\nSummary: A package\n")
    (top / "query.sql").write_text("SELECT 1;\n" * 5)
    (top / "latin.txt").write_bytes("für".encode("latin-1"))
    for name in ("a.mo", "b.so", "c.png", "zero.txt"):
        (top / name).write_bytes(b"some\0bytes")
    (top / "no_document.xyz").write_text("x")
    (top / "link.py").symlink_to(top / "package" / "module_1.py")
    return top


@pytest.fixture(scope="module")
def start(place: Path) -> Iterator[Start]:
    """Yield a function that starts a management command of the example project. The commands share only `place`."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, CHECKOUT / "example_project/manage.py", *map(str, arguments)],
            cwd="/",
            env={**environment, "TMPDIR": str(place), "DJANGO_SETTINGS_MODULE": "example_project.settings"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def users_of(place: Path) -> list[int]:
    """Return the ids of processes whose directory for temporary files is `place`. Without /proc the list is empty."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"TMPDIR={place}\0".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def end(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    """Wait until a command ends; return its exit code and its output."""
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output
