"""The PostgreSQL server of the example project: private clusters, and one server that several processes share."""

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

# Each script connects to the shared server and prints its host. STAY then waits until its standard input ends.
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
    """Make a directory that the server's account can enter. Its name is short, because of the limit for sockets."""
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
    """Return a function that starts Python processes whose shared server is below `place`."""
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
        assert time.monotonic() < deadline, f"the condition was not true within {seconds} s"
        time.sleep(0.01)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=30)
    return process.returncode


def postmasters(place: Path) -> list[int]:
    """Return the process ids of the servers below `place`, from their pid files. A clean stop removes the file."""
    return [int(path.read_text().splitlines()[0]) for path in place.glob("**/postmaster.pid")]


def ask(cluster: server.Cluster, query: str, **options: object) -> object:
    at = {"host": str(cluster.home), "port": cluster.port, "user": "postgres", **options}
    with psycopg.connect(dbname="postgres", autocommit=True, **at) as connection:  # type: ignore[arg-type]
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def test_cluster_starts_and_stops_repeatedly(cluster):
    assert cluster.is_running()
    pid = cluster.pid
    cluster.start()
    assert cluster.pid == pid
    cluster.stop()
    assert not cluster.is_running()
    cluster.stop()
    cluster.start()
    assert cluster.is_running()


def test_cluster_is_private_and_durable(cluster):
    assert stat.S_IMODE(cluster.home.stat().st_mode) == 0o700
    assert ask(cluster, "SHOW listen_addresses") == ""
    assert ask(cluster, "SHOW fsync") == "on"
    assert ask(cluster, "SHOW max_connections") == "200"


def test_cluster_killed_server_recovers_its_data(cluster):
    assert ask(cluster, "CREATE TABLE kept (n int)") is None
    assert ask(cluster, "INSERT INTO kept VALUES (7) RETURNING n") == 7
    os.kill(cluster.pid, signal.SIGKILL)
    wait_until(lambda: not cluster.is_running())
    cluster.start()
    assert ask(cluster, "SELECT n FROM kept") == 7


def test_cluster_uses_given_port_and_settings(bin_dir, place, unused_port):
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


def test_cluster_failed_start_shows_log_and_remedy(cluster):
    cluster.stop()
    broken = server.Cluster(cluster.home, cluster.bin_dir, settings={"max_connections": "many"})
    with pytest.raises(RuntimeError, match=r"(?s)max_connections.*DATABASE_URL"):
        broken.start()


def test_claim_directory_symlink_is_refused(place):
    (place / "c").symlink_to(place)
    with pytest.raises(PermissionError, match="DATABASE_URL"):
        server.claim_directory(place / "c")


@pytest.mark.quick
def test_binaries_missing_programs_raise_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv(server.BIN_VARIABLE, str(tmp_path))
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        server.binaries()


def test_shared_home_differs_for_each_installation():
    assert server.shared_home(Path("/usr/lib/15")) != server.shared_home(Path("/usr/lib/18"))


def test_shared_server_last_of_concurrent_users_stops_it(start, place):
    users = [start(STAY) for _ in range(4)]
    homes = {read_line(user) for user in users}
    assert len(homes) == 1
    assert len(postmasters(place)) == 1
    for user in users[1:]:
        assert end(user) == 0
    assert len(postmasters(place)) == 1
    assert end(users[0]) == 0
    assert postmasters(place) == []


def test_shared_server_killed_starter_next_user_stops_it(start, place):
    starter = start(STAY)
    read_line(starter)
    running = postmasters(place)
    starter.kill()
    starter.wait()
    assert postmasters(place) == running
    user = start(STAY)
    read_line(user)
    assert postmasters(place) == running
    assert end(user) == 0
    assert postmasters(place) == []


def test_shared_server_crashed_is_started_by_next_user(start, place):
    first = start(STAY)
    read_line(first)
    [crashed] = postmasters(place)
    os.kill(crashed, signal.SIGKILL)
    second = start(STAY)
    read_line(second)
    [recovered] = postmasters(place)
    assert recovered != crashed
    assert end(first) == 0
    assert postmasters(place) == [recovered]
    assert end(second) == 0
    assert postmasters(place) == []


def test_shared_server_ended_fork_leaves_it_to_parent(start, place):
    process = start(FORK)
    read_line(process)
    assert read_line(process) == "still there"
    assert end(process) == 0
    assert postmasters(place) == []


def test_shared_server_fork_that_outlives_parent_stops_it(start, place):
    parent = start(ORPHAN)
    read_line(parent)
    assert parent.wait(timeout=30) == 0
    assert len(postmasters(place)) == 1
    parent.communicate(timeout=30)  # closes the orphan's input, and waits until its output ends
    wait_until(lambda: postmasters(place) == [])


def test_check_command_starts_no_server(start, place):
    assert end(start(CHECK)) == 0
    assert list(place.iterdir()) == []
