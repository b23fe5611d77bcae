"""Take the names away that only POSIX systems have. Python on other systems lacks them, and modules such as `fcntl`.

As a program, it imports Python's own modules, Django and psycopg first, takes the names away, and then runs
the file that its argument names. What comes with Python and Django works on all systems, so only this package is
examined.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import sys
import time

SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
"""Signals and handlers that every system has."""
OF_SIGNAL = (
    *("alarm", "getitimer", "setitimer", "pthread_kill", "pthread_sigmask", "pause", "sigpending", "sigwait"),
    *("sigwaitinfo", "sigtimedwait", "siginterrupt", "ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"),
    *("SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK"),
)
OF_OS = (
    *("fork", "forkpty", "register_at_fork", "killpg", "setsid", "getsid", "getpgid", "setpgid", "getpgrp", "nice"),
    *("waitid", "WNOHANG", "WNOWAIT", "WEXITED", "WIFEXITED", "WIFSIGNALED", "WEXITSTATUS", "WTERMSIG", "P_ALL"),
    *("P_PID", "P_PIDFD", "pidfd_open", "getuid", "geteuid", "getgid", "getegid", "getgroups", "setuid", "chown"),
    *("fchown", "fchmod", "mkfifo", "uname", "getloadavg", "sysconf", "sysconf_names", "confstr", "ttyname"),
    *("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_DIRECTORY", "O_NOFOLLOW", "pipe2", "sched_getaffinity"),
    *("sched_yield", "posix_spawn", "posix_fallocate", "memfd_create", "eventfd", "sendfile", "pread", "pwrite"),
    *("set_blocking", "get_blocking", "setpriority", "getpriority", "times_result", "wait", "wait3", "wait4"),
)
OTHERS = (
    *((select, name) for name in ("poll", "epoll", "kqueue")),  # Python itself goes on to use the constants
    *((socket, name) for name in ("AF_UNIX", "MSG_DONTWAIT", "SCM_RIGHTS", "SO_PEERCRED", "SOCK_NONBLOCK")),
    *((socket, name) for name in ("SOCK_CLOEXEC", "SO_REUSEPORT", "send_fds", "recv_fds")),
    *((time, name) for name in ("clock_gettime", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME", "tzset")),
)
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses", "posix")
LOADED = (
    *("asyncio", "subprocess", "tempfile", "logging.config"),
    *("django.core.management", "django.contrib.admin", "psycopg"),
)


def take_away() -> None:
    """Remove the names and the modules."""
    for name in LOADED:
        __import__(name)
    for name in list(vars(signal)):
        if name.startswith("SIG") and name not in SIGNALS:
            delattr(signal, name)
    names = [*((signal, name) for name in OF_SIGNAL), *((os, name) for name in OF_OS), *OTHERS]
    for module, name in names:
        if hasattr(module, name):
            delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError


if __name__ == "__main__":
    take_away()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
