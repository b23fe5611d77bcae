"""The command `bin/bench`: which scenarios, which systems, how many rounds; prints tables, writes JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import ascii_lowercase

from tests.tools.benchmarks import recorded, scale, tables
from tests.tools.benchmarks.counts import command as counting
from tests.tools.benchmarks.environments import environments
from tests.tools.benchmarks.runner import Round, Runner
from tests.tools.benchmarks.scenarios import SCENARIOS
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.server import server
from tests.tools.benchmarks.systems import SYSTEMS
from tests.tools.benchmarks.telling import say
from tests.tools.peers import brokers
from tests.tools.peers.environment import python_version, said


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bin/bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all of them")
    parser.add_argument("--only", metavar="SYSTEM,…", help=f"systems, of {', '.join(SYSTEMS)}; all of them")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each scenario (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the jobs and time: 0.01 is a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round there")
    parser.add_argument("--work", type=Path, default=default_work(), help="keeps environments and logs (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="the Python of all systems (%(default)s)")
    parser.add_argument("--check", action="store_true", help="fail if our share of the limit has fallen by 15 %%")
    parser.add_argument("--record", action="store_true", help="keep our share of the limit for later checks")
    parser.add_argument("--counts", action="store_true", help="count instead of timing: see bin/bench --counts --help")
    return parser


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.check or options.record:
        options.scenarios, options.only = list(recorded.SCENARIOS), ",".join(recorded.SYSTEMS)
    scale.scale.factor = options.scale
    chosen = [scenario for name in options.scenarios or SCENARIOS for scenario in matching(parser, name)]
    options.scenarios = list(dict.fromkeys(chosen))
    names = options.only.split(",") if options.only else list(SYSTEMS)
    if unknown := set(names) - set(SYSTEMS):
        parser.error(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    options.systems = [scale.scaled(SYSTEMS[name]) for name in names]
    return options


def matching(parser: argparse.ArgumentParser, name: str) -> list[Scenario]:
    """The scenario of that name, and its variants if it is a number."""
    found = [scenario for key, scenario in SCENARIOS.items() if key == name or key.rstrip(ascii_lowercase) == name]
    if not found:
        parser.error(f"no such scenario: {name}; there are {', '.join(SCENARIOS)}")
    return found


def default_work() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "dj-pgqueue-bench")


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if "--counts" in given:
        counting.main([argument for argument in given if argument != "--counts"])
        return
    options = parsed(given)
    version = python_version(options.python)
    options.work.mkdir(parents=True, exist_ok=True)
    ready = environments(options.work, options.python, version, options.systems)
    top = Path(tempfile.mkdtemp(prefix="run-", dir=options.work))
    rounds: list[Round] = []
    with server() as postgresql:
        about = machine(postgresql.variables, options.python) + scale.told()
        say(about)
        runner = Runner(top, postgresql, ready.pythons, options.rounds)
        for scenario in options.scenarios:
            rounds += runner.run(scenario, ready.systems)
    report(options, about, rounds, ready.versions)
    if any(one.failure for one in rounds):
        sys.exit("some figures are missing: see the tables")
    shutil.rmtree(top, ignore_errors=True)
    if options.check or options.record:
        compare(about, rounds, record=options.record)


def compare(about: str, rounds: Sequence[Round], *, record: bool) -> None:
    """Keep our share of the limit, or end with an error if it has fallen."""
    found = recorded.shares(rounds)
    say("of the limit: " + ", ".join(f"{share:.2f} in scenario {name}" for name, share in found.items()))
    if record:
        recorded.record(about, found)
    elif fallen := recorded.drops(found):
        sys.exit("slower than recorded: " + "; ".join(fallen))


def report(options: argparse.Namespace, about: str, rounds: Sequence[Round], versions: dict[str, str]) -> None:
    print(about, end="\n\n")  # noqa: T201 -- what it is for
    for scenario in options.scenarios:
        mine = [one for one in rounds if one.scenario == scenario.name]
        print(tables.table(scenario, mine, versions))  # noqa: T201 -- as above
    if options.json:
        found = {"machine": about, "versions": versions, "rounds": [one._asdict() for one in rounds]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def machine(variables: dict[str, str], python: str) -> str:
    """What was measured on, in a line."""
    model = next((line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")), "CPU")
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"{os.cpu_count()} cores of {model}",
        platform.platform(terse=True),
        brokers.postgresql_version(variables),
        said([python, "--version"]),
    ]
    return ", ".join(parts)


def _cpu_info() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
