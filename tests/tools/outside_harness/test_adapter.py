"""The adapter speaks the protocol of the harness: it describes itself, samples, runs jobs, and ends after SIGTERM."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.models import Job
from tests.process.harness import database_url
from tests.tools.outside_harness import cells
from tests.tools.outside_harness.adapter import samples
from tests.tools.outside_harness.replica import Replica

HERE = Path(__file__).parent / "adapter"
REQUIRED = {"claim_p50_ms": 30, "claim_p95_ms": 30, "claim_p99_ms": 30}
"""The metrics that the protocol requires, each with the seconds that it covers."""
RATES = {"enqueue_rate": 1, "completion_rate": 1, "queue_depth": 0}
STOP_SECONDS = 5
"""How long the protocol allows the adapter to end."""


@pytest.fixture
def adapter(committing: None, tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts the adapter on the test database. It is killed after the test."""
    started: list[Replica] = []

    def start(**variables: object) -> Replica:
        started.append(Replica({**variables, "DATABASE_URL": database_url(), "SAMPLE_EVERY_S": 1}, tmp_path))
        return started[-1]

    yield start
    for replica in started:
        replica.kill()


@pytest.mark.process
@pytest.mark.parametrize(
    ("variables", "task"),
    [
        ({"PRODUCER_RATE": 100, "WORKER_COUNT": 8, "PGQUEUE_PROCESSES": 2, "PGQUEUE_LEASE": 30}, "bench_job"),
        ({"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": 50, "PGQUEUE_TASK": "async"}, "bench_job_async"),
    ],
    ids=["processes", "coroutines"],
)
def test_adapter_until_sigterm_runs_and_reports_jobs(adapter, variables, task):
    replica = adapter(**variables)
    replica.wait_until_sampling(3)
    replica.process.send_signal(signal.SIGTERM)
    assert replica.process.wait(STOP_SECONDS) == 0, replica.log.read_text()
    descriptor, *samples = replica.records()
    assert_describes(descriptor)
    assert_sampled(samples)
    assert {job.task_name for job in Job.objects.all()} == {task}
    assert Job.objects.filter(state="succeeded").count() > 100
    assert not Job.objects.filter(state="running").exists()


def assert_describes(descriptor: dict[str, Any]) -> None:
    """Fail if the first line is not what the harness compares with the manifest."""
    manifest = json.loads((HERE / "adapter.json").read_text())
    assert descriptor["kind"] == "descriptor"
    assert {key: descriptor[key] for key in ("system", "event_tables", "extensions")} == {
        key: manifest[key] for key in ("system", "event_tables", "extensions")
    }
    assert {"version", "schema_version", "db_name", "started_at"} <= set(descriptor)


def assert_sampled(samples: list[dict[str, Any]]) -> None:
    """Fail if a required metric is missing in a sample, or covers another time."""
    windows: dict[str, dict[str, int]] = {}
    for record in samples:
        assert (record["system"], record["kind"], record["subject_kind"]) == ("pgqueue", "adapter", "adapter")
        assert record["t"].endswith("Z")
        windows.setdefault(record["t"], {})[record["metric"]] = record["window_s"]
    for found in windows.values():
        assert found.items() >= (REQUIRED | RATES).items()
    last = {record["metric"]: record["value"] for record in samples}
    assert 0 < last["claim_p50_ms"] <= last["claim_p99_ms"]
    assert last["claim_p50_ms"] < last["end_to_end_p50_ms"]


@pytest.mark.process
def test_adapter_whose_worker_is_killed_exits_with_1(adapter):
    replica = adapter(PRODUCER_RATE=20)
    replica.wait_until_sampling(3)
    [worker] = Path(f"/proc/{replica.process.pid}/task/{replica.process.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)
    assert replica.process.wait(20) == 1
    assert "the worker has exited with -9" in replica.log.read_text()


def test_histogram_keeps_three_digits_and_forgets_old_values(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(samples, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now)}))
    histogram = samples.Histogram()
    histogram.add([123_456] * 98 + [987_654_321] * 2)
    found = histogram.percentiles_ms()
    assert found["p50"] == found["p95"] == pytest.approx(123.456, rel=1e-3)
    assert found["p99"] == pytest.approx(987_654.321, rel=1e-3)
    now += 31
    assert histogram.percentiles_ms() == {"p50": 0.0, "p95": 0.0, "p99": 0.0}


@pytest.mark.process
@pytest.mark.slow
def test_cells_print_a_row_for_each_phase(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    phases = ("clean", cells.HELD, cells.RESTARTED)
    small = cells.Cell({"PRODUCER_RATE": 50, "WORKER_COUNT": 4}, tuple((phase, 1.0) for phase in phases))
    monkeypatch.setitem(cells.CELLS, "small", small)
    path = tmp_path / "figures.json"
    assert cells.main(["small", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert tuple(each["phase"] for each in figures) == phases
    assert all(each["rate"] > 0 and each["row_versions"] > 0 and each["ready_seconds"] > 0 for each in figures)
    assert len(capsys.readouterr().out.splitlines()) == len(cells.HEADER) + len(phases)


def test_cells_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        cells.main(["peak_w16", "peek"])
    assert "no such cell: peek" in capsys.readouterr().err
