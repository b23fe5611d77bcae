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

from django_pgqueue import conf, health
from django_pgqueue.worker.supervision.supervisor import KILL_AFTER_GRACE_SECONDS
from tests.documents import CODE, PAGES, blocks, prose
from tests.test_docs import own_options, parser_of

KUBERNETES, DOCKER, SYSTEMD = (f"docs/production/{name}.md" for name in ("kubernetes", "docker", "systemd"))
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


def test_kubernetes_probes_read_the_file_that_the_worker_writes():
    [manifest] = documents(KUBERNETES)
    spec = manifest["spec"]["template"]["spec"]
    [container] = spec["containers"]
    worker = parse(container["command"])
    probes = {name: parse(container[name]["exec"]["command"]) for name in ("livenessProbe", "readinessProbe")}
    assert {probe.path for probe in probes.values()} == {worker.health_file}
    assert [probes[name].ready for name in ("livenessProbe", "readinessProbe")] == [False, True]
    for name in probes:
        probe = container[name]
        assert set(probe) <= {"exec", "initialDelaySeconds", "periodSeconds", "timeoutSeconds"}
        assert probe["timeoutSeconds"] < probe["periodSeconds"]
    assert "after three failures" in PAGES[KUBERNETES] and "failureThreshold" not in container["livenessProbe"]
    noticed = health.MAX_AGE_SECONDS + 3 * container["livenessProbe"]["periodSeconds"]
    assert noticed <= 120, "the page promises two minutes"
    assert spec["terminationGracePeriodSeconds"] > conf.Settings().GRACE + KILL_AFTER_GRACE_SECONDS
    assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]


def test_docker_health_check_reads_the_file_that_the_worker_writes():
    [compose] = documents(DOCKER)
    worker = compose["services"]["worker"]
    kind, *check = worker["healthcheck"]["test"]
    assert kind == "CMD"
    assert parse(check).path == parse(worker["command"]).health_file
    assert not parse(check).ready


@pytest.mark.parametrize("page", [KUBERNETES, DOCKER])
def test_probe_of_page_is_alive_or_dead_by_the_health_file(page, tmp_path):
    """The command of the page runs as a process, with the path of a file of this test."""
    commands = [
        json.loads(found)
        for block in blocks(page, "yaml")
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
    lines = [unit["ExecStart"] for unit in units() if "ExecStart" in unit]
    workers = [parse(shlex.split(line)) for line in lines if "runworker" in line]
    assert len(workers) == 3
    [shell] = [shlex.split(line) for line in lines if "runworker" not in line]
    assert shell[:2] == ["/bin/sh", "-c"]
    check, _, restart = shell[2].partition(" || ")
    assert parse(shlex.split(check)).path == workers[-1].health_file
    assert restart == "systemctl restart pgqueue-worker"
    [directory] = {unit["RuntimeDirectory"] for unit in units() if "RuntimeDirectory" in unit}
    assert workers[-1].health_file.startswith(f"/run/{directory}/")


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


@pytest.mark.parametrize(("page", "code"), inline_commands())
def test_command_in_a_sentence_exists_with_its_options(page, code):
    """A sentence often names a command without the values of its arguments."""
    words = shlex.split(code.removeprefix("manage.py "))
    if words[0] == "python":
        parse(words)
        return
    command = words[: 2 if words[0] == "pgqueue" else 1]
    if len(command) == 2:
        [choices] = [action.choices for action in parser_of("pgqueue")._actions if isinstance(action.choices, dict)]
        assert command[1] in choices
    assert {word for word in words if word.startswith("--")} <= own_options(*command) | {"--verbosity", "--settings"}


def test_list_of_commands_in_sentences_is_not_empty():
    assert len(inline_commands()) > 20


def test_checklist_commands_are_those_of_django():
    lines = "\n".join(blocks("docs/production/checklist.md", "sh")).splitlines()
    assert [shlex.split(line)[2] for line in lines] == ["check", "migrate"]
