"""Mutants of what a worker does around outages: rescues, hanging commits, reconnects, and stops without a database."""

from .mutants import Mutant

WATCH = ("tests/worker/test_lease_watch.py",)
RECONNECTS = ("tests/worker/test_reconnects.py",)
LATE = ("tests/concurrency/test_late_claims.py",)

TRUST_OUTAGES = [
    Mutant(
        "an hourly duty that an outage has interrupted waits for an hour",
        old="                        self._try_soon(duty)\n",
        new="",
        inside="Maintenance.tick",
        tests=("tests/worker/test_outages.py",),
    ),
    Mutant(
        "a lease that has ended is lost at once",
        old="if self._seconds - since >= observed_seconds",
        new="if True",
        inside="LeaseWatch.lost",
        tests=WATCH,
    ),
    Mutant(
        "the time of a commit that hangs counts",
        old="min(began - since, max(settings.heartbeat_seconds, settings.RESCUE_INTERVAL))",
        new="self._now() - since",
        inside="LeaseWatch.commit",
        tests=WATCH,
    ),
    Mutant(
        "the time before a failed commit counts",
        old="since, self._committed_at = self._committed_at, None",
        new="since = self._committed_at",
        inside="LeaseWatch.commit",
        tests=WATCH,
    ),
    Mutant(
        "leases are observed only after their end",
        old="FROM_HEARTBEATS: Final = 2.75",
        new="FROM_HEARTBEATS: Final = 0.0",
        inside="rescuer.FROM_HEARTBEATS",
        tests=WATCH,
    ),
    Mutant(
        "a rescue takes a lease that has changed since the look",
        old="given.lease_ms IS NULL OR",
        new="true OR",
        statement="RESCUE",
        tests=LATE,
    ),
    Mutant(
        "a late claim of a stopped worker counts",
        old="if execution.worker_has_stopped]",
        new="if False]",
        inside="rescues.rescue",
        tests=LATE,
    ),
    Mutant(
        "a settlement does not look for claims that came during it",
        old="is_complete &= all(",
        new="is_complete |= all(",
        inside="crash_charges.settle",
        tests=LATE,
    ),
    Mutant(
        "a commit that hung counts as work of the rescue",
        old="began - self._waited_seconds",
        new="began",
        inside="Maintenance._run_duty",
        tests=("tests/worker/test_pruner.py",),
    ),
    Mutant(
        "the first retry after a lost connection waits",
        old="if not losses:",
        new="if losses < 0:",
        inside="reconnects.pause_seconds",
        tests=RECONNECTS,
    ),
    Mutant(
        "pauses after lost connections do not grow",
        old="GROWTH ** min(losses - 1, 20)",
        new="1",
        inside="reconnects.pause_seconds",
        tests=RECONNECTS,
    ),
    Mutant(
        "each service of a process tries to connect by itself",
        old="if time.monotonic() < self._opens_at:",
        new="if False:",
        inside="ReconnectGate.check",
        tests=RECONNECTS,
    ),
    Mutant(
        "every error counts as a lost connection",
        old="if is_lost_connection(error):",
        new="if True:",
        inside="RetryPauses.after",
        tests=RECONNECTS,
    ),
    Mutant(
        "an error on a lost connection does not say what to do",
        old="explain_lost_connection(connection, error)",
        new="pass",
        inside="statements._run_on_django",
        tests=("tests/test_lost_connection.py",),
    ),
    Mutant(
        "a supervisor that waits for an answer exits when it gets one",
        old="signal.setitimer(signal.ITIMER_REAL, self._grace_seconds + KILL_AFTER_GRACE_SECONDS, REPEAT_SECONDS)",
        new="pass",
        inside="StopDeadline.start",
        tests=("tests/process/test_network.py",),
    ),
    Mutant(
        "an outage is over while a service fails",
        old="if self._failing or (",
        new="if (",
        inside="OutageLog.log_end_if_over",
        tests=("tests/worker/test_outages.py",),
    ),
    Mutant(
        "a service recovers while one of its duties fails",
        old="return not self._failed",
        new="return True",
        inside="Maintenance.has_recovered",
        tests=("tests/worker/test_outages.py",),
    ),
]
