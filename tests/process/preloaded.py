"""Start the workers and commands of tests as forks of a process that has already imported Django and this package.

A worker takes 0.8 s of processor time to start, and 0.6 s of that are imports. A run of all tests starts hundreds of
workers. A fork is a process of its own, in a session of its own, and it ends as each Python process does. It reads its
settings, makes the models and imports the tasks after the fork.

A fork cannot show that Python finds our modules, or what Python reads when it starts. A worker starts in the usual way
if another program starts it, if it has environment variables that may matter to Python, or if its test has the marker
`fresh_start`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

MODULES: Final = (
    *("django.contrib.admin", "django.contrib.admin.templatetags.admin_list", "django.contrib.auth.apps"),
    *("django.contrib.auth.hashers", "django.contrib.messages.middleware", "django.contrib.postgres.fields"),
    *("django.contrib.postgres.operations", "django.contrib.sessions.middleware"),
    *("django.core.management.commands.makemigrations", "django.db.backends.postgresql.base"),
    *("django.test.signals", "django.views.i18n", "environ"),
    *("django_pgqueue.acts", "django_pgqueue.checks", "django_pgqueue.doctor.job_checks"),
    *("django_pgqueue.doctor.worker_checks", "django_pgqueue.management.commands.runworker"),
    "django_pgqueue.stats.graphs.groups",
)
"""Modules that can be imported without settings, and that import most of what a worker needs.

The modules that a worker imports after the fork need the models.
"""
OWN_VARIABLES: Final = ("DJANGO_SETTINGS_MODULE", "PGQUEUE_")
"""Prefixes of environment variables that matter to our own code only, which reads them after the fork."""
MAX_BYTES: Final = 100_000
"""The longest request: the default size of a socket's buffer is 200 KB."""


def can_fork_with(variables: Mapping[str, str]) -> bool:
    """Return whether a fork can use these variables besides those of the environment of the tests."""
    return all(name.startswith(OWN_VARIABLES) for name in variables)


class PreloadedProcess:
    """A fork that runs `python -m django`. It has the methods of `subprocess.Popen` that the tests use.

    Threads can share it. The pipe for the exit code stays open as long as the object, because another thread may wait.
    """

    def __init__(self, arguments: list[str], environment: Mapping[str, str], output: int, errors: int) -> None:
        """Start the process. It has no input, and writes to the file descriptors `output` and `errors`."""
        self.returncode: int | None = None
        self._exit, writer = os.pipe()
        self._reading = threading.Lock()
        weakref.finalize(self, os.close, self._exit)
        try:
            self.pid = fork_loop().fork(arguments, environment, [output, errors, writer])
        finally:
            os.close(writer)

    def poll(self) -> int | None:
        """Return the exit code, or None if the process still runs. After a signal, the code is negative."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("django", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended in between
                os.kill(self.pid, number)

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._exit], [], [], seconds)[0]:
            with self._reading:
                if self.returncode is None:
                    text = os.read(self._exit, 16)
                    assert text, "the process that forks has ended"
                    self.returncode = int(text)
        return self.returncode


class ForkLoop:
    """The process that forks, as the tests see it. Threads can share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.process.preloaded", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONWARNINGS": "default"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, arguments: list[str], environment: Mapping[str, str], descriptors: list[int]) -> int:
        """Return the id of a new process with this output and errors. Its exit code will be written to the third."""
        request = json.dumps({"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()})
        assert len(request) < MAX_BYTES
        with self._lock:
            socket.send_fds(self._socket, [request.encode()], descriptors)
            return int(self._socket.recv(16))

    def close(self) -> None:
        """Wait until the process has ended."""
        self._socket.close()
        self._process.wait(10)


@functools.cache
def fork_loop() -> ForkLoop:
    """Return the loop of this process. It starts with the first worker, and ends with this process."""
    made = ForkLoop()
    atexit.register(made.close)
    return made


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request until the tests close their end of the socket.

    Returns:
        In a fork, its request. In this process, None after the last request.
    """
    children: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in children:
                poll.unregister(ready)
                report_exit(ready, *children.pop(ready))
                continue
            request, descriptors, _, _ = socket.recv_fds(control, MAX_BYTES, 3)
            if not request:
                return None
            output, errors, writer = descriptors
            pid = os.fork()
            if not pid:
                control.close()
                become_new(output, errors, [writer, *children, *(other for _, other in children.values())])
                asked: dict[str, Any] = json.loads(request)
                return asked
            os.close(output)
            os.close(errors)
            watched = os.pidfd_open(pid)
            children[watched] = pid, writer
            poll.register(watched, select.POLLIN)
            control.send(str(pid).encode())


def report_exit(watched: int, pid: int, writer: int) -> None:
    """Reap a process that has ended, and send its exit code to the test."""
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # the test waits no longer
        os.write(writer, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(writer)
    os.close(watched)


def become_new(output: int, errors: int, others: list[int]) -> None:
    """Make a fork look like a process that was started: its own session, its output, and no other open files."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in (output, errors, *others):
        os.close(descriptor)
    # The present streams were made for other files: these may have been seekable, and a pipe is not.
    sys.stdout, sys.stderr = renewed(sys.stdout, 1), renewed(sys.stderr, 2)


def renewed(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Return a stream like this one, made for the file that the descriptor is now."""
    return io.TextIOWrapper(
        open(descriptor, "wb", 0 if stream.write_through else -1, closefd=False),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def run(request: dict[str, Any]) -> None:
    """Do what `python -m django` does."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]
    sys.argv[1:] = request["arguments"]
    runpy.run_module("django", run_name="__main__", alter_sys=True)


def main() -> None:
    """Import the modules, then fork. A fork leaves this function only at the end of its work.

    Without `gc.freeze()`, garbage collection in a fork would copy most of the memory, which takes 0.3 s.
    """
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = serve(control)
    if request:
        run(request)


if __name__ == "__main__":
    main()
