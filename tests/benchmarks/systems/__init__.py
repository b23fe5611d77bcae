"""All systems, by name: ours, the yardsticks, the peers."""

from tests.benchmarks.systems import limit, naive, notifying, ours
from tests.benchmarks.systems.system import System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        ours.SYSTEM,
        limit.SYSTEM,
        naive.FOR_UPDATE,
        naive.SKIP_LOCKED,
        notifying.WITHIN,
        notifying.NEVER,
    )
}
