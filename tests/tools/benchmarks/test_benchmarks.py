"""What the benchmark reports for made-up figures. The measurement itself is tested only by running the benchmark."""

from __future__ import annotations

import ast
import json
import pkgutil
from collections.abc import Iterator

import pytest

from tests.rules import for_each
from tests.tools.benchmarks import cli, recorded, server, tables
from tests.tools.benchmarks.environments import packages_for
from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.runner import Round
from tests.tools.benchmarks.scenarios import SCENARIOS
from tests.tools.benchmarks.server import Server
from tests.tools.benchmarks.systems import SYSTEMS


def rounds(scenario, **rates):
    return [
        Round(scenario, system, number, {"jobs_per_second": float(rate)})
        for system, values in rates.items()
        for number, rate in enumerate(values, 1)
    ]


def test_table_of_rates_shows_median_spread_and_ratio():
    text = tables.table(SCENARIOS["1"], rounds("1", us=[300, 100, 200], pgqueuer=[100, 90, 110]), {"pgqueuer": "1.6.0"})
    assert "| us |  | 200 (100–300) |  |" in text
    assert "| pgqueuer | 1.6.0 | 100 (90–110) | 2.00 × |" in text


def test_table_of_latencies_shows_ratio_of_times():
    latencies = [Round("4", "us", 1, {"p50_ms": 1.0}), Round("4", "celery", 1, {"p50_ms": 2.0})]
    assert "0.50 of it" in tables.table(SCENARIOS["4"], latencies, {})


def test_table_system_not_measured_states_the_reason():
    assert "celery could not be measured: no Redis" in tables.table(
        SCENARIOS["1"], [Round("1", "celery", 1, {}, "no Redis")], {}
    )


def test_cli_scenario_number_selects_all_its_variants():
    assert [scenario.name for scenario in cli.parsed(["1", "4a"]).scenarios] == ["1", "1a", "1b", "4a"]


def names_used(program: str) -> Iterator[str]:
    """Yield the names of this package that a program imports, and those that it reads from what it has imported."""
    tree, imported = ast.parse(program), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django_pgqueue"):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    yield from imported.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield f"{imported[node.value.id]}.{node.attr}"


@for_each(
    (system.name, file)
    for system in SYSTEMS.values()
    for file, program in system.files.items()
    if file.endswith(".py") and "django_pgqueue" in program
)
def test_program_of_system_uses_names_that_exist(case):
    """The programs are texts, so no linter and no type checker reads them."""
    system, file = case
    for name in names_used(SYSTEMS[system].files[file]):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("wrong", [["77"], ["--only", "us,kafka"]])
def test_cli_unknown_scenario_or_system_is_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        cli.parsed(wrong)
    assert "no such" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [None, 0o644, 0o755])
def test_cli_python_that_cannot_run_is_refused_with_advice(mode, tmp_path):
    python = tmp_path / "python9"
    if mode is not None:
        python.write_text("#!/bin/sh\nexit 127\n")
        python.chmod(mode)
    work = tmp_path / "work"
    with pytest.raises(SystemExit, match=r"python9 cannot be run as a Python .*: name a Python that is installed"):
        cli.main(["1", "--python", str(python), "--work", str(work)])
    assert not work.exists()


def test_packages_django_is_one_that_the_python_can_run():
    for version, django in ((3, 11), "django==5.2"), ((3, 12), "django==6.1"):
        found = packages_for(SYSTEMS["us"], version)
        assert any(name.startswith(django) for name in found)
        assert len(found) == len(SYSTEMS["us"].packages)


def test_server_programs_are_copied_to_where_every_account_may_enter(monkeypatch):
    class Copied(Exception):
        pass

    def reachable(bin_dir, copy):
        raise Copied(copy)

    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr(server, "reachable", reachable)
    with pytest.raises(Copied) as caught, server.server():
        pass
    assert not [place for place in caught.value.args[0].parents if place.exists() and not place.stat().st_mode & 0o001]


def test_drops_share_lower_by_over_15_percent_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FILE", tmp_path / "recorded.json")
    recorded.record("here", {"1": 0.8, "1a": 0.8})
    found = recorded.shares([*rounds("1", us=[66], limit=[100]), *rounds("1a", us=[90])])
    assert found == {"1": 0.66, "1a": 0.9}
    assert [text[:10] for text in recorded.drops(found)] == ["scenario 1"]
    assert recorded.drops({"1": 0.69, "1a": 0.8}) == []


def test_recorded_file_has_a_share_for_each_scenario():
    assert json.loads(recorded.FILE.read_text())["shares"].keys() == set(recorded.SCENARIOS)


def test_round_job_missing_or_run_twice_fails(tmp_path, monkeypatch):
    record.make(tmp_path, 3)
    monkeypatch.setattr(record, "HERE", tmp_path)
    monkeypatch.setattr(record, "_runs", record._Mapped(record.RUNS))
    bench = Bench(tmp_path, tmp_path, {}, None, Server({}))
    for number in (0, 2, 2):
        record.ran(number)
    with pytest.raises(RuntimeError, match="1 of 3 jobs did not run"):
        bench.check_each_ran_once(range(3))
    record.ran(1)
    with pytest.raises(RuntimeError, match="1 of 3 jobs ran more than once"):
        bench.check_each_ran_once(range(3))
    bench.check_each_ran_once(range(2))


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_systems_all_packages_have_pinned_versions(system):
    assert [package for package in system.packages if "==" not in package] == []
    assert [package for package in system.npm if package.count("@") == 0] == []
