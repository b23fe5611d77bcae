"""All systems, by name: ours, the yardsticks, the peers."""

from tests.benchmarks.systems import bare, dj_queue, django_ox, django_tasks_db, limit, ours
from tests.benchmarks.systems.system import System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        ours.SYSTEM,
        limit.SYSTEM,
        bare.SYSTEM,
        django_tasks_db.SYSTEM,
        django_ox.SYSTEM,
        dj_queue.SYSTEM,
    )
}
