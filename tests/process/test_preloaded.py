"""A worker that is forked from a process with imported modules is like one that Python has started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import environment
from .preloaded import PreloadedProcess, can_fork_with

pytestmark = pytest.mark.process

ABOUT_ITSELF = """
import gc, io, json, os, random, signal, sys, threading, warnings
streams = [(s.isatty(), s.line_buffering, s.encoding, s.errors) for s in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps({
    "argv": sys.argv[1:], "path": sys.path, "directory": os.getcwd(), "environment": dict(os.environ),
    "signals": [str(getattr(signal.getsignal(n), "__name__", signal.getsignal(n))) for n in range(1, 32)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "streams": streams,
    "files": {n: os.readlink(f"/proc/self/fd/{n}") for n in sorted(os.listdir("/proc/self/fd")) if int(n) <= 2},
    "more files": sorted(n for n in os.listdir("/proc/self/fd") if int(n) > 2),
    "leads": os.getpid() == os.getsid(0) == os.getpgid(0), "warnings": str(warnings.filters),
    "threads": threading.active_count(), "main": sys.modules["__main__"].__spec__.name, "gc": gc.get_threshold(),
    "flags": str(sys.flags), "umask": os.umask(0),
}))
"""


def test_fork_is_like_a_started_process(committing, tmp_path):
    arguments, variables = ["shell", "-v", "0", "-c", ABOUT_ITSELF], environment(None)
    said = []
    for how in ("forked", "started"):
        with (tmp_path / "output").open("w") as file:
            if how == "forked":
                process = PreloadedProcess(arguments, variables, file.fileno(), file.fileno())
            else:
                command = [sys.executable, "-m", "django", *arguments]
                process = subprocess.Popen(
                    command,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        assert process.wait(30) == 0, (tmp_path / "output").read_text()
        said.append(json.loads((tmp_path / "output").read_text()))
    assert said[0] == said[1]
    assert said[0]["leads"]


@pytest.mark.parametrize("how", ["exit", "signal"])
def test_fork_reports_how_it_ended(committing, tmp_path, how):
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'w'); import sys, time; {'sys.exit(7)' if how == 'exit' else 'time.sleep(60)'}"
    with (tmp_path / "output").open("w") as file:
        arguments = ["shell", "-v", "0", "-c", code]
        process = PreloadedProcess(arguments, environment(None), file.fileno(), file.fileno())
    if how == "signal":
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
    assert process.wait(20) == (7 if how == "exit" else -signal.SIGTERM)
    assert process.poll() == process.returncode
    assert not Path(f"/proc/{process.pid}").exists()
    process.send_signal(signal.SIGTERM)


def test_fork_cannot_have_variables_of_python_or_the_loader():
    assert can_fork_with({"PGQUEUE_TEST_LOG": "DEBUG", "DJANGO_SETTINGS_MODULE": "tests.worker_settings"})
    for name in ("PYTHONPATH", "LD_PRELOAD", "FAKETIME", "TZ"):
        assert not can_fork_with({name: "", "PGQUEUE_TEST_LOG": ""})
