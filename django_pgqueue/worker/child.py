"""One worker process: builds the services, and stops them in the right order.

    fetcher → hand → slots → completer          and beside them: heartbeat, maintenance, listener

Stop order: the fetcher claims no more and gives back what waits; the slots drain; the completer empties; what still
runs after the grace is given back, uncounted; the process exits.

It obeys its supervisor alone, by letters through a pipe: S stop, R release at once. The pipe's end means that the
supervisor is gone, and nobody beats any more: stop. Signals are not listened to, for a terminal's Ctrl-C and systemd's
SIGTERM reach every process of a group, and the supervisor passes them on.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Final, NoReturn

import psycopg

from django_pgqueue import lifecycle, server
from django_pgqueue.conf import get_settings
from django_pgqueue.db import told

from . import cancelling, hygiene
from .board import Board, Farewell
from .callbacks import CallbackRunner
from .completer import Completer
from .drift import Drift
from .events import Events
from .fetcher import Fetcher
from .giving import give_back
from .hand import Hand
from .heartbeat import LeaseGuard, Watch
from .lanes import Lanes
from .link import Link
from .listener import Listener
from .liveness import Liveness
from .maintenance import Maintenance
from .memory import resident_mib
from .nursery import Nursery
from .options import Options
from .pool import Pool
from .schedules import Schedules

logger = logging.getLogger("django_pgqueue.worker")

STOP: Final = b"S"
RELEASE: Final = b"R"
TURN_SECONDS: Final = 0.05
CHECK_SECONDS: Final = 1.0
CALLBACKS_SECONDS: Final = 5.0
"""How long a stop waits for receivers of signals that are still to be called."""
STOP_SECONDS: Final = 11.0
"""How long it may take in all after the grace; a second later the supervisor kills the process."""
EMPTY_LOOKS: Final = 2
"""Claims from the start that find nothing before a drain believes it."""


def slots(options: Options) -> int:
    """Return how many executions a child can run at a time: threads, and as many coroutines."""
    return 2 * options.concurrency


class Child:
    """The services of one process."""

    def __init__(self, options: Options, board: Board, worker_id: int, orders: int) -> None:
        self.options = options
        self.board = board
        self.worker_id = worker_id
        self.orders = orders
        self._idle = False
        alias = options.database
        self.link = Link(alias, "child")
        self.hand = Hand(options.concurrency)
        self.callbacks = CallbackRunner()
        self.events = Events(self.callbacks.submit)
        self.completer = Completer(Link(alias, "completer"), self.events)
        server.end_at_promotion()
        self.pool = Pool(options, self.hand, board, Nursery(alias), self.completer.hand_over)
        self.pool.notes = self.completer.notes
        self.fetcher = Fetcher(Link(alias, "fetcher"), self.hand, self.pool, self.completer, Lanes(options.queue_names))
        self.fetcher.worker_id = worker_id
        self.pool.on_hunger = self.fetcher.wake
        self.completer.on_ready = self.fetcher.look_soon
        self.fetcher.events_wait = lambda: self.callbacks.is_behind
        self.watch = Watch(
            Link(alias, "heartbeat"), self.hand, self.completer, self.pool, board, worker_id, self.events
        )
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
        hygiene.watch()
        cancelling.watch()
        hygiene.keep_output_open()
        self.pool.start()
        for service in self.services:
            service.start()
        logger.info("worker %d is ready (process %d)", self.worker_id, os.getpid())
        order, farewell = self._until_ordered()
        self._stop(order, farewell)
        self.board.say_farewell(farewell)

    # ---------------------------------------------------------------- working

    def _until_ordered(self) -> tuple[bytes, Farewell]:
        while True:
            if server.was_promoted():
                self._end_at_once()
            order = self._order(TURN_SECONDS if self.options.drain or self.options.max_jobs else CHECK_SECONDS)
            if order is not None:
                return order, Farewell.STOPPED
            if self.options.drain and self._is_drained():
                return STOP, Farewell.DRAINED
            if self._has_done_enough():
                return STOP, Farewell.RECYCLED
            if self.liveness.check() and (
                self._has_grown() or self.pool.is_worn or self.drift.calls_for_another_process()
            ):
                return STOP, Farewell.RECYCLED

    def _end_at_once(self) -> NoReturn:
        """End without writing anything: the server that took over may have other executions of the same ids."""
        logger.critical("the database was promoted: this process exits, what it ran is given back")
        self.board.say_farewell(Farewell.LEASE_LOST)
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

    def _has_grown(self) -> bool:
        return self.options.max_rss_mb is not None and resident_mib() > self.options.max_rss_mb

    # ---------------------------------------------------------------- stopping

    def _stop(self, order: bytes, farewell: Farewell) -> None:
        deadline = time.monotonic() + (0.0 if order == RELEASE else self._grace_seconds(order))
        if farewell is Farewell.RECYCLED:  # a replacement is not urgent: what runs may end
            logger.info("worker %d is to be replaced: it finishes what it runs", self.worker_id)
            self.board.retire()
            deadline = float("inf")
        self.fetcher.stop()
        self._hears(hears=False)  # what still runs may take long, and may be cancelled
        self._give_back(self.hand.take_waiting())
        self.fetcher.join(5.0)
        while self._works() and time.monotonic() < deadline:
            self.liveness.check()
            meanwhile = self._order(TURN_SECONDS)
            if meanwhile == RELEASE:
                order = RELEASE
                break
            if meanwhile is not None:
                deadline = min(deadline, time.monotonic() + self._grace_seconds(meanwhile))
            if meanwhile == b"":  # a closed pipe is always ready
                time.sleep(TURN_SECONDS)
        end_by = time.monotonic() + STOP_SECONDS
        self.pool.stop()
        self._give_back_running()
        self.pool.end_isolated()
        self._empty_completer()
        self._drain_callbacks(end_by, order)
        for service in self.services:
            service.stop()
        self._sign_off()

    def _grace_seconds(self, order: bytes) -> float:
        if order == b"":  # the supervisor is gone, and the leases run out
            return min(self.options.grace_seconds, max(0.0, self.board.lease_left_seconds * 0.8))
        return self.options.grace_seconds

    def _works(self) -> bool:
        return bool(self.hand.running)

    def _give_back_running(self) -> None:
        """Close what still runs, so that it is free for others before this process has ended."""
        running = [one.claimed for one in list(self.hand.running.values())]
        if running:
            logger.warning("%d jobs still run after the grace: they are given back", len(running))
            self._write_progress()
            self._give_back(running)

    def _write_progress(self) -> None:
        """Write how far they are, before they are closed."""
        with suppress(psycopg.Error, OSError), self.link.use() as connection:
            self.completer.notes.write(connection)

    def _give_back(self, jobs: list[lifecycle.Claimed]) -> None:
        try:
            with self.link.use() as connection:
                give_back(connection, jobs, self.events)
        except (psycopg.Error, OSError) as error:
            logger.warning("%d jobs could not be given back (%s): the supervisor will", len(jobs), told(error))

    def _empty_completer(self) -> None:
        deadline = time.monotonic() + max(1.0, min(10.0, self.board.lease_left_seconds))
        while len(self.completer) and time.monotonic() < deadline:
            self.completer.wake()
            time.sleep(0.002)

    def _drain_callbacks(self, end_by: float, order: bytes) -> None:
        """Let the receivers of signals hear what has happened; an order to release at once does not wait for them."""
        seconds = min(CALLBACKS_SECONDS, end_by - time.monotonic())
        self.callbacks.drain(0.0 if order == RELEASE else seconds, lambda: self._order(0.0) == RELEASE)

    def _sign_off(self) -> None:
        try:
            with self.link.use() as connection:
                lifecycle.unregister_worker(connection, self.worker_id)
        except (psycopg.Error, OSError):
            logger.debug("the end of worker %s is not recorded", self.worker_id, exc_info=True)


def main(options: Options, board: Board, orders: int) -> NoReturn:
    """Be a child: called in a process just forked; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A handler that does nothing, not SIG_IGN, which programs that a task starts would inherit.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        worker_id = _worker_id(orders)
        if worker_id is not None:  # else the supervisor is gone already, and nothing was begun
            Child(options, board, worker_id, orders).run()
    except BaseException:
        logger.exception("the worker process failed")
    finally:
        try:
            sys.stdout.flush()  # may fail: whoever read it may be gone
            logging.shutdown()
        finally:
            os._exit(0 if board.farewell else 1)  # not through atexit: what still runs is somebody else's already


def _worker_id(orders: int) -> int | None:
    """Read this worker's id, the first line that the supervisor sends; None if it has ended before."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(orders, 1)
        if not byte:
            return None
        line += byte
    return int(line)
