"""All scenarios, by name, in the order that they are run in."""

from tests.tools.benchmarks.scenarios import (
    chunks,
    drain,
    enqueueing,
    fairness,
    freed,
    history,
    hot_key,
    idle,
    latency,
    locks,
    many_keys,
    notify,
    orm,
    payload,
    saturated,
    scaling,
    snapshot,
    steady,
    two_servers,
    wake_up,
)
from tests.tools.benchmarks.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        drain.SYNC,
        drain.ASYNC,
        drain.TWO,
        orm.ORM,
        latency.PICK_UP,
        latency.DUE,
        steady.STEADY,
        enqueueing.SINGLE,
        enqueueing.TRANSACTION,
        enqueueing.BULK,
        snapshot.HELD,
        history.HISTORY,
        scaling.SCALING,
        idle.IDLE,
        idle.GROWTH,
        notify.NOTIFY,
        *payload.PAYLOADS,
        saturated.SATURATED,
        many_keys.MANY_KEYS,
        hot_key.HOT_KEY,
        fairness.FAIRNESS,
        freed.FREED,
        wake_up.WAKE_UP,
        locks.LOCKS,
        locks.BACKLOG,
        locks.RATES,
        chunks.CHUNKS,
        two_servers.TWO_SERVERS,
    )
}
