"""What the sessions of a measurement wait for, as `pg_stat_activity` shows it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.tools.benchmarks.place import Bench
from tests.tools.peers.brokers import connect

SAMPLING_SECONDS = 0.02
SAMPLE = """
SELECT CASE WHEN state = 'active' THEN coalesce(wait_event_type || ' ' || wait_event, 'no wait') ELSE state END,
       count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND pid <> ALL (%s)
GROUP BY 1
"""
LEAST_PERCENT = 1.0
"""Rarer waits are added up."""


class Waits:
    """How often a session was seen in each state."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    @property
    def percent(self) -> dict[str, float]:
        """The share of each wait event in all samples of all sessions. A session without a wait uses a processor.

        `idle` and `idle in transaction`: the session waits for its client.
        """
        total = self.seen.total() or 1
        shares = {name: 100 * count / total for name, count in self.seen.most_common()}
        often = {f"% {name}": share for name, share in shares.items() if share >= LEAST_PERCENT}
        return often | {"% others": sum(share for share in shares.values() if share < LEAST_PERCENT)}

    def percent_of(self, kind: str) -> float:
        """The share of all wait events of one type, such as `Lock`."""
        found = sum(count for name, count in self.seen.items() if name.startswith(f"{kind} "))
        return 100 * found / (self.seen.total() or 1)


@contextmanager
def sampled_waits(bench: Bench, waits: Waits) -> Iterator[None]:
    """Sample all sessions of the measurement's database, except those of the benchmark itself."""
    ended = threading.Event()
    with connect(bench.variables, bench.variables["PGDATABASE"]) as connection:
        own = [connection.info.backend_pid, bench.connection.info.backend_pid]

        def sample() -> None:
            while not ended.wait(SAMPLING_SECONDS):
                for name, count in connection.execute(SAMPLE, [own]):
                    waits.seen[str(name)] += int(str(count))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
