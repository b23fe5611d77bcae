"""The scenarios on large backlogs, many sessions and applications run at tiny sizes, and count what they say."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.tools.benchmarks import pgbench, tables
from tests.tools.benchmarks.runner import Round
from tests.tools.benchmarks.scale import scale
from tests.tools.benchmarks.scenarios import SCENARIOS, application, backlog, claim_waits, commit_first, rates, sessions
from tests.tools.benchmarks.scenarios.drain import Runs
from tests.tools.benchmarks.scenarios.scenario import grouped
from tests.tools.benchmarks.server import server
from tests.tools.benchmarks.tiny import TinyRuns
from tests.tools.benchmarks.waits import Waits

LOAD = "1,000 jobs/s in hundreds"


def test_table_by_group_has_a_row_for_each_group():
    rounds = [
        Round("22a", "us", number, grouped({"50 jobs": {"rate": rate, "mb": 7.0}, "100 jobs": {"rate": 2.0}}))
        for number, rate in enumerate([100.0, 300.0], 1)
    ]
    text = tables.table(SCENARIOS["22a"], rounds, {"us": "abc"})
    assert "| system | version |  | rate | mb |" in text
    assert "| us | abc | 50 jobs | 200 (100–300) | 7 (7–7) |" in text
    assert "| us | abc | 100 jobs | 2 (2–2) |  |" in text


def test_tenths_have_the_rate_between_the_looks():
    class Seen(Runs):
        def __init__(self, seen):
            self._numbers, self._seen = range(100), seen

    even = Seen([(place / 10, place) for place in range(101)])
    assert even.tenths() == pytest.approx([10.0] * 10)
    slower = Seen([(0.0, 0), (1.0, 50), (2.0, 90), (4.0, 100)])
    assert slower.tenths() == pytest.approx([50.0] * 5 + [40.0] * 4 + [5.0])


def test_fairness_jain_is_one_if_even_and_small_if_not():
    assert sessions.fairness([7, 7, 7])["jain"] == 1
    uneven = sessions.fairness([0, 0, 0, 8])
    assert uneven["jain"] == 0.25
    assert (uneven["jobs_of_a_session_least"], uneven["jobs_of_a_session_most"]) == (0, 8)


def test_waits_add_up_to_100_percent():
    waits = Waits()
    waits.seen = Counter({"Lock tuple": 890, "Lock transactionid": 5, "no wait": 100, "idle": 5})
    assert waits.percent == pytest.approx({"% Lock tuple": 89.0, "% no wait": 10.0, "% others": 1.0})
    assert waits.percent_of("Lock") == pytest.approx(89.5)
    assert waits.percent_of("LWLock") == 0


def test_pgbench_log_line_has_latency_from_the_planned_instant():
    line = "3 17 2500 0 1795442400 250000 1200"
    assert pgbench.transaction(line) == pgbench.Transaction(1795442400.25, 2.5)
    assert pgbench.latency_figures([1.0, 2.0, 3.0, 100.0])["p50_ms"] == 3.0


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the figures of a scenario of a system, by group, measured at tiny sizes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("DATABASE_URL", raising=False)
        patched.setattr(scale, "factor", 0.0001)
        patched.setattr(backlog, "BACKLOGS", (50_000, 1_000_000))
        patched.setattr(sessions, "SESSIONS", (6,))
        patched.setattr(sessions, "PARTS", sessions.PARTS[1:])
        patched.setattr(claim_waits, "SLOTS", (10,))
        patched.setattr(application, "LOADS", {name: load for name, load in application.LOADS.items() if name == LOAD})
        patched.setattr(sessions, "PROCESSES", 2)
        patched.setattr(commit_first, "SLOTS", {"noop": (2,), "nap": (2, 10)})
        patched.setattr(rates, "WAYS", {10: "paced", 10_000: "stream"})
        with server() as started:
            yield partial(_figures, TinyRuns(tmp_path_factory, started))


def _figures(runs, scenario, system="us", **options):
    measured = runs.measure(scenario, system, **options)
    assert not measured.failure, measured.failure
    groups: dict[str, dict[str, float]] = {}
    for figure, value in measured.figures.items():
        group, _, name = figure.partition(": ")
        groups.setdefault(group, {})[name] = value
    return groups


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_backlogs_measures_each_backlog(measured):
    figures = measured("22b")
    assert list(figures) == [f"{size:,} jobs" for size in backlog.BACKLOGS]
    for its in figures.values():
        assert its["peak_mb_of_a_process"] > 1
        assert len([tenth for tenth in its if tenth.startswith("tenth ")]) == 10


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_waits_shows_locks_of_for_update_only(measured):
    waiting = measured("10a", "for-update")["10 slots"]
    assert waiting["% Lock tuple"] + waiting["% Lock transactionid"] > 50
    skipping = measured("10a", "skip-locked")["10 slots"]
    assert not [name for name in skipping if name.startswith("% Lock ")]


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_sessions_counts_every_job_once(measured):
    figures = measured("23")
    [its] = figures.values()
    assert 0 < its["jain"] <= 1
    least, most = its["jobs_of_a_session_least"], its["jobs_of_a_session_most"]
    assert least <= sessions.LEAST / 6 <= most


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_an_application_has_each_control(measured):
    figures = measured("24", is_migrated=False)  # it migrates its other server too
    assert len(figures) == 3 + 3 * len(application.LOADS)
    for name, its in figures.items():
        assert its["tps"] > 0
        is_beside_jobs = name.removesuffix(", on another server") in application.LOADS
        assert name == "without a limit" or (its["jobs_per_second"] > 0) == is_beside_jobs, (name, its)


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_rates_measures_each_rate(measured):
    figures = measured("25")
    assert list(figures) == [f"{rate:,} jobs/s" for rate in rates.WAYS]
    assert all(its["commits"] > 0 and its["wal_bytes"] > 500 for its in figures.values())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("system", commit_first.TAKING_PART)
def test_scenario_of_the_articles_pattern_measures_each_number_of_slots(measured, system):
    assert measured("31a", system)["2 slots"]["commits"] > 0, "so few jobs can end before the time begins"
    naps = measured("31b", system)
    assert list(naps) == ["2 slots", "10 slots"]
    assert naps["2 slots"]["jobs_per_second"] < 60, "a slot runs 20 jobs of 50 ms a second"
    assert naps["10 slots"]["jobs_per_second"] > naps["2 slots"]["jobs_per_second"]


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_the_articles_pattern_counts_two_commits_a_job(measured):
    assert 1.9 < measured("31b", "commit-first")["10 slots"]["commits"] < 2.5
