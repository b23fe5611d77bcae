"""Runs scenarios: round by round, the systems in turn, each in a new directory with a new database."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.server import Server
from tests.tools.benchmarks.systems.system import System
from tests.tools.benchmarks.telling import say
from tests.tools.peers import brokers
from tests.tools.peers.place import ending


class Round(NamedTuple):
    """What one system did in one round of a scenario; `failure` in place of figures if it could not be measured."""

    scenario: str
    system: str
    number: int
    figures: Figures
    failure: str = ""


class Runner:
    """Measures in directories below `top`."""

    def __init__(self, top: Path, server: Server, pythons: Mapping[str, Path], rounds: int) -> None:
        self.top, self.server, self.pythons, self.rounds = top, server, pythons, rounds

    def run(self, scenario: Scenario, systems: Sequence[System]) -> Iterator[Round]:
        """Every round of a scenario; a system that fails is told of, and left out of its further rounds."""
        taking_part = [system for system in systems if scenario.takes_part(system)]
        rounds = scenario.rounds or self.rounds
        for number in range(1, rounds + 1):
            for system in list(taking_part):
                measured = self._round(scenario, system, number)
                say(f"{scenario.name} {system.name} {number}/{rounds}: {told(measured)}")
                if measured.failure:
                    taking_part.remove(system)
                yield measured

    def _round(self, scenario: Scenario, system: System, number: int) -> Round:
        try:
            figures = self._measured(scenario, system, number)
        except (RuntimeError, OSError, subprocess.SubprocessError, psycopg.Error) as error:
            return Round(scenario.name, system.name, number, {}, str(error) or repr(error))
        return Round(scenario.name, system.name, number, figures)

    def _measured(self, scenario: Scenario, system: System, number: int) -> Figures:
        name = f"{scenario.name}-{system.name}-{number}"
        directory = self.top / name
        directory.mkdir()
        with ExitStack() as stack:
            variables = self.server.make_database(name)
            stack.callback(self.server.drop_database, name)
            if system.broker == "redis":
                variables |= stack.enter_context(brokers.redis(directory))
            bench = Bench(directory, self.pythons[system.name], variables, system.path, self.server)
            stack.enter_context(ending(bench))
            bench.lay_out(system.files, scenario.jobs(system))
            for command in system.prepare:
                bench.run(command)
            figures = scenario.measure(bench, system)
        shutil.rmtree(directory, ignore_errors=True)  # kept, with its logs, where something failed
        return figures


def told(measured: Round) -> str:
    """What a round measured, in a line."""
    if measured.failure:
        return f"could not be measured: {measured.failure}"
    return ", ".join(f"{name} {value:,.4g}" for name, value in measured.figures.items())
