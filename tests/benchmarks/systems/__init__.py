"""All systems, by name: ours, the yardsticks, the peers."""

from tests.benchmarks.systems import celery, create, graphile_worker, limit, ours, pgqueuer, procrastinate
from tests.benchmarks.systems.system import System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        ours.SYSTEM,
        limit.SYSTEM,
        create.SYSTEM,
        pgqueuer.SYSTEM,
        procrastinate.SYSTEM,
        celery.SYSTEM,
        graphile_worker.SYSTEM,
    )
}
