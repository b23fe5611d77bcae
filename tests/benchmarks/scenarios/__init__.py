"""All scenarios, by name, in the order that they are run in."""

from tests.benchmarks.scenarios import drain, history, idle, notify, payload, scaling, steady
from tests.benchmarks.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        drain.SYNC,
        drain.ASYNC,
        drain.TWO,
        steady.STEADY,
        history.HISTORY,
        scaling.SCALING,
        idle.IDLE,
        idle.GROWTH,
        notify.NOTIFY,
        *payload.PAYLOADS,
    )
}
