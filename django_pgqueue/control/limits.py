"""Change limits while workers run: override their values, and end holds.

Applications, the admin and `manage.py pgqueue limits` call these functions. Each change is part of the transaction that
is open on the database, and each is recorded in the audit. Workers apply it within a second after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from django_pgqueue.db.notifications import PAUSES_CHANGED, wake_workers_after_commit
from django_pgqueue.declared.limit_policies import Override
from django_pgqueue.declared.limits import Limit, name_of
from django_pgqueue.durations import Duration
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.lifecycle import limit_overrides
from django_pgqueue.options.task_options import UNCHANGED, Unchanged
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry

from .targets import alias_of, bounds_of, check_limit_key, check_use, stored_text

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def override_limit(
    limit_key: str,
    *,
    concurrency: int | Unchanged | None = UNCHANGED,
    rate: str | Unchanged | None = UNCHANGED,
    burst: int | Unchanged | None = UNCHANGED,
    share: int | Unchanged | None = UNCHANGED,
    until: Duration | datetime | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
) -> None:
    """Change the values of a limit, or of one of its keys, until a time or until `restore_limit()`.

    For each value, the override of the key counts first, then the override of the limit's name, then the code. Running
    jobs continue: after a concurrency is lowered, no job starts until fewer jobs run. A job whose weight is more than
    the new concurrency or burst runs alone.

    Fields that you do not pass keep what an earlier override has set. The end, `reason` and `by` replace the earlier
    ones. The change is part of the transaction that is open on the database.

    Args:
        limit_key: The name of a limit, for all its keys, or one limit key, such as `"stripe:customer:7"`.
        concurrency: Maximum jobs of a key that run at a time. None, here and below: as without this override.
        rate: Maximum starts of a key in a period, such as `"100/m"`. The code's limit may have no rate.
        burst: How many jobs of a key may start at once after a time without starts. Needs a rate.
        share: How many jobs of a key may start in one turn.
        until: End of the override: seconds or a timedelta from now, or an aware datetime. By default it has no end.
        reason: Text for people to read. 1,000 characters are stored.
        by: The person or program that changes the limit, for people to read. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        TypeError: `until` has the wrong type.
        ValueError: A value is invalid, two values contradict each other, or there is nothing to change. The message
            says what to change. Nothing is written.

    Warns:
        UnknownLimitWarning: No task has the limit, and one has a limit with a similar name.

    Example:
        >>> override_limit("stripe", rate="20/m", until=timedelta(hours=2), reason="they asked for it", by="ada")
    """
    values = {"concurrency": concurrency, "rate": rate, "burst": burst, "share": share}
    given = {name: value for name, value in values.items() if value is not UNCHANGED}
    check_limit_key(limit_key)
    alias = alias_of(database)
    check_use(Pausable.LIMIT, limit_key, alias)
    override_shown(limit_key, given, until=until, reason=reason, by=by, database=alias)


def override_shown(
    limit_key: str,
    given: dict[str, Any],
    *,
    until: Duration | datetime | None,
    reason: str,
    by: str,
    database: str,
    only_new: bool = False,
) -> bool:
    """Change the given values of a limit that the code declares. The admin uses this.

    With `only_new`, an override in force stays as it is.

    Return whether this call has changed it.
    """
    bounds, connection = bounds_of(until), connections[database]
    with transaction.atomic(using=database):
        _check_values(connection, limit_key, given)
        is_changed = limit_overrides.override(
            connection, limit_key, given, **bounds, **_note(by, reason), only_new=only_new
        )
        wake_workers_after_commit(connection, PAUSES_CHANGED)
    return is_changed


def restore_limit(limit_key: str, *, reason: str = "", by: str = "", database: str | None = None) -> bool:
    """Remove the override of a limit or of one key.

    An override of the limit's name leaves those of its keys, and the other way round. The change is part of the
    transaction that is open on the database.

    Args:
        limit_key: The name of a limit, or one limit key, as it was overridden.
        reason: Text for the audit. 1,000 characters are stored.
        by: The person or program that changes the limit, for the audit. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        True if there was an override that had not ended by itself.

    Raises:
        ValueError: `limit_key` is invalid.

    Warns:
        UnknownLimitWarning: There was no override, no task has the limit, and one has a limit with a similar name.
    """
    check_limit_key(limit_key)
    alias = alias_of(database)
    with transaction.atomic(using=alias):
        restored = limit_overrides.restore(connections[alias], limit_key, **_note(by, reason))
        wake_workers_after_commit(connections[alias], PAUSES_CHANGED)
    if not restored:
        check_use(Pausable.LIMIT, limit_key, alias)
    return restored


def end_hold(limit_key: str, *, reason: str = "", by: str = "", database: str | None = None) -> bool:
    """End the hold of a key that a task has raised `Throttled` for, or the holds of all keys of a limit.

    Jobs of the key start again. The job whose task raised `Throttled` keeps its own delay. The change is part of the
    transaction that is open on the database.

    Args:
        limit_key: One limit key, or the name of a limit, for all its keys.
        reason: Text for the audit. 1,000 characters are stored.
        by: The person or program that ends the hold, for the audit. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        True if a key was held.

    Raises:
        ValueError: `limit_key` is invalid.

    Warns:
        UnknownLimitWarning: No key was held, no task has the limit, and one has a limit with a similar name.
    """
    check_limit_key(limit_key)
    alias = alias_of(database)
    with transaction.atomic(using=alias):
        ended = limit_overrides.end_holds(connections[alias], limit_key, **_note(by, reason))
        wake_workers_after_commit(connections[alias], PAUSES_CHANGED)
    if not ended:
        check_use(Pausable.LIMIT, limit_key, alias)
    return bool(ended)


def _note(by: str, reason: str) -> dict[str, Any]:
    return {"changed_by": stored_text(by, 150), "reason": stored_text(reason, 1000)}


def _check_values(connection: BaseDatabaseWrapper, limit_key: str, given: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a limit with these values would be invalid, or if there is nothing to override."""
    name = name_of(limit_key)
    overrides = limit_overrides.controls_of(connection, [limit_key]).overrides
    if not given and limit_key not in overrides:
        raise ValueError("nothing to override: pass concurrency, rate, burst or share")
    declared = registry.limits().get(name) or Limit(name, key=str, rate="1/s")  # one of other code may have a rate
    if declared.ordered and given.get("concurrency") is not None:
        raise ValueError(
            f"limit {name!r} is ordered, so it runs one job of a key at a time: concurrency {given['concurrency']!r} "
            "cannot override it"
        )
    own = overrides.get(limit_key, Override())._replace(**given)
    of_limit = overrides.get(name, Override()) if name != limit_key else Override()
    values = {field: getattr(of_limit if value is None else own, field) for field, value in own._asdict().items()}
    try:
        replace(declared, weight=1, **{field: value for field, value in values.items() if value is not None})
    except InvalidTask as error:
        raise ValueError(str(error)) from None
