"""The scenarios of workflows and suspended jobs run at tiny sizes, and refuse a run that is not what they say."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.tools.benchmarks.files import shapes
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import scale
from tests.tools.benchmarks.scenarios import suspended, workflows
from tests.tools.benchmarks.server import Server, server
from tests.tools.benchmarks.systems import SYSTEMS
from tests.tools.benchmarks.tiny import TinyRuns


@pytest.mark.parametrize("shape", shapes.SHAPES.values(), ids=shapes.SHAPES)
@pytest.mark.parametrize("jobs", [20, 1_000])
def test_shapes_depend_on_earlier_jobs_only(shape, jobs):
    made = shape(jobs)
    assert len(made) == jobs
    assert all(needed < place for place, needs in enumerate(made) for needed in needs)
    assert all(len(set(needs)) == len(needs) for needs in made)


def test_shape_of_fan_has_one_job_before_and_one_behind():
    assert shapes.fan(5) == [(), (0,), (0,), (0,), (1, 2, 3)]


def test_shape_of_graph_needs_two_or_three_of_the_layer_before():
    graph = shapes.graph(10_000)
    assert [len(needs) for needs in graph[:100]] == [0] * 100
    assert {len(needs) for needs in graph[100:]} == {2, 3}
    assert all(needed // 100 == place // 100 - 1 for place, needs in enumerate(graph) for needed in needs)


def test_shape_of_chains_begins_anew_after_ten_jobs():
    chains = shapes.chains(25)
    assert [place for place, needs in enumerate(chains) if not needs] == [0, 10, 20]
    assert all(needs == (before,) for (before, _), (_, needs) in pairwise(enumerate(chains)) if needs)


def test_order_job_started_before_the_end_of_a_dependency_fails():
    shape, starts, ends = shapes.fan(4), [0.0, 2.0, 2.0, 4.0], [1.0, 3.0, 3.5, 5.0]
    workflows.check_order(shape, starts, ends)
    with pytest.raises(RuntimeError, match="1 of 4 jobs started too early, the first of them is 3"):
        workflows.check_order(shape, [*starts[:3], 3.2], ends)


def test_fan_is_out_when_only_the_last_job_waits():
    looks = [(0.5, 0), (1.1, 3), (1.4, 2), (1.5, 1), (4.0, 0)]
    figures = workflows.fan_figures([0.0, 2.0, 2.0, 4.0], [1.0, 3.0, 3.5, 5.0], looks)
    assert figures == pytest.approx({"fan_out_seconds": 0.5, "fan_in_seconds": 3.0, "last_end_to_fan_in_ms": 500.0})


def test_suspended_jobs_fewer_than_said_fail(monkeypatch):
    system = SYSTEMS["steps"]
    bench = Bench(Path(), Path(), {}, None, Server({}))
    monkeypatch.setattr(bench, "count", lambda query: {system.suspension.count_query: 9}[query])
    turns = suspended.Turns(bench, system, system.suspension)
    turns.check(9)
    with pytest.raises(RuntimeError, match="9 jobs are suspended, and should be 10"):
        turns.check(10)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a scenario's round of one of our systems, measured at tiny sizes."""

    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("DATABASE_URL", raising=False)
        patched.setattr(scale, "factor", 0.0001)
        patched.setattr(workflows, "SIZES", (1_000,))
        patched.setattr(workflows, "ONE_CHAIN", (1_000,))
        patched.setattr(suspended, "SIZES", (10_000,))
        patched.setattr(suspended, "DRAINS", 1)
        with server() as started:
            yield TinyRuns(tmp_path_factory, started).measure


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("scenario", ["27", "28", "29"])
def test_scenario_of_workflows_runs_every_job_in_order(measured, scenario):
    found = measured(scenario, "workflows")
    assert not found.failure
    assert all(value > 0 for name, value in found.figures.items() if "_cpu_" not in name), found.figures
    assert ("1,000 jobs: fan_out_seconds" in found.figures) == (scenario == "27")


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_workflows_in_another_order_fails(measured, monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "chains", lambda jobs: [(), *[(jobs - 1,)] * (jobs - 1)])
    assert "jobs started too early" in measured("29", "workflows").failure


@pytest.mark.slow
@pytest.mark.process
def test_scenario_of_suspended_jobs_keeps_them_suspended(measured):
    found = measured("30", "steps")
    assert not found.failure
    assert found.figures["10,000 suspended: share"] > 0
