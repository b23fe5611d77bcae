"""The worker of the adapter: `runworker`, which is a child process. This module does not need Django's settings."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from threading import Event

from django_pgqueue import health

from . import config
from .samples import Figures

GRACE_S = 3
STOP_S = 5
READY_S = 15
BUFFER_BYTES = 1 << 22
LARGEST_BYTES = 1 << 18
PR_SET_PDEATHSIG = 1


class Worker:
    """The child process, the directory of its health file, and the socket to which it sends the latencies."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="pgqueue-bench-")
        self.telemetry = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.telemetry.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.telemetry.bind(f"{self.directory}/telemetry")
        options = {
            "--queues": "bench",
            "--concurrency": max(1, config.WORKERS // config.PROCESSES),
            "--processes": config.PROCESSES,
            "--grace": GRACE_S,
            "--verbosity": 0,
            "--health-file": f"{self.directory}/health",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "runworker", *(str(part) for pair in options.items() for part in pair)],
            env={**os.environ, "BENCH_TELEMETRY": f"{self.directory}/telemetry"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            preexec_fn=end_with_parent,
        )

    def wait_until_ready(self, stopping: Event) -> None:
        """Wait until the worker claims jobs. Earlier jobs would only measure how long Django takes to start."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None and not stopping.wait(0.01):
            if health.judge(f"{self.directory}/health", ready=True)[0]:
                return

    def receive_until(self, stopping: Event, figures: Figures) -> None:
        """Count the jobs that have ended, and their latencies."""
        while not stopping.is_set():
            values = array("I", self.telemetry.recv(LARGEST_BYTES))
            figures.completed += len(values) // 2
            figures.until_start.add(values[0::2].tolist())
            figures.until_end.add(values[1::2].tolist())

    def stop(self) -> None:
        """Stop the worker within the 5 s that the protocol allows."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def end_with_parent() -> None:
    """End this process when its parent is killed, because the harness kills a replica as a whole."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
