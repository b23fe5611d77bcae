"""Keep the isolated process of one slot, which runs the slot's isolated jobs one after another.

The slot's thread starts and closes the process; other threads may kill it or ask it to cancel its job. `_lock` ensures
that no thread signals a process that was closed, because another process may have its pid by then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ending_processes import EndingProcesses
    from .fork_server import ForkServer
    from .isolated_process import IsolatedProcess


class SlotProcess:
    """The isolated process of one slot, if it has one."""

    def __init__(self, fork_server: ForkServer, ending_processes: EndingProcesses, max_rss_mib: float | None) -> None:
        self._fork_server = fork_server
        self._ending_processes = ending_processes
        self._max_rss_mib = max_rss_mib
        self._process: IsolatedProcess | None = None
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def get(self) -> IsolatedProcess:
        """Return the process. Start one if there is none or it has ended. Raise `OSError` if that fails.

        A new process first calls the receivers of `worker_process_started`, if there are any. Wait for that here, where
        the time does not count against the timeout of the job.
        """
        if self._process is not None and self._process.has_ended():
            self.close()  # it ended while it was idle, and no job is to blame
        if self._process is None:
            self._process = self._fork_server.start_process()
            if self._fork_server.has_start_receivers and not self._process.has_started():
                self.kill()
                self.close()
                raise OSError("the process ended or hung while it called the receivers of worker_process_started")
        return self._process

    def close(self) -> None:
        """End the process, if there is one, without waiting for its end."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.close()
                self._ending_processes.add(process)

    def close_if_unfit(self) -> None:
        """End the process if its next job should not run there: a job has left something behind, or it has grown."""
        process = self._process
        if process is None:
            return
        has_grown = self._max_rss_mib is not None and process.resident_mib > self._max_rss_mib
        if process.is_worn or has_grown:
            self.close()

    def kill(self) -> None:
        """Kill the process, if there is one. Safe from any thread."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def ask_to_cancel(self) -> None:
        """Send a cancellation request to the job that runs in the process. Safe from any thread."""
        with self._lock:
            if self._process is not None:
                self._process.ask_to_cancel()

    def stack(self) -> str:
        """Return the stack of the process; "" if there is none or it does not answer in time. Safe from any thread."""
        with self._lock:
            return "" if self._process is None else self._process.stack()
