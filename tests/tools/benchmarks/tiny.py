"""Measures scenarios at tiny sizes for their tests. The systems of this project share one migrated database."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path

import pytest

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.runner import Round, Runner
from tests.tools.benchmarks.scale import scaled
from tests.tools.benchmarks.scenarios import SCENARIOS
from tests.tools.benchmarks.server import Server
from tests.tools.benchmarks.systems import SYSTEMS, ours

PYTHON = Path(sys.executable)


class TinyRuns:
    """Measures one round after another on a server."""

    def __init__(self, directories: pytest.TempPathFactory, server: Server) -> None:
        self._directories, self._server = directories, server

    def measure(self, scenario: str, system: str, *, is_migrated: bool = True) -> Round:
        """Measure a round of a scenario, in a copy of the migrated database if the system is this project."""
        server, chosen = self._server, scaled(SYSTEMS[system])
        if is_migrated and chosen.prepare == ours.SYSTEM.prepare:
            server, chosen = server._replace(template=self._migrated), chosen._replace(prepare=())
        runner = Runner(self._directories.mktemp("run"), server, {system: PYTHON}, 1)
        [measured] = runner.run(SCENARIOS[scenario]._replace(rounds=1), [chosen])
        return measured

    @cached_property
    def _migrated(self) -> str:
        """Migrate a database, which takes 3 s of processor time, and return its name."""
        name, system = "migrated", ours.SYSTEM
        bench = Bench(
            self._directories.mktemp(name), PYTHON, self._server.make_database(name), system.path, self._server
        )
        bench.lay_out(system.files, 1)
        for command in system.prepare:
            bench.run(command)
        return name
