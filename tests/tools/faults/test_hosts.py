"""What the scenarios of several hosts use: machines, the begins of jobs as the journals grow, the table of figures."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import helpers
from tests.tools.faults import journal, needs
from tests.tools.faults.fleet import Starts
from tests.tools.faults.host_faults import Recovery
from tests.tools.faults.scenarios.hosts import NEEDS
from tests.tools.faults.soak_hosts import table


def test_starts_growing_journal_gives_each_begin_once(tmp_path):
    starts, path = Starts(tmp_path), tmp_path / f"1{journal.SUFFIX}"
    assert starts.of(7) == []
    journal.append(path, "start", job=7, wall=3.0)
    journal.append(path, "end", job=7, wall=4.0)
    assert starts.of(7) == [3.0]
    journal.append(tmp_path / f"2{journal.SUFFIX}", "start", job=7, wall=2.0)
    assert starts.of(7) == [2.0, 3.0]
    assert starts.of(8) == []


def test_starts_line_cut_short_counts_when_it_is_whole(tmp_path):
    starts, path = Starts(tmp_path), tmp_path / f"1{journal.SUFFIX}"
    journal.append(path, "start", job=7, wall=3.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert starts.of(7) == []
    path.write_bytes(whole)
    assert starts.of(7) == [3.0]


def test_table_several_recoveries_shows_ranges():
    quick = Recovery("partition", 4, 4.25, 5.0, 2.0, 15.0, 14.0, 15.5)
    slow = quick._replace(rescued=5, first=6.0, back=None)
    killed = Recovery("primary killed", 0, 1.0, 7.0, None, 15.0, 9.0, 15.0)
    head, _, *rows = table({"primary killed": [killed], "partition": [quick, slow]})
    assert head.startswith("| fault | times | rescued |")
    assert rows == [
        "| partition | 2 | 4 to 5 | 4.2 to 6 | 5 | 2 | 15 | 14 | 15.5 |",
        "| primary killed | 1 | 0 | 1 | 7 |  | 15 | 9 | 15 |",
    ]


def test_soak_hosts_without_ip_is_skipped_with_reason(tmp_path):
    """The command says what is missing, and starts nothing in a namespace."""
    command = (
        "import sys; from tests.tools.faults import cli, needs; needs.NEEDS['routed namespaces'] = lambda: 'no ip'"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{command}; sys.exit(cli.main(['--soak-hosts', '1']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    needs_root = needs.missing(("root",))
    assert done.returncode == 0, done.stderr
    assert f"skipped: the soak of several hosts: {needs_root or 'no ip'}" in done.stdout


def test_scenarios_of_hosts_without_root_are_skipped(monkeypatch):
    monkeypatch.setitem(needs.NEEDS, "root", lambda: "needs root")
    assert needs.missing(NEEDS) == "needs root"


@pytest.mark.skipif(bool(needs.missing(NEEDS)), reason="needs root and namespaces that route")
def test_machines_cut_off_hear_nothing_until_healed():
    """A packet from or to a machine is lost while it is cut off, and no sender is refused."""
    from tests.tools.faults.machines import own_router

    with own_router() as router:
        first, second = router.add("a"), router.add("b")
        ping = [*first.prefix, sys.executable, "-c", PING, second.address]
        listen = [*second.prefix, sys.executable, "-c", PONG, second.address]
        with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listening\n"
            answers = [subprocess.run(ping, capture_output=True, text=True, check=True).stdout]
            for machine in (first, second):
                with machine.partitioned():
                    answers.append(subprocess.run(ping, capture_output=True, text=True, check=True).stdout)
            answers.append(subprocess.run(ping, capture_output=True, text=True, check=True).stdout)
            assert listener.pid in second.pids()
            second.kill()
        assert answers == ["connected\n", "timed out\n", "timed out\n", "connected\n"]
        names = [router.name, first.name, second.name]
    assert not {*names} & {*namespaces()}


@pytest.mark.process
@pytest.mark.skipif(bool(needs.missing(NEEDS)), reason="needs root and namespaces that route")
def test_interrupted_run_leaves_no_process_and_no_namespace(tmp_path):
    """SIGTERM and Ctrl-C do the same; a background process of a shell would ignore Ctrl-C."""
    command = [sys.executable, "-m", "tests.tools.faults", "--only", "F135", "--keep", tmp_path / "kept"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        stem = f"pgq{run.pid}-"
        helpers.wait_until(lambda: [name for name in namespaces() if name.startswith(stem) and "host5" in name], 60)
        helpers.wait_until(lambda: [*(tmp_path / "kept" / "F135").glob("worker-4.log")], 30)
        pids = [pid for name in namespaces() if name.startswith(stem) for pid in pids_in(name)]
        run.send_signal(signal.SIGTERM)
        assert "KeyboardInterrupt" in run.communicate(timeout=60)[1]
    assert len(pids) > 5
    assert [name for name in namespaces() if name.startswith(stem)] == []
    assert [pid for pid in pids if is_postgres_or_worker(pid)] == []


def namespaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines()]


def pids_in(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(pid) for pid in done.stdout.split()]


def is_postgres_or_worker(pid: int) -> bool:
    """Whether the process still exists; another one may have got its number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"postgres" in command or b"runworker" in command


PONG = """
import socket, sys
with socket.create_server((sys.argv[1], 5432)) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].close()
"""
PING = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 5432), 0.5).close()
    print("connected")
except TimeoutError:
    print("timed out")
"""
