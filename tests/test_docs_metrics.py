"""The reference of the metrics, the alert rules and the dashboard against the metrics of the code."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from django_pgqueue.metrics import gauges, view
from django_pgqueue.settings import conf
from django_pgqueue.worker.monitoring import http_server
from django_pgqueue.worker.monitoring.http_server import HttpServer
from django_pgqueue.worker.monitoring.metrics import METRICS
from django_pgqueue.worker.monitoring.metrics_process import Pages
from django_pgqueue.worker.runtime import health_report
from django_pgqueue.worker.runtime.counts import DURATIONS, EXIT_REASONS, JOB_ROWS, MEASURED, OUTCOMES, STATEMENT_ROWS
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.shared_memory import lease_clock
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision import health_thread
from tests.documents import CODE, PAGES, TOP, plain, table

REFERENCE = "docs/reference/metrics.md"
RULES = TOP / "docs/production/prometheus_rules.yaml"
DASHBOARD = TOP / "docs/production/grafana_dashboard.json"
NAME = re.compile(r"\bpgqueue_\w+")
BY_NAME = {f"{metric.name}_total" if metric.kind == "counter" else metric.name: metric for metric in METRICS}
GAUGES = {gauge.name: gauge for gauge, _ in gauges.READS}
SERIES = (
    {name for name, metric in BY_NAME.items() if metric.kind != "histogram"}
    | set(GAUGES)
    | {
        f"{name}_{part}"
        for name, metric in BY_NAME.items()
        if metric.kind == "histogram"
        for part in ("bucket", "count", "sum")
    }
)


def test_reference_lists_every_metric_with_its_kind_and_labels():
    documented = {plain(name): (kind, CODE.findall(labels)) for name, kind, labels, _ in table(REFERENCE, "metric")}
    of_workers = {name: (metric.kind, list(metric.labels)) for name, metric in BY_NAME.items()}
    of_queue = {name: ("gauge", list(gauge.labels)) for name, gauge in GAUGES.items()}
    assert not set(of_workers) & set(of_queue)
    assert documented == of_workers | of_queue


def test_reference_lists_every_outcome_and_reason():
    outcomes = [plain(cell) for cell, _ in table(REFERENCE, "outcome")]
    reasons = [name for cell, _ in table(REFERENCE, "reason") for name in CODE.findall(cell)]
    assert [plain(cell) for cell, _ in table(REFERENCE, "state of a job")] == list(gauges.STATES)
    assert sorted(outcomes) == sorted(OUTCOMES)
    assert sorted(reasons) == sorted(EXIT_REASONS)


def test_pages_name_existing_metrics_only():
    others = {"pgqueue_job", "pgqueue_execution", "pgqueue_worker"}  # tables
    others |= {"pgqueue_token"}  # a file
    for page in ("docs/production/monitoring.md", "docs/production/kubernetes.md", REFERENCE):
        named = set(NAME.findall(PAGES[page]))
        assert named - others <= set(BY_NAME) | SERIES, page


def text_of(page):
    """Return the text of a page in one line."""
    return " ".join(PAGES[page].split())


def test_pages_state_the_limits_of_the_code():
    worker, systemd_page, reference = (
        text_of(page) for page in ("docs/production/worker.md", "docs/production/systemd.md", REFERENCE)
    )
    assert f"{http_server.CONNECTION_LIMIT} connections at a time" in worker
    assert f"gives each request {http_server.TIMEOUT_SECONDS:g} s" in worker
    assert f"has not responded for {health_report.SILENT_SECONDS:g} s" in worker
    assert f"event loop of its process continue for {health_report.LOOP_SECONDS:g} s" in worker
    assert f"has hung for {health_report.ROUND_SECONDS / 60:g} minutes" in worker
    assert f"has not responded for {health_report.LOST_SECONDS / 60:g} minutes" in worker
    claim_seconds = conf.Settings().POLL_INTERVAL + health_report.CLAIM_SECONDS
    assert f"`POLL_INTERVAL` and {health_report.CLAIM_SECONDS:g} s more ({claim_seconds:g} s)" in worker
    assert health_report.LEASE_FRACTION == 0.5 and "more than half a lease ago" in worker
    assert f"waited for its database for {health_thread.START_SECONDS:g} s" in systemd_page
    assert f"up to {JOB_ROWS - 1} pairs of queue and task, and up to {STATEMENT_ROWS - 1} statements" in reference
    assert f"more than {MEASURED} results at once" in reference
    assert f"the first {gauges.QUEUES_LIMIT} by name" in reference
    monitoring = text_of("docs/production/monitoring.md")
    assert f"at most once in {view.CACHE_SECONDS:g} s" in monitoring
    assert f"each for at most {gauges.STATEMENT_TIMEOUT_SECONDS} s" in monitoring
    assert (DURATIONS[0], DURATIONS[-1]) == (0.005, 3600.0) and "from 5 ms to one hour" in reference


def expressions_of_rules():
    yaml = pytest.importorskip("yaml", reason="comes with the tools that build the documentation")
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_alert_rules_use_existing_metrics_outcomes_and_reasons():
    rules = expressions_of_rules()
    assert len(rules) > 8
    for name, rule in rules.items():
        used = set(NAME.findall(rule["expr"])) - {"pgqueue"}
        assert used <= SERIES, name
        for label, known in (("outcome", OUTCOMES), ("reason", EXIT_REASONS), ("state", gauges.STATES)):
            for values in re.findall(rf'{label}=~?"([^"]+)"', rule["expr"]):
                assert set(values.split("|")) <= set(known), name
        assert {"summary", "description", "runbook"} == set(rule["annotations"]), name
        assert rule["labels"]["severity"] in {"page", "ticket"}, name


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_alert_rules_pass_promtool():
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(expressions_of_rules())} rules found" in done.stdout


def test_dashboard_uses_every_metric_and_no_other():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set()
    for panel in panels:
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            used |= set(NAME.findall(target["expr"]))
    assert used <= SERIES
    without_panel = {"pgqueue_statements_total", "pgqueue_alive", "pgqueue_worker_info"}
    shown = {name for name in BY_NAME if any(series.startswith(name) for series in used)}
    assert set(BY_NAME) - shown == without_panel
    assert set(GAUGES) <= used
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


# ------------------------------------------------------------------------------- Prometheus itself


@pytest.fixture
def port():
    """Serve the pages of a worker with one process in a thread, and return the port."""
    memory = WorkerMemory(1, counting=True)
    process = memory.free_place()
    process.pid, process.started_at, process.lease_until = 11, time.monotonic(), lease_clock() + 60.0
    process.answered("claim")
    process.slots = 10
    listener = socket.create_server(("127.0.0.1", 0))
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run():
        server = await HttpServer(Pages(HealthReport(memory)).by_path()).start(listener)
        ready.set()
        await stop.wait()
        server.close()
        await server.wait_closed()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(10)
    yield listener.getsockname()[1]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_metrics_page_passes_promtool(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        body = response.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_prometheus_scrapes_the_port(port, tmp_path, unused_port):
    """Prometheus itself reads the port, evaluates the alert rules, and answers a query."""
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, evaluation_interval: 200ms}\n"
        f"rule_files: [{RULES}]\n"
        "scrape_configs:\n"
        f"  - {{job_name: pgqueue, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
    )
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    command += [f"--web.listen-address=127.0.0.1:{unused_port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prometheus:
        try:
            assert value_of(unused_port, "sum(pgqueue_slots)") == "10"
            assert value_of(unused_port, 'count(up{job="pgqueue"} == 1)') == "1"
        finally:
            prometheus.kill()


def value_of(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                result = json.load(response)["data"]["result"]
        except OSError:
            result = []
        if result:
            return result[0]["value"][1]
        time.sleep(0.1)
    raise AssertionError(f"Prometheus has no answer to {query}")
