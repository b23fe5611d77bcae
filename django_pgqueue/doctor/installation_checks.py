"""The check of the clone guard: whether workers wait, because the database belongs to another installation."""

from __future__ import annotations

from typing import Final

from django_pgqueue.conf import get_settings
from django_pgqueue.stats.ownership import read_ownership

from .findings import Check, Level, Result, cannot_see, ok
from .session import ROLE, Session


def _installation(session: Session) -> Result:
    guard = get_settings().CLONE_GUARD
    if guard == "off":
        return ok("Workers do not compare installations, because CLONE_GUARD is off.", clone_guard=guard)
    found = read_ownership(session.connection)
    data = {"clone_guard": guard, "differences": found.differences, "adopted_by": found.adopted_by}
    if found.differences:
        is_refused = guard == "refuse"
        reaction = "wait and run no job" if is_refused else "log a warning and run its jobs"
        what = (
            f"Workers with the settings of this process {reaction}, because the database belongs to another "
            f"installation: {found.differences}."
        )
        fix = "manage.py pgqueue adopt --dry-run shows what the database contains, and without --dry-run takes it over."
        return Result(Level.ERROR if is_refused else Level.WARNING, what, fix, data)
    if not found.is_certain:
        grant = f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {session.row(ROLE)[0]};"
        return cannot_see("whether the database was copied from another server", grant, **data)
    return ok("The database belongs to this installation, or to none yet.", **data)


INSTALLATION_CHECKS: Final = (
    Check(
        "installation",
        "Error: the database belongs to another installation, such as the source of a restored dump, and workers with "
        'the settings of this process wait. Warning: `CLONE_GUARD` is `"warn"`, so they run its jobs.',
        "Workers that wait run no job and are not in the list of workers.",
        _installation,
    ),
)
