"""Follow the tutorial as a reader would: write its files, run its commands, and compare the output."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.documents import BLOCK, PAGES, TUTORIAL
from tests.helpers import wait_until

from .harness import DATABASE_KEYS

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TOP = Path(__file__).parents[2]
NOT_FOR_A_TEST = {"pip", ".", "createsuperuser", "runserver"}
"""Programs and commands that the test skips: the environment exists already, and no user can answer or browse."""


class Reader:
    """A reader who follows the tutorial in an empty folder, with an empty database."""

    def __init__(self, folder: Path, database: dict[str, str]) -> None:
        self.folder = folder
        self.database = database
        self.worker: subprocess.Popen[bytes] | None = None
        self.ask: Callable[[], str] | None = None

    def file(self, name: str, text: str) -> None:
        """Write a file as the page shows it. Append text to the settings, and point them to the test's server."""
        path = self.folder / name
        if name.endswith("settings.py"):
            text = f"{path.read_text()}\n{text}\nDATABASES['default'].update({json.dumps(self.database)})\n"
        path.write_text(text)

    def command(self, line: str) -> None:
        """Run one command line. A worker keeps running in the background and replaces the previous worker."""
        words = shlex.split(line)
        if NOT_FOR_A_TEST & set(words[:3]) or words[:3] == ["python", "-m", "venv"]:
            return
        if "runworker" in words:
            self.stop_worker()
            with (self.folder / "worker.log").open("ab") as log:
                self.worker = subprocess.Popen([sys.executable, *words[1:]], cwd=self.folder, stdout=log, stderr=log)
            return
        if words[0] == "cat":
            self.ask = lambda: (self.folder / words[1]).read_text() if (self.folder / words[1]).exists() else ""
            return
        program = [sys.executable, "-m", "django"] if words[0] == "django-admin" else [sys.executable]
        self.run([*program, *words[1:]])

    def run(self, command: list[str]) -> None:
        """Run a command now. `shows()` repeats it as long as the worker has not produced the expected output."""

        def run() -> str:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
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
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[Reader]:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    where = {key: str(connection.settings_dict[key]) for key in DATABASE_KEYS} | {"NAME": f"tutorial_{os.getpid()}"}
    own = Reader(tmp_path, where)
    with connection.cursor() as server:
        server.execute(f"CREATE DATABASE {where['NAME']} TEMPLATE template0")  # nobody else is connected to it
        yield own
        if own.worker is not None:
            own.worker.kill()
            own.worker.wait()
        server.execute(f"DROP DATABASE {where['NAME']} WITH (FORCE)")


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
