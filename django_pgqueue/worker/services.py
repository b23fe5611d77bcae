"""Build the services of one worker process and connect them. Called by `worker_process.main()`.

    fetcher → in flight → slots → completer          and beside them: lease monitor, maintenance, listener

They share two connections (see `runtime.shared_connections`). Each object gets what it needs through its constructor,
so this page shows the whole wiring.
"""

from __future__ import annotations

from functools import partial

from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.ends.end_checks import EndChecks, follow
from django_pgqueue.reactions import AttemptsCounter, Reactions
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry

from .claiming.claimer import Claimer
from .claiming.fetcher import EndedLimits, Fetcher
from .claiming.lanes import Lanes
from .claiming.lease_monitor import ClaimCounter, LeaseGuard, LeaseMonitor
from .claiming.limited.limited_lanes import LimitedLanes
from .claiming.next_scan import SharedScans
from .claiming.waking.fetcher_sleep import NotificationWaker, PollRequests
from .claiming.waking.listener import Listener, listening_connections
from .completion.attempt_counter import AttemptCounter
from .completion.breaker_counter import BreakerCounter
from .completion.completer import Completer
from .completion.receiver_thread import CallbackRunner
from .completion.waiters import Waiters
from .execution.job_events import Events
from .isolation.fork_server import ForkServer
from .liveness import Liveness
from .maintenance.end_sweeps import LaterChecks, SentEvents
from .maintenance.maintenance import Maintenance
from .maintenance.scheduler import Schedules
from .options import Options
from .runtime.counts import counts
from .runtime.service import Service
from .runtime.shared_connections import Preference, Share, SharedConnections
from .runtime.shared_memory import ProcessState, health_memory
from .slots.inflight import InFlight
from .slots.leak_detector import LeakDetector
from .slots.pool import Pool
from .slots.queue_slots import Allowance, QueueSlots
from .stopping import LastWrites


class Services:
    """The services of one worker process."""

    def __init__(
        self,
        options: Options,
        process_state: ProcessState,
        worker_id: int,
        allowance: Allowance,
        shared_scans: SharedScans,
    ) -> None:
        queue_slots = QueueSlots(options.served, allowance.running_before) if options.queue_concurrency else None
        lanes = _lanes(options, shared_scans, queue_slots)
        waiters, claims, counter = Waiters(), ClaimCounter(), AttemptCounter() if get_settings().STATS else None
        polls = PollRequests(NotificationWaker(waiters.hear, self._wake_listener))
        breakers = BreakerCounter(lambda: self.completer.wake()) if registry.breakers() else None
        self.connections, self.listening = _connections(options, polls.waker)
        share = self.connections.share
        self.process_state, self.callbacks = process_state, CallbackRunner()
        self.in_flight = in_flight = InFlight(options.concurrency, allowance.places, queue_slots)
        self.later_checks = later = LaterChecks(lambda: self.maintenance.wake())
        reactions = self._reactions(waiters, polls, counts, breakers, counter)
        self.completer = completer = self._completer(reactions, lanes.limited, polls, breakers)
        self.last_writes = LastWrites(share(Preference.OPEN), in_flight, completer.notes, reactions, worker_id, counter)
        self.fork_server = ForkServer(options.database, process_state)
        self.pool = pool = Pool(
            options, in_flight, process_state, self.fork_server, completer.hand_over, completer.notes, polls.wake
        )
        self.leak_detector = LeakDetector(in_flight, lambda: pool.loop.loop)
        guard, sent = LeaseGuard(process_state, in_flight, pool.interrupt), SentEvents(lambda: self.maintenance.wake())
        self.lease_monitor = LeaseMonitor(
            share(Preference.OPEN), in_flight, completer, pool, process_state, worker_id, claims, reactions
        )
        self.fetcher = Fetcher(
            share(Preference.FIRST),
            in_flight,
            pool,
            completer,
            Claimer(in_flight, lanes, worker_id, reactions),
            polls=polls,
            claims=claims,
            leases=guard,
            receivers=self.callbacks,
            reactions=reactions,
            on_requests=self.lease_monitor.on_requests,
            on_events=sent.add,
        )
        background = share(Preference.OPEN, is_background=True)
        self.maintenance = Maintenance(background, worker_id, reactions, counter, self.callbacks.publish, later, sent)
        self.in_order: list[Service] = [completer, self.fetcher, self.lease_monitor, guard, self.maintenance]
        """The services in the order in which they start and stop."""
        self.in_order += [pool.deadlines, *self._optional(options, background, polls.waker)]
        self.liveness = Liveness(self.in_order, completer, self.callbacks, pool, process_state)

    def _reactions(self, waiters: Waiters, polls: PollRequests, *counters: AttemptsCounter | None) -> Reactions:
        return Reactions(
            [Events(self.callbacks.submit)],
            waiters,
            on_ready=polls.poll_soon,
            follow=partial(follow, publish=self.callbacks.publish, later=self.later_checks.add),
            counters=[counter for counter in counters if counter is not None],
        )

    def _completer(
        self, reactions: Reactions, limited: LimitedLanes, polls: PollRequests, breakers: BreakerCounter | None
    ) -> Completer:
        ended_limits = EndedLimits(limited, polls, self.in_flight)
        return Completer(
            self.connections.share(Preference.SECOND),
            reactions,
            on_unwritten=self.process_state.set_unwritten,
            on_recovery=polls.poll_soon,
            on_written=ended_limits.note,
            on_locked=self.process_state.note_delayed,
            is_awaited=ended_limits.is_awaited,
            breakers=breakers,
            ends=EndChecks(Reactor(reactions.react, self.callbacks.publish, self.later_checks.add)),
        )

    def _optional(self, options: Options, background: Share, waker: NotificationWaker) -> list[Service]:
        """Return the services that the options or the settings can switch off."""
        services: list[Service] = []
        if not options.until_empty:
            services.append(Schedules(background, self.callbacks))
        if self.listening is not None:
            services.append(Listener(self.listening, waker, self.set_listens))
        return services

    def check(self) -> bool:
        """Check once a second whether the process is stuck, and close idle connections. Return whether it was time."""
        if not self.liveness.check():
            return False
        for connections in filter(None, (self.connections, self.listening)):
            connections.close_idle()
        return True

    def _wake_listener(self) -> None:
        for service in self.in_order:
            if isinstance(service, Listener):
                service.wake()

    def set_listens(self, *, listens: bool) -> None:
        """Set the polling intervals: long while notifications arrive (`listens`), short otherwise."""
        settings = get_settings()
        health_memory.listens = listens
        self.fetcher.may_sleep(settings.POLL_INTERVAL if listens else settings.POLL_INTERVAL_WITHOUT_LISTEN)
        # Notifications reach the lease monitor through the fetcher, so a fetcher that stops passes none on.
        self.lease_monitor.set_listens(listens=listens and not self.fetcher.stopping)


def _connections(options: Options, waker: NotificationWaker) -> tuple[SharedConnections, SharedConnections | None]:
    """Return the connections of the services, and those of the listener, or None if nobody listens."""
    roles = ("fetcher", "completer")
    if not options.listen or not get_settings().NOTIFY:
        return SharedConnections(options.database, roles), None
    return listening_connections(options.database, roles, "listener", waker)


def _lanes(options: Options, shared_scans: SharedScans, queue_slots: QueueSlots | None) -> Lanes:
    """Return the lanes of a worker process. The processes of one supervisor scan for each other.

    A process that runs until the queues are empty scans itself.
    """
    is_shared = shared_scans.places > 1 and not options.until_empty
    return Lanes(options.queue_names, shared_scans if is_shared else None, queue_slots)
