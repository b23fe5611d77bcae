"""Faults of the soak that concern limits and chunks: operators change limits, and the service behind a key fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.notifications import CHANNEL, PAUSES_CHANGED
from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.limits import name_of
from django_pgqueue.lifecycle import limit_overrides, pauses
from django_pgqueue.states import Pausable
from tests.tools.faults import limits
from tests.tools.faults.soak_faults import injectable

if TYPE_CHECKING:
    import random

    from tests.tools.faults.run import Run
    from tests.tools.faults.soak import Crew

KEYS: Final = [f"customer {number}" for number in range(5)]
"""What the producers use."""
CHANGES: Final[dict[str, dict[str, list[Any]]]] = {
    "slots": {"concurrency": [1, 2, 5, 8], "rate": ["5/s", None], "burst": [3]},
    "tokens": {"rate": ["1/s", "6/s", "10/3s"], "burst": [1, 3, 8], "concurrency": [1, 4, None]},
    "held": {"concurrency": [1, 6]},
    "service": {"concurrency": [1, 2, 9], "rate": ["8/s", None], "share": [2]},
}
"""Values that operators choose for each limit. None: as without the override."""


def _name(chance: random.Random) -> str:
    """Return the name of a limit, or one of its keys."""
    limit = chance.choice([*CHANGES])
    return limit if chance.random() < 0.3 else f"{limit}:{chance.choice(KEYS)}"


def _tell(crew: Crew) -> None:
    """Notify the workers, or not: a notification can be lost."""
    if crew.chance.random() < 0.5:
        crew.run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, PAUSES_CHANGED])


@injectable
def limit_overridden(crew: Crew) -> None:
    """Change some limits or keys, or take the change back; some end by themselves."""
    for _ in range(3):
        name = _name(crew.chance)
        values = CHANGES[name_of(name)]
        given: dict[str, Any] = {
            field: crew.chance.choice(values[field]) for field in crew.chance.sample([*values], k=len(values) // 2 or 1)
        }
        with crew.run.connection.transaction():
            if crew.chance.random() < 0.3:
                limit_overrides.restore(crew.run.connection, name, changed_by="ada")
            else:
                seconds = crew.chance.choice([None, crew.chance.uniform(2, 20)])
                limit_overrides.override(crew.run.connection, name, given, for_seconds=seconds, changed_by="ada")
    _tell(crew)


@injectable
def key_paused(crew: Crew) -> None:
    """Pause some limits or keys for a while that outlasts this, or resume all of them."""
    if crew.chance.random() < 0.2:
        crew.run.sql("DELETE FROM pgqueue_pause WHERE kind = 'limit'")
    for _ in range(2):
        seconds = crew.chance.uniform(5, 25)
        name = _name(crew.chance)
        pauses.pause(crew.run.connection, Pausable.LIMIT, name, for_seconds=seconds, paused_by="ada")
    _tell(crew)


@injectable
def service_down(crew: Crew) -> None:
    """Let the services of some keys fail from now on, and those of the others work."""
    for key in KEYS:
        down = crew.run.where / f"down {key}"
        if crew.chance.random() < 0.4:
            down.touch()
            crew.run.enqueue("limited.sheltered", 8, key=key, max_attempts=2)
        else:
            down.unlink(missing_ok=True)


@injectable
def full_chunks(crew: Crew) -> None:
    """Enqueue so many jobs at once that their chunks are full, some of which take longer than a lease."""
    for task in limits.CHUNKED:
        crew.run.enqueue(task, 3 * limits.CHUNK, seconds=crew.chance.choice([0.3, 1.0, 3.0]))


def end_changes(run: Run) -> None:
    """Take back all overrides and pauses of limits, and let all services work."""
    for key in KEYS:
        (run.where / f"down {key}").unlink(missing_ok=True)
    run.sql("DELETE FROM pgqueue_limit_override")
    run.sql("DELETE FROM pgqueue_pause WHERE kind = 'limit' AND paused_by <> %s", [PAUSED_BY])
