"""Keep the isolated process of one slot, which runs the slot's isolated jobs one after another.

The slot's thread starts and closes the process; other threads may kill it or ask it to cancel its job. `_lock` ensures
that no thread signals a process that was closed, because another process may have its pid by then.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from django_pgqueue.worker.runtime.exit_functions import EXIT_SECONDS

from .fork_server import ForkServer
from .isolated_process import IsolatedProcess

LIMIT_SECONDS: Final = EXIT_SECONDS + 1.0
"""An isolated process limits its exit functions itself. A process that takes longer than this is killed."""
POLL_SECONDS: Final = 0.01


class EndingProcesses:
    """The ending isolated processes of one worker process. The threads of its slots use it concurrently.

    A slot closes its isolated process without waiting for it. The worker process must wait for these processes before
    it exits, because its exit kills them. It must not wait for a process that hangs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: list[tuple[IsolatedProcess, float]] = []

    def add(self, process: IsolatedProcess) -> None:
        """Watch a process that was asked to end."""
        with self._lock:
            self._ending.append((process, time.monotonic() + LIMIT_SECONDS))
        self.sweep()

    def sweep(self) -> bool:
        """Forget the processes that have ended and kill those over the limit. Return whether all have ended."""
        with self._lock:
            for process, kill_at in list(self._ending):
                if process.has_ended():
                    process.forget()
                    self._ending.remove((process, kill_at))
                elif time.monotonic() > kill_at:
                    process.kill()
            return not self._ending

    def wait(self) -> None:
        """Wait until all have ended, at most `LIMIT_SECONDS`."""
        stop_at = time.monotonic() + LIMIT_SECONDS
        while not self.sweep() and time.monotonic() < stop_at:
            time.sleep(POLL_SECONDS)


class SlotProcess:
    """The isolated process of one slot, if it has one."""

    def __init__(self, fork_server: ForkServer, ending_processes: EndingProcesses, max_rss_mib: float | None) -> None:
        self._fork_server = fork_server
        self._ending_processes = ending_processes
        self._max_rss_mib = max_rss_mib
        self.current: IsolatedProcess | None = None
        self._lock = threading.Lock()

    def get(self) -> IsolatedProcess:
        """Return the process. Start one if there is none or it has ended. Raise `OSError` if that fails.

        A new process first calls the receivers of `worker_process_started`, if there are any. Wait for that here, where
        the time does not count against the timeout of the job.
        """
        if self.current is not None and self.current.has_ended():
            self.close()  # it ended while it was idle, and no job is to blame
        if self.current is None:
            self.current = self._fork_server.start_process()
            if self._fork_server.has_start_receivers and not self.current.has_started():
                self.kill()
                self.close()
                raise OSError("the process ended or hung while it called the receivers of worker_process_started")
        return self.current

    def close(self) -> None:
        """End the process, if there is one, without waiting for its end."""
        with self._lock:
            process, self.current = self.current, None
            if process is not None:
                process.close()
                self._ending_processes.add(process)

    def close_if_unfit(self) -> None:
        """End the process if its next job should not run there: a job has left something behind, or it has grown."""
        process = self.current
        if process is None:
            return
        has_grown = self._max_rss_mib is not None and process.resident_mib > self._max_rss_mib
        if process.is_worn or has_grown:
            self.close()

    def kill(self) -> None:
        """Kill the process, if there is one. Safe from any thread."""
        with self._lock:
            if self.current is not None:
                self.current.kill()

    def ask_to_cancel(self) -> None:
        """Send a cancellation request to the job that runs in the process. Safe from any thread."""
        with self._lock:
            if self.current is not None:
                self.current.ask_to_cancel()

    def stack(self) -> str:
        """Return the stack of the process; "" if there is none or it does not answer in time. Safe from any thread."""
        with self._lock:
            return "" if self.current is None else self.current.stack()
