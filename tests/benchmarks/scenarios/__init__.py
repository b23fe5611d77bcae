"""All scenarios, by name, in the order that they are run in."""

from tests.benchmarks.scenarios import drain, history, idle, notify, payload, scaling
from tests.benchmarks.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        drain.SYNC,
        drain.ASYNC,
        drain.TWO,
        history.HISTORY,
        scaling.SCALING,
        idle.IDLE,
        idle.GROWTH,
        notify.NOTIFY,
        *payload.PAYLOADS,
    )
}
