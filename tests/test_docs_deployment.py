"""The manifests, units and command lines of the documentation: each command exists, and the pages agree."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import health
from django_pgqueue.settings import conf
from django_pgqueue.worker.monitoring.metrics_process import Pages
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision.health_thread import SystemdNotifier
from django_pgqueue.worker.supervision.stop_deadline import EXIT_AFTER_GRACE_SECONDS
from tests.documents import CODE, PAGES, blocks, prose
from tests.rules import for_each
from tests.test_docs import own_options, parser_of, subcommands

NAMES = ("kubernetes", "docker", "systemd", "heroku")
KUBERNETES, DOCKER, SYSTEMD, HEROKU = (f"docs/production/{name}.md" for name in NAMES)
OURS = ("runworker", "pgqueue")


def parse(words: list[str]) -> Any:
    """Return the options of one of our commands, as its own parser reads them; None if it is another program."""
    if words[1:3] == ["-m", "django_pgqueue.health"]:
        parser = ArgumentParser(exit_on_error=False)
        health.add_arguments(parser)
        return parser.parse_args(words[3:])
    if "manage.py" in words[:2]:
        command, *arguments = words[words.index("manage.py") + 1 :]
        return parser_of(command).parse_args(arguments) if command in OURS else None
    return None


def documents(page: str) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="comes with the tools that build the documentation")
    return [yaml.safe_load(block) for block in blocks(page, "yaml")]


def units() -> list[dict[str, str]]:
    """Return the settings of each unit on the page about systemd."""
    return [dict(re.findall(r"^(\w+)=(.*)$", block, re.MULTILINE)) for block in blocks(SYSTEMD, "ini")]


# ------------------------------------------------------------------ Kubernetes and Docker


def manifests() -> dict[str, Any]:
    """Return the manifests of the page about Kubernetes by their kind."""
    return {manifest["kind"]: manifest for manifest in documents(KUBERNETES)}


def test_kubernetes_probes_ask_the_port_that_the_worker_opens():
    manifest = manifests()["Deployment"]
    spec = manifest["spec"]["template"]["spec"]
    [container] = spec["containers"]
    worker = parse(container["command"])
    [port] = container["ports"]
    assert (worker.metrics_port, str(worker.metrics_address)) == (port["containerPort"], "0.0.0.0")  # noqa: S104 -- the manifest's address
    probes = {name: container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["httpGet"]["path"] for probe in probes.values()] == ["/livez", "/livez", "/readyz"]
    assert set(probes["livenessProbe"]["httpGet"].values()) & set(Pages(HealthReport(WorkerMemory(1))).by_path())
    for probe in probes.values():
        assert set(probe) <= {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}
        assert probe.get("timeoutSeconds", 1) < probe["periodSeconds"]
    start = probes["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 120, "the page promises two minutes to load"
    assert "after three failures" in PAGES[KUBERNETES] and "failureThreshold" not in probes["livenessProbe"]
    assert health.MAX_AGE_SECONDS + 3 * probes["livenessProbe"]["periodSeconds"] <= 120, "the page promises two minutes"
    assert spec["terminationGracePeriodSeconds"] > conf.Settings().GRACE + EXIT_AFTER_GRACE_SECONDS
    assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]


def test_kubernetes_autoscalers_scale_the_deployment_by_known_figures(db):
    found = manifests()
    scaled = found["Deployment"]["metadata"]["name"]
    assert found["ScaledObject"]["spec"]["scaleTargetRef"] == {"name": scaled}
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": scaled}
    [trigger] = found["ScaledObject"]["spec"]["triggers"]
    with connection.cursor() as cursor:
        cursor.execute(trigger["metadata"]["query"])
        assert cursor.fetchall() == [(0,)]


def test_docker_health_check_reads_the_file_that_the_worker_writes():
    [compose] = documents(DOCKER)
    worker = compose["services"]["worker"]
    kind, *check = worker["healthcheck"]["test"]
    assert kind == "CMD"
    assert parse(check).path == parse(worker["command"]).health_file
    assert not parse(check).ready


def test_probe_of_docker_page_is_alive_or_dead_by_the_health_file(tmp_path):
    """The command of the page runs as a process, with the path of a file of this test."""
    commands = [
        json.loads(found)
        for block in blocks(DOCKER, "yaml")
        for found in re.findall(r'\["(?:CMD", ")?(python", "-m", .*?)\]', block)
        for found in [f'["{found}]']
    ]
    assert commands
    path = tmp_path / "worker.json"
    for command in commands:
        run = [sys.executable, *(str(path) if word.endswith(".json") else word for word in command[1:])]
        path.unlink(missing_ok=True)
        assert subprocess.run(run, capture_output=True, check=False).returncode == 1
        path.write_text(json.dumps({"status": "ok", "since": "", "processes": []}))
        assert subprocess.run(run, capture_output=True, check=False).returncode == 0


# ------------------------------------------------------------------ systemd


def test_systemd_commands_are_valid_and_agree():
    services = [unit for unit in units() if "ExecStart" in unit]
    workers = [parse(shlex.split(unit["ExecStart"])) for unit in services]
    assert len(workers) == 2
    for unit in services:
        assert (unit["Type"], unit["KillMode"]) == ("notify", "mixed")
        assert int(unit["TimeoutStopSec"]) > conf.Settings().GRACE + EXIT_AFTER_GRACE_SECONDS
        notifier = SystemdNotifier(HealthReport(WorkerMemory(1)), {"WATCHDOG_USEC": unit["WatchdogSec"] + "000000"})
        assert 4 * notifier.interval_seconds < int(unit["WatchdogSec"])


def has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="needs docker compose")
def test_docker_compose_accepts_the_file(tmp_path):
    (tmp_path / "compose.yaml").write_text(blocks(DOCKER, "yaml")[0])
    done = subprocess.run(
        ["docker", "compose", "config", "--quiet"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_procfile_commands_are_valid_and_stop_in_time():
    lines = dict(line.split(": ", 1) for line in blocks(HEROKU, "text")[0].splitlines())
    assert set(lines) == {"web", "release", "worker"}
    worker = parse(shlex.split(lines["worker"]))
    assert worker.grace + EXIT_AFTER_GRACE_SECONDS < 30, "the platform kills a process after 30 s"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_units_have_only_known_settings(tmp_path):
    for number, block in enumerate(blocks(SYSTEMD, "ini")):
        is_timer = "[Timer]" in block
        text = re.sub(r"/srv/shop/\.venv/bin/python|/usr/bin/systemctl", sys.executable, block)
        text = re.sub(r"^(User|WorkingDirectory)=.*\n", "", text, flags=re.MULTILINE)
        (tmp_path / f"unit{number}@.{'timer' if is_timer else 'service'}").write_text(text)
    for path in tmp_path.iterdir():
        instance = path.with_name(path.name.replace("@", "@one"))
        done = subprocess.run(["systemd-analyze", "verify", instance], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line and "Unknown" in line]
        assert ours == [], done.stderr


# ------------------------------------------------------------------ command lines in sentences


def inline_commands() -> list[tuple[str, str]]:
    """Return the pages and texts of our command lines that stand in a sentence, with at least one argument."""
    pattern = re.compile(r"(?:manage\.py )?(?:runworker|pgqueue) (?!=)[^…]+|python -m django_pgqueue\.health [^…]+")
    return [(page, code) for page in PAGES for code in CODE.findall(prose(page)) if pattern.fullmatch(code)]


@for_each(inline_commands())
def test_command_in_a_sentence_exists_with_its_options(case):
    """A sentence often names a command without the values of its arguments."""
    _page, code = case
    words = shlex.split(code.removeprefix("manage.py "))
    if words[0] == "python":
        parse(words)
        return
    command = words[:1]
    if command == ["pgqueue"]:
        given = tuple(words[1:])
        named = [known for known in subcommands() if given[: len(known)] == known or known[: len(given)] == given]
        assert named, "no such command, or no such action of it"
        command = ["pgqueue", *named[0]]
    assert {word for word in words if word.startswith("--")} <= own_options(*command) | {"--verbosity", "--settings"}


def test_list_of_commands_in_sentences_is_not_empty():
    assert len(inline_commands()) > 20


def test_checklist_commands_are_those_of_django():
    lines = "\n".join(blocks("docs/production/checklist.md", "sh")).splitlines()
    assert [shlex.split(line)[2] for line in lines] == ["check", "migrate"]
