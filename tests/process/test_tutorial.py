"""Follow the tutorial as a reader would: write its files, run its commands, and compare the output."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from example_project.embedded.server import Cluster, binaries, reachable, system_places
from tests.documents import BLOCK, PAGES, TUTORIAL
from tests.helpers import wait_until

from .conftest import short_path

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TOP = Path(__file__).parents[2]
NOT_FOR_A_TEST = {"pip", ".", "apt", "createsuperuser", "runserver"}
"""Programs and commands that the test skips: the environment exists already, and no user can answer or browse."""
SUDO = ("sudo", "-u", "postgres")
USER = getpass.getuser()
STATEMENTS: dict[tuple[str, ...], sql.SQL | sql.Composed] = {
    ("createuser", "--createdb", "$USER"): sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(sql.Identifier(USER)),
    ("createdb", "shop"): sql.SQL("CREATE DATABASE shop"),
}
ACCESS = "local all postgres trust\nlocal all all peer\n"
"""Access as Debian's packages configure it: by the name of the system user. The test cannot become the user `postgres`,
so it acts as that role without being that user."""


class Reader:
    """A reader who follows the tutorial in an empty folder, with a new server as Debian's packages create it."""

    def __init__(self, folder: Path, programs: Path, server: dict[str, str]) -> None:
        self.folder = folder
        self.programs = programs
        self.variables = os.environ | {"PYTHONPATH": str(TOP), "PGHOST": server["HOST"], "PGPORT": server["PORT"]}
        self.variables.pop("DJANGO_SETTINGS_MODULE", None)
        self.worker: subprocess.Popen[bytes] | None = None
        self.ask: Callable[[], str] | None = None

    def file(self, name: str, text: str) -> None:
        """Write a file as the page shows it. Append text to the settings."""
        path = self.folder / name
        path.write_text(f"{path.read_text()}\n{text}" if name.endswith("settings.py") else text)

    def command(self, line: str) -> None:
        """Run one command line. A worker keeps running in the background and replaces the previous worker."""
        words = shlex.split(line)
        if NOT_FOR_A_TEST & set(words[:3]) or words[:3] == ["python", "-m", "venv"]:
            return
        if "runworker" in words:
            self.stop_worker()
            with (self.folder / "worker.log").open("ab") as log:
                self.worker = subprocess.Popen(
                    [sys.executable, *words[1:]],
                    cwd=self.folder,
                    env=self.variables,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return
        if words[:3] == ["sudo", "-u", "postgres"] or words[0] == "createdb":
            self.administer("postgres" if words[0] == "sudo" else USER, [word for word in words if word not in SUDO])
            return
        if words[0] == "cat":
            self.ask = lambda: (self.folder / words[1]).read_text() if (self.folder / words[1]).exists() else ""
            return
        program = [sys.executable, "-m", "django"] if words[0] == "django-admin" else [sys.executable]
        before = self.receipts()
        self.run([*program, *words[1:]])
        assert "test" not in words or self.receipts() == before, "a test must not write to the real receipts"

    def administer(self, role: str, words: list[str]) -> None:
        """Run one of PostgreSQL's programs as a role, or the statement that it sends if it is not installed."""
        if (self.programs / words[0]).exists():
            arguments = [word.replace("$USER", USER) for word in words[1:]]
            self.run([str(self.programs / words[0]), f"--username={role}", *arguments])
            self.ask = None  # these programs print nothing
            return
        host, port = self.variables["PGHOST"], self.variables["PGPORT"]
        with psycopg.connect(host=host, port=port, dbname="postgres", user=role, autocommit=True) as server:
            server.execute(STATEMENTS[tuple(words)])

    def receipts(self) -> dict[str, int]:
        """Return when each receipt was written."""
        return {path.name: path.stat().st_mtime_ns for path in self.folder.glob("receipts/*")}

    def run(self, command: list[str]) -> None:
        """Run a command now. `shows()` repeats it as long as the worker has not produced the expected output."""

        def run() -> str:
            done = subprocess.run(
                command, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}:\n{done.stderr}"
            return done.stdout

        first = [run()]
        self.ask = lambda: first.pop() if first else run()

    def shows(self, text: str) -> None:
        """Wait until the last command shows the output on the page."""
        ask, self.ask = self.ask, None
        if ask is not None:
            wait_until(lambda: ask() == text, 60)

    def stop_worker(self) -> None:
        """Stop the worker as Ctrl-C does; fail if it does not exit soon and with code 0."""
        if self.worker is not None:
            self.worker.terminate()
            assert self.worker.wait(40) == 0, (self.folder / "worker.log").read_text()
            self.worker = None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with short_path() as home:
        programs = next((place for place in system_places() if (place / "createuser").exists()), None)
        programs = programs or reachable(binaries(), home / "copy")
        cluster = Cluster(home / "server", programs)
        cluster.start()
        (cluster.data / "pg_hba.conf").write_text(ACCESS)
        cluster.stop()
        cluster.start()
        own = Reader(tmp_path, programs, cluster.connection_settings)
        yield own
        if own.worker is not None:
            os.killpg(own.worker.pid, signal.SIGKILL)  # with --reload, the worker is a child of this process
            own.worker.wait()
        cluster.stop("immediate")


def test_tutorial_commands_show_the_documented_output(reader: Reader) -> None:
    shown = 0
    for kind, text in BLOCK.findall(PAGES[TUTORIAL]):
        if kind == "python":
            reader.file(re.match(r"# (\S+\.py)\n", text)[1], text)  # type: ignore[index]  # None fails the test
        elif kind == "sh":
            for line in text.splitlines():
                reader.command(line)
        else:
            shown += reader.ask is not None
            reader.shows(text)
    reader.stop_worker()
    assert shown == 6
