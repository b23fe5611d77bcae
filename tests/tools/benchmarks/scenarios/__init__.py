"""All scenarios, by name, in the order that they are run in."""

from tests.tools.benchmarks.scenarios import (
    chunks,
    drain,
    enqueueing,
    history,
    idle,
    latency,
    notify,
    orm,
    payload,
    scaling,
    snapshot,
    steady,
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
        chunks.CHUNKS,
    )
}
