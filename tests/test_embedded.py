"""The example project's own server: private clusters, and processes that share one."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from example_project.embedded import server

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[1]

# Connects to the shared server, says so, and stays until its standard input ends.
USER = """
import os, sys
from example_project.embedded.server import ensure
import psycopg
at = ensure()
with psycopg.connect(host=at["HOST"], port=at["PORT"], user=at["USER"], dbname="postgres"):
    print(at["HOST"], flush=True)
"""
STAY = USER + "sys.stdin.read()\n"
FORK = (
    USER
    + """
child = os.fork()
if child == 0:
    assert ensure() == at
    sys.exit()  # by atexit, like a careless worker
os.waitpid(child, 0)
with psycopg.connect(host=at["HOST"], port=at["PORT"], user=at["USER"], dbname="postgres"):
    print("still there", flush=True)
"""
)
ORPHAN = (
    USER
    + """
if os.fork():
    sys.exit()  # the parent ends first
sys.stdin.read()
"""
)
CHECK = """
import runpy, sys
sys.argv[1:] = ["check"]
runpy.run_path("example_project/manage.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def bin_dir():
    try:
        return server.binaries()
    except ImproperlyConfigured as reason:
        pytest.skip(str(reason))


@pytest.fixture
def place():
    """A directory with a short name, for sockets, which the server's account can enter."""
    path = Path(tempfile.mkdtemp(prefix="pgq-"))
    path.chmod(0o711)
    yield path
    for pid in postmasters(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


@pytest.fixture
def cluster(bin_dir, place):
    cluster = server.Cluster(place / "c", server.reachable(bin_dir, place / "copy"))
    cluster.start()
    yield cluster
    cluster.stop("immediate")


@pytest.fixture
def start(bin_dir, place):
    """Starts Python processes for which `place` is where a shared server may be."""
    processes = []

    def start(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=CHECKOUT,
            env={**os.environ, "TMPDIR": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=30)
    return process.returncode


def postmasters(place: Path) -> list[int]:
    """The servers that run under `place`, by their pid files, which a clean stop removes."""
    return [int(path.read_text().splitlines()[0]) for path in place.glob("**/postmaster.pid")]


def ask(cluster: server.Cluster, query: str, **options: object) -> object:
    at = {"host": str(cluster.home), "port": cluster.port, "user": "postgres", **options}
    with psycopg.connect(dbname="postgres", autocommit=True, **at) as connection:  # type: ignore[arg-type]
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def test_a_cluster_starts_and_stops_at_will(cluster):
    assert cluster.is_running()
    pid = cluster.pid
    cluster.start()
    assert cluster.pid == pid
    cluster.stop()
    assert not cluster.is_running()
    cluster.stop()
    cluster.start()
    assert cluster.is_running()


def test_it_is_private_and_durable(cluster):
    assert stat.S_IMODE(cluster.home.stat().st_mode) == 0o700
    assert ask(cluster, "SHOW listen_addresses") == ""
    assert ask(cluster, "SHOW fsync") == "on"
    assert ask(cluster, "SHOW max_connections") == "200"


def test_a_killed_cluster_recovers(cluster):
    assert ask(cluster, "CREATE TABLE kept (n int)") is None
    assert ask(cluster, "INSERT INTO kept VALUES (7) RETURNING n") == 7
    os.kill(cluster.pid, signal.SIGKILL)
    wait_until(lambda: not cluster.is_running())
    cluster.start()
    assert ask(cluster, "SELECT n FROM kept") == 7


def test_a_port_and_settings_can_be_chosen(bin_dir, place, unused_port):
    programs = server.reachable(bin_dir, place / "copy")
    cluster = server.Cluster(place / "c", programs, port=unused_port, settings={"wal_level": "logical"})
    cluster.start()
    assert cluster.connection_settings == {
        "HOST": str(place / "c"),
        "PORT": str(unused_port),
        "USER": "postgres",
    }
    assert ask(cluster, "SHOW wal_level") == "logical"
    assert ask(cluster, "SHOW wal_level", host="127.0.0.1") == "logical"


def test_a_failure_says_what_postgresql_says_and_what_to_do(cluster):
    cluster.stop()
    broken = server.Cluster(cluster.home, cluster.bin_dir, settings={"max_connections": "many"})
    with pytest.raises(RuntimeError, match=r"(?s)max_connections.*DATABASE_URL"):
        broken.start()


def test_a_directory_of_somebody_else_is_refused(place):
    (place / "c").symlink_to(place)
    with pytest.raises(PermissionError, match="DATABASE_URL"):
        server.claim_directory(place / "c")


@pytest.mark.quick
def test_binaries_that_are_not_there_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv(server.BIN_VARIABLE, str(tmp_path))
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        server.binaries()


def test_each_installation_has_a_home_of_its_own():
    assert server.shared_home(Path("/usr/lib/15")) != server.shared_home(Path("/usr/lib/18"))


def test_first_starters_at_once_share_one_server_and_the_last_to_end_stops_it(start, place):
    users = [start(STAY) for _ in range(4)]
    homes = {said(user) for user in users}
    assert len(homes) == 1
    assert len(postmasters(place)) == 1
    for user in users[1:]:
        assert end(user) == 0
    assert len(postmasters(place)) == 1
    assert end(users[0]) == 0
    assert postmasters(place) == []


def test_after_a_killed_starter_the_next_user_joins_and_stops_it(start, place):
    starter = start(STAY)
    said(starter)
    running = postmasters(place)
    starter.kill()
    starter.wait()
    assert postmasters(place) == running
    user = start(STAY)
    said(user)
    assert postmasters(place) == running
    assert end(user) == 0
    assert postmasters(place) == []


def test_after_a_crash_of_the_server_the_next_user_starts_it(start, place):
    first = start(STAY)
    said(first)
    [crashed] = postmasters(place)
    os.kill(crashed, signal.SIGKILL)
    second = start(STAY)
    said(second)
    [recovered] = postmasters(place)
    assert recovered != crashed
    assert end(first) == 0
    assert postmasters(place) == [recovered]
    assert end(second) == 0
    assert postmasters(place) == []


def test_a_fork_that_ends_leaves_the_server_to_its_parent(start, place):
    process = start(FORK)
    said(process)
    assert said(process) == "still there"
    assert end(process) == 0
    assert postmasters(place) == []


def test_a_fork_that_outlives_its_parent_keeps_the_server_and_stops_it(start, place):
    parent = start(ORPHAN)
    said(parent)
    assert parent.wait(timeout=30) == 0
    assert len(postmasters(place)) == 1
    parent.communicate(timeout=30)  # ends the orphan's input, and waits for the end of its output
    wait_until(lambda: postmasters(place) == [])


def test_checks_start_no_server(start, place):
    assert end(start(CHECK)) == 0
    assert list(place.iterdir()) == []
