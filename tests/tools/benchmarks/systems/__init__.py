"""All systems, by name: ours, the yardsticks, the peers."""

from tests.tools.benchmarks.systems import (
    bare,
    celery,
    celery_django,
    chunked,
    commit_first,
    create,
    dj_queue,
    django_absurd,
    django_ox,
    django_ox_workflows,
    django_tasks_db,
    graphile_worker,
    limit,
    naive,
    notifying,
    ours,
    pgqueuer,
    procrastinate,
    stepped,
    two_statements,
    workflows,
)
from tests.tools.benchmarks.systems.system import System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        ours.SYSTEM,
        limit.SYSTEM,
        create.SYSTEM,
        bare.SYSTEM,
        chunked.SYSTEM,
        stepped.SYSTEM,
        workflows.SYSTEM,
        naive.FOR_UPDATE,
        naive.SKIP_LOCKED,
        commit_first.SYSTEM,
        notifying.WITHIN,
        notifying.NEVER,
        two_statements.SYSTEM,
        pgqueuer.SYSTEM,
        procrastinate.SYSTEM,
        django_tasks_db.SYSTEM,
        django_ox.SYSTEM,
        django_ox_workflows.SYSTEM,
        django_absurd.SYSTEM,
        django_absurd.COROUTINES,
        dj_queue.SYSTEM,
        graphile_worker.SYSTEM,
        celery.SYSTEM,
        celery_django.SYSTEM,
    )
}
