"""Claim jobs and extend leases over HTTP: threads of a remote worker that talk to the server.

`RemoteWorker` starts them. Each waits longer after each error that may pass, and at least as long as the server asks.
An error that cannot pass, such as a revoked token, becomes the `refusal` of the thread, and the worker stops.
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db import reconnects
from django_pgqueue.ground.log_events import event
from django_pgqueue.options.task_options import Isolation
from django_pgqueue.worker.execution.report import released
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import ProcessState, lease_clock

from .client import RemoteClient, RemoteError
from .job_json import claimed_job

if TYPE_CHECKING:
    from django_pgqueue.ground.job_log import RecordedLine
    from django_pgqueue.ground.progress import Progress
    from django_pgqueue.lifecycle.types import Claimed, ExecutionKey
    from django_pgqueue.worker.execution.report import Report
    from django_pgqueue.worker.slots.inflight import InFlight

logger = logging.getLogger("django_pgqueue.worker")
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
LOG_SECONDS: Final = 10.0
BATCH: Final = 50
PROGRESS_SECONDS: Final = 1.0
FULL_SECONDS: Final = 1.0
"""How long to sleep while no slot is free. A slot that becomes free ends the sleep."""


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """The command line of `remote-worker`."""

    name: str = field(default_factory=socket.gethostname)
    queue_names: tuple[str, ...] = ()
    """Queues to serve, strictly in this order. Empty: all that the token gives access to."""
    task_names: tuple[str, ...] = ()
    """Tasks to run. Empty: all that the token gives access to."""
    concurrency: int = 10
    wait_seconds: float = 20.0
    """How long one claim waits for jobs."""
    grace_seconds: float = 25.0
    isolation: Isolation | None = None
    """"process": run every job in an isolated process, whatever its task says."""
    until_empty: bool = False
    """Stop when a claim has found no job and none runs."""


class RemoteLeases:
    """The worker's handle, its executions, and how long their leases last."""

    def __init__(self, process_state: ProcessState) -> None:
        self._state = process_state
        self.worker = ""
        self.lease_seconds = 60.0
        self.extend_seconds = 15.0
        self.max_batch = BATCH
        self.handles: dict[int, str] = {}
        """The handle of each execution that was claimed and whose end the server has not confirmed."""

    def begin(self, answer: dict[str, Any]) -> None:
        """Take over the answer to the registration."""
        self.worker = answer["worker"]
        self.lease_seconds = float(answer["lease_seconds"])
        self.extend_seconds = float(answer["extend_seconds"])
        self.max_batch = min(BATCH, int(answer["max_batch"]))

    def claimed(self, sent_at: float, *, is_first: bool) -> None:
        """Note that executions were claimed by a request that was sent then. `is_first`: there were none before."""
        until = sent_at + self.lease_seconds
        self._state.lease_until = until if is_first else min(self._state.lease_until, until)

    def extended(self, sent_at: float) -> None:
        """Note that all leases were extended by a request that was sent then, by `lease_clock()`."""
        self._state.lease_until = sent_at + self.lease_seconds

    @property
    def left_seconds(self) -> float:
        """How many seconds the leases are still valid."""
        return self._state.lease_left_seconds


class RemoteService(Service):
    """A thread that talks to the server. A subclass implements `send()`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.refusal: RemoteError | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._losses = 0
        self._logged_at = float("-inf")

    def send(self) -> float:
        """Do one round of requests; return the seconds to sleep before the next one."""
        raise NotImplementedError

    def tick(self) -> float:
        """Do one round. After an error, wait."""
        try:
            sleep_seconds = self.send()
        except RemoteError as error:
            if self.stopping:
                return 0.0
            return self._after(error)
        self._pause_seconds, self._losses = FIRST_PAUSE_SECONDS, 0
        return sleep_seconds

    def _after(self, error: RemoteError) -> float:
        if not error.is_temporary:
            self.refusal = error
            return LONGEST_PAUSE_SECONDS
        if time.monotonic() - self._logged_at > LOG_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("%s; trying again", error, extra=event("remote_server_unavailable"))
        # Not the sleep of the service: a slot that becomes free must not end it.
        self._stopping.wait(self._pause_after_temporary(error))
        return 0.0

    def _pause_after_temporary(self, error: RemoteError) -> float:
        """Return how long to wait. Without an answer, the connection was lost: the first retry comes at once."""
        if not error.status:
            self._losses += 1
            return reconnects.pause_seconds(self._losses - 1, LONGEST_PAUSE_SECONDS)
        pause_seconds = max(self._pause_seconds, error.retry_after_seconds or 0.0)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause_seconds * random.uniform(1, 1.3)  # noqa: S311 -- spreads load, hides nothing


class Claims(RemoteService):
    """Claim as many jobs as slots are free, and pass them to the slots."""

    def __init__(
        self,
        client: RemoteClient,
        options: RemoteOptions,
        leases: RemoteLeases,
        in_flight: InFlight,
        submit: Callable[[Iterable[Claimed]], None],
        hand_over: Callable[[Report], None],
    ) -> None:
        super().__init__("remote-claims")
        self.found_nothing = False
        """Whether the last claim found no job."""
        self._client = client
        self._options = options
        self._leases = leases
        self._in_flight = in_flight
        self._submit = submit
        self._hand_over = hand_over

    def send(self) -> float:
        """Claim jobs. If no job is due, wait for one."""
        free = min(self._in_flight.free_slots, self._leases.max_batch)
        if free <= 0:
            return FULL_SECONDS
        sent_at, is_first = lease_clock(), not self._leases.handles
        executions = self._client.claim(
            self._leases.worker,
            limit=free,
            # The leases may begin when the request is sent. A longer wait would leave too little of them.
            wait_seconds=0.0
            if self._options.until_empty
            else min(self._options.wait_seconds, self._leases.extend_seconds),
            queue_names=self._options.queue_names,
            task_names=self._options.task_names,
        )
        jobs = [claimed_job(execution) for execution in executions]
        if jobs:
            self._leases.claimed(sent_at, is_first=is_first)
        self._leases.handles |= {each["execution_id"]: each["execution"] for each in executions}
        if self.stopping:
            for job in jobs:
                self._hand_over(released(job))
            return 0.0
        self._in_flight.add(jobs)
        self._submit(jobs)
        self.found_nothing = not jobs
        return 0.05 if self._options.until_empty and not jobs else 0.0


class Extensions(RemoteService):
    """Extend the leases of all executions, send the progress of tasks, and learn what is to be cancelled."""

    def __init__(
        self,
        client: RemoteClient,
        leases: RemoteLeases,
        interrupt: Callable[[Iterable[int]], object],
        ask_to_cancel: Callable[[Iterable[int]], object],
    ) -> None:
        super().__init__("remote-extensions")
        self._client = client
        self._leases = leases
        self._interrupt = interrupt
        self._ask_to_cancel = ask_to_cancel
        self._extend_at = 0.0
        self._progress: dict[int, Progress] = {}

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Keep the progress of an attempt until the next request."""
        self._progress[key.execution_id] = progress

    def open_log(self, key: ExecutionKey) -> Callable[[RecordedLine], None]:
        """Return a function that drops a log line: the lines of remote jobs are not kept."""
        return lambda line: None

    def send(self) -> float:
        """Extend what is open, if it is time or a task has reported progress."""
        is_due = time.monotonic() >= self._extend_at
        if is_due:
            self._extend_at = time.monotonic() + self._leases.extend_seconds
            self._extend_all()
        elif self._progress:
            self._extend(list(self._progress))
        return min(PROGRESS_SECONDS, max(0.0, self._extend_at - time.monotonic()))

    def _extend_all(self) -> None:
        sent_at, open_ids = lease_clock(), list(self._leases.handles)
        try:
            for first in range(0, len(open_ids) or 1, BATCH):
                self._extend(open_ids[first : first + BATCH])
        except RemoteError:
            self._extend_at = 0.0
            raise
        self._leases.extended(sent_at)

    def _extend(self, execution_ids: Sequence[int]) -> None:
        items, sent = [], []
        for execution_id in execution_ids:
            progress, handle = self._progress.pop(execution_id, None), self._leases.handles.get(execution_id)
            if handle is None:
                continue
            sent.append(execution_id)
            item: dict[str, Any] = {"execution": handle}
            if progress is not None:
                item["progress"] = {"done": progress.done, "total": progress.total, "message": progress.message}
            items.append(item)
        results = self._client.extend(self._leases.worker, items)
        lost = [each for each, result in zip(sent, results, strict=True) if result["result"] in ("lost", "unknown")]
        asked = [each for each, result in zip(sent, results, strict=True) if result.get("cancel_requested")]
        if lost:
            self._interrupt([each for each in lost if each in self._leases.handles])
        if asked:
            self._ask_to_cancel(asked)
