"""One worker process: builds the services, and stops them in the right order.

    fetcher → hand → slots → completer          and beside them: heartbeat, maintenance, listener

Stop order: the fetcher claims no more and gives back what waits; the slots drain within the grace; the completer
empties; what still runs is interrupted, and reports that it was released; the completer empties again; what has not
ended even so is released, uncounted; the process exits at once. See `last_jobs`.

It obeys its supervisor alone, by letters through a pipe: S stop, R release at once. The pipe's end means that the
supervisor is gone, and nobody beats any more: stop. Signals are not listened to, for a terminal's Ctrl-C and systemd's
SIGTERM reach every process of a group, and the supervisor passes them on.
"""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Final, NoReturn

from django_pgqueue import server
from django_pgqueue.conf import get_settings

from . import cancelling, hygiene
from .allowance import Allowance
from .background_log import background_log, keep_output_open
from .board import Board, Farewell
from .callbacks import CallbackRunner
from .completer import Completer
from .drift import Drift
from .events import Events
from .exit_functions import EXIT_SECONDS, forget_inherited_processes, run_exit_functions
from .fetcher import Fetcher
from .hand import Hand
from .heartbeat import LeaseGuard, Watch
from .lanes import Lanes
from .last_jobs import end_running_jobs
from .last_writes import LastWrites
from .link import Link
from .listener import Listener
from .liveness import Liveness
from .maintenance import Maintenance
from .memory import resident_mib
from .nursery import Nursery
from .options import Options
from .pool import Pool
from .process_signals import survive_signals
from .schedules import Schedules
from .shared_looks import SharedLooks

logger = logging.getLogger("django_pgqueue.worker")

STOP: Final = b"S"
RELEASE: Final = b"R"
TURN_SECONDS: Final = 0.05
CHECK_SECONDS: Final = 1.0
CALLBACKS_SECONDS: Final = 5.0
"""How long a stop waits for receivers of signals that are still to be called."""
HURRIED_EXIT_SECONDS: Final = 1.0
"""How long exit functions may take after an order to release at once."""
LAST_LINES_SECONDS: Final = 0.2
STOP_SECONDS: Final = 11.0
"""How long it may take in all after the grace; a second later the supervisor kills the process."""
EMPTY_LOOKS: Final = 2
"""Claims from the start that find nothing before a drain believes it."""


def slots(options: Options) -> int:
    """Return how many executions a child can run at a time: threads, and as many coroutines."""
    return 2 * options.concurrency


class Child:
    """The services of one process."""

    def __init__(
        self, options: Options, board: Board, worker_id: int, orders: int, allowance: Allowance, looks: SharedLooks
    ) -> None:
        self.allowance = allowance
        self.options = options
        self.board = board
        self.worker_id = worker_id
        self.orders = orders
        self._idle = self._waits_to_retire = False
        alias = options.database
        self.hand = Hand(options.concurrency, allowance.places)
        self.callbacks = CallbackRunner()
        self.events = Events(self.callbacks.submit)
        self.completer = Completer(Link(alias, "completer"), self.events)
        self.completer.unwritten.on_change = board.set_unwritten
        self.last_writes = LastWrites(Link(alias, "child"), self.hand, self.completer.notes, self.events, worker_id)
        server.end_at_promotion()
        self.pool = Pool(options, self.hand, board, Nursery(alias, board), self.completer.hand_over)
        self.pool.notes = self.completer.notes
        lanes = Lanes(options.queue_names, looks if looks.places > 1 and not options.drain else None)
        self.fetcher = Fetcher(Link(alias, "fetcher"), self.hand, self.pool, self.completer, lanes)
        self.fetcher.claimer.worker_id = worker_id
        self.pool.on_hunger = self.fetcher.wake
        self.completer.on_ready = self.fetcher.look_soon
        self.fetcher.events_wait = lambda: self.callbacks.is_behind
        link, claims = Link(alias, "heartbeat"), self.fetcher.claims
        self.watch = Watch(link, self.hand, self.completer, self.pool, board, worker_id, claims, self.events)
        self.fetcher.on_cancel_asked = self.watch.look_for_requests
        self.fetcher.bell.on_awaited = self.completer.awaited.hear
        self.drift = Drift(self.hand, self.pool.loop.loop)
        self.guard = LeaseGuard(board, self.hand, self.pool.interrupt)
        self.fetcher.may_claim = self.guard.leases_hold
        self.maintenance = Maintenance(Link(alias, "maintenance"), worker_id, self.events)
        self.maintenance.awaited = self.completer.awaited
        self.services = [
            self.completer,
            self.fetcher,
            self.watch,
            self.guard,
            self.maintenance,
            self.pool.deadlines,
        ]
        if not options.drain:
            self.services.append(Schedules(Link(alias, "schedules"), self.callbacks))
        if options.listen and get_settings().NOTIFY:
            link = Link(get_settings().LISTEN_DATABASE or alias, "listener")
            self.services.append(Listener(link, self.fetcher.bell, self._hears))
        self.liveness = Liveness(self.services, self.completer, self.callbacks, self.pool, board)

    def _hears(self, *, hears: bool) -> None:
        settings = get_settings()
        self.fetcher.may_sleep(settings.POLL_INTERVAL if hears else settings.POLL_INTERVAL_WITHOUT_LISTEN)
        self.watch.hears = hears and not self.fetcher.stopping  # words reach the fetcher, and through it the watch
        self.watch.wake()  # it sleeps for as long as it did when it heard

    def run(self) -> None:
        """Work until told to stop, drained, or due for replacement."""
        background_log.start()
        hygiene.watch()
        cancelling.watch()
        keep_output_open()
        self.pool.start()
        for service in self.services:
            service.start()
        logger.info("worker %d is ready (process %d)", self.worker_id, os.getpid())
        order, farewell = self._until_ordered()
        self._stop(order, farewell)

    # ---------------------------------------------------------------- working

    def _until_ordered(self) -> tuple[bytes, Farewell]:
        while True:
            if server.was_promoted():
                self._end_at_once()
            order = self._order(self._turn_seconds())
            if order is not None:
                return order, Farewell.STOPPED
            if self.options.drain and self._is_drained():
                return STOP, Farewell.DRAINED
            self._open_places()
            if self._has_done_enough() and self._may_retire():
                return STOP, Farewell.RECYCLED
            if self.liveness.check() and self._is_unfit() and self._may_retire():
                return STOP, Farewell.RECYCLED

    def _turn_seconds(self) -> float:
        often = self.options.drain or self.options.max_jobs or self.hand.opened < self.hand.capacity
        return TURN_SECONDS if often else CHECK_SECONDS

    def _open_places(self) -> None:
        """Run what the process that this one replaces runs no longer."""
        if self.hand.opened < self.hand.capacity and self.hand.open_places(self.allowance.places):
            self.pool.loop.room_made()
            self.fetcher.wake()

    def _may_retire(self) -> bool:
        """Whether this process may be replaced now; otherwise it goes on working, and says so once."""
        if not self.allowance.may_retire and not self._waits_to_retire:
            self._waits_to_retire = True
            logger.info("worker %d is to be replaced after the process that it replaced has ended", self.worker_id)
        return self.allowance.may_retire

    def _end_at_once(self) -> NoReturn:
        """End without writing anything: the server that took over may have other executions of the same ids."""
        self.board.say_farewell(Farewell.PROMOTED)  # the supervisor logs it: a handler could delay the end
        os._exit(1)

    def _order(self, timeout_seconds: float) -> bytes | None:
        """Return the next order, b"" if the supervisor is gone, None if there is none in time."""
        ready, _, _ = select.select([self.orders], [], [], timeout_seconds)
        return os.read(self.orders, 1) if ready else None

    def _is_drained(self) -> bool:
        """Whether nothing is held, and looks that began after that have found nothing due."""
        was_idle, self._idle = self._idle, not len(self.hand) and not len(self.completer)
        if self._idle and not was_idle:
            self.fetcher.look_afresh()
            return False
        self.fetcher.wake()
        return self._idle and self.fetcher.vain_looks >= EMPTY_LOOKS

    def _has_done_enough(self) -> bool:
        return self.options.max_jobs is not None and self.hand.started >= self.options.max_jobs

    def _is_unfit(self) -> bool:
        has_grown = self.options.max_rss_mb is not None and resident_mib() > self.options.max_rss_mb
        return has_grown or self.pool.is_worn or self.drift.calls_for_another_process()

    # ---------------------------------------------------------------- stopping

    def _stop(self, order: bytes, farewell: Farewell) -> None:
        deadline = time.monotonic() + (0.0 if order == RELEASE else self._grace_seconds(order))
        if farewell is Farewell.RECYCLED:  # a replacement is not urgent: what runs may end
            logger.info("worker %d is to be replaced: it finishes what it runs", self.worker_id)
            deadline = float("inf")
        self.fetcher.stop()
        self._hears(hears=False)  # what still runs may take long, and may be cancelled
        self.last_writes.release_waiting()
        self.fetcher.join(5.0)
        while self._works() and time.monotonic() < deadline:
            if farewell is Farewell.RECYCLED and self._starts_nothing():
                self.board.retire()
            self.liveness.check()
            meanwhile = self._order(TURN_SECONDS)
            if meanwhile == RELEASE:
                order = RELEASE
                break
            if meanwhile is not None:
                deadline = min(deadline, time.monotonic() + self._grace_seconds(meanwhile))
            if meanwhile == b"":  # a closed pipe is always ready
                time.sleep(TURN_SECONDS)
        self._end(farewell, hurried=order == RELEASE)

    def _end(self, farewell: Farewell, *, hurried: bool) -> None:
        """End what runs, let the application flush what it buffers, and release what is left."""
        end_by = time.monotonic() + max(1.0, min(STOP_SECONDS, self.board.lease_left_seconds))
        self.hand.close()
        interrupted = end_running_jobs(
            self.hand, self.pool, self.completer, hurried=hurried, lease_left_seconds=self.board.lease_left_seconds
        )
        for service in self.services:
            service.stop()
        self._drain_callbacks(end_by, hurried=hurried)
        self.board.say_farewell(farewell)  # an exit function may end the process
        self.pool.close_cells(wait=not hurried)
        limit_seconds = HURRIED_EXIT_SECONDS if hurried else EXIT_SECONDS
        run_exit_functions("worker", self.options.database, max(0.1, min(limit_seconds, end_by - time.monotonic())))
        self.last_writes.unregister()
        self.last_writes.release_running(interrupted)  # last: from here on other workers may start them
        self.callbacks.drain(LAST_LINES_SECONDS)  # a release may have ended a job as cancelled

    def _drain_callbacks(self, end_by: float, *, hurried: bool) -> None:
        """Let the receivers of signals hear what has happened; an order to release at once does not wait for them."""
        seconds = 0.0 if hurried else min(CALLBACKS_SECONDS, end_by - time.monotonic())
        self.callbacks.drain(seconds, lambda: self._order(0.0) == RELEASE)

    def _grace_seconds(self, order: bytes) -> float:
        if order == b"":  # the supervisor is gone, and the leases run out
            return min(self.options.grace_seconds, max(0.0, self.board.lease_left_seconds * 0.8))
        return self.options.grace_seconds

    def _starts_nothing(self) -> bool:
        """Whether no job can start here any more, and the shared memory shows all that run."""
        is_shown = set(self.hand.running) <= set(self.board.running())
        return is_shown and not self.hand.waiting and not self.fetcher.is_alive()

    def _works(self) -> bool:
        return bool(self.hand.running)


def main(options: Options, board: Board, orders: int, allowance: Allowance, looks: SharedLooks) -> NoReturn:
    """Be a child: called in a process just forked; never returns."""
    try:
        survive_signals()
        forget_inherited_processes()
        worker_id = _worker_id(orders)
        if worker_id is not None:  # else the supervisor is gone already, and nothing was begun
            Child(options, board, worker_id, orders, allowance, looks).run()
    except BaseException:
        logger.exception("the worker process failed")
    finally:
        try:
            run_exit_functions("worker", options.database)
            background_log.flush(LAST_LINES_SECONDS)
        finally:
            os._exit(0 if board.farewell else 1)  # not by a return: what still runs is somebody else's already


def _worker_id(orders: int) -> int | None:
    """Read this worker's id, the first line that the supervisor sends; None if it has ended before."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(orders, 1)
        if not byte:
            return None
        line += byte
    return int(line)
