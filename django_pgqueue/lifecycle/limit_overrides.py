"""Override limits and end holds for operators, and read what a claim must obey.

`django_pgqueue.control.limits` calls the functions that write, in the operator's transaction. They protect one
invariant: each change is in the audit, because both are written together. Claims call `controls_of()` in their own
transactions, after they have locked the keys. An override changes no job: claims that begin after it is committed obey
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, texts
from django_pgqueue.declared.limit_policies import PROBING, KeyPolicy, Override, policy_of
from django_pgqueue.declared.limits import Limit, name_of

from .audit import add_audit
from .limits import keys_of_limit
from .ranges import rows_in_ranges


class KeyPause(NamedTuple):
    """A pause of a limit or of a key."""

    seconds: float
    """Seconds until it ends. Infinity: it does not end by itself."""
    paused_by: str


class KeyControls(NamedTuple):
    """The overrides and pauses in force of some limit keys and of their limits' names, and their open breakers."""

    overrides: Mapping[str, Override]
    pauses: Mapping[str, KeyPause]
    open_breakers: frozenset[str] = frozenset()
    """The keys whose circuit breakers are open: after the pause, one job at a time probes the key."""

    def policy_of(self, limit_key: str, limit: Limit) -> KeyPolicy:
        """Return the policy of a key. Ignore an open breaker if its limit has none in the code any more."""
        is_probing = limit.breaker is not None and limit_key in self.open_breakers
        return policy_of(
            limit, PROBING if is_probing else None, self.overrides.get(limit_key), self.overrides.get(limit.name)
        )

    def pause_of(self, limit_key: str) -> KeyPause | None:
        """Return the pause of a key or of its limit. If there are two, return the one that ends last."""
        found = (self.pauses.get(name) for name in (limit_key, name_of(limit_key)))
        return max((pause for pause in found if pause is not None), default=None)


NO_CONTROLS: Final = KeyControls({}, {})


def controls_of(connection: Connection, limit_keys: Iterable[str]) -> KeyControls:
    """Return the overrides and pauses in force of these keys and of their limits' names, and their open breakers."""
    names = {name for key in limit_keys for name in (key, name_of(key))}
    rows = execute(connection, sql.limit_overrides.KEY_CONTROLS, {"names": texts(names)})
    return KeyControls(
        overrides={
            name: Override(*values) for name, *values, seconds, _, is_open in rows if seconds is None and not is_open
        },
        pauses={name: KeyPause(seconds, by) for name, *_, seconds, by, _ in rows if seconds is not None},
        open_breakers=frozenset(name for name, *_, is_open in rows if is_open),
    )


def override(
    connection: Connection,
    limit_key: str,
    given: Mapping[str, Any],
    *,
    until: datetime | None = None,
    for_seconds: float | None = None,
    changed_by: str = "",
    reason: str = "",
    only_new: bool = False,
) -> bool:
    """Set the `given` fields of an override, and keep its others. `given` is not empty, or there is an override.

    Call it in a transaction. The end, `changed_by` and `reason` replace those of an earlier override. If no field is
    left, remove the override. With `only_new`, change nothing if there is an override. Return whether this call has
    changed it.
    """
    before = _lock(connection, limit_key)
    kept = {} if before is None else before[0]._asdict()
    values = {**kept, **given}
    if not any(value is not None for value in values.values()):
        return restore(connection, limit_key, changed_by=changed_by, reason=reason)
    params = {
        "limit_key": limit_key,
        **{name: values.get(name) for name in Override._fields},
        "given": texts(given),
        "until": until,
        "for_seconds": for_seconds,
        "changed_by": changed_by,
        "reason": reason,
        "only_new": only_new,
    }
    rows = execute(connection, sql.limit_overrides.OVERRIDE_LIMIT, params)
    if not rows:
        return False
    row = rows[0]
    chosen = {"limit_key": limit_key, "before": _as_json(before), "after": _as_json((Override(*row[:-1]), row[-1]))}
    add_audit(connection, "override limit", chosen, [], done_by=changed_by, reason=reason)
    return True


def restore(connection: Connection, limit_key: str, *, changed_by: str = "", reason: str = "") -> bool:
    """Remove the override of a limit or of a key. Return whether there was one in force. Call it in a transaction."""
    before = _lock(connection, limit_key)
    execute(connection, sql.limit_overrides.RESTORE_LIMIT, {"limit_key": limit_key})
    if before is not None:
        chosen = {"limit_key": limit_key, "before": _as_json(before), "after": None}
        add_audit(connection, "restore limit", chosen, [], done_by=changed_by, reason=reason)
    return before is not None


def end_holds(connection: Connection, limit_key: str, *, changed_by: str = "", reason: str = "") -> int:
    """End the holds of a key, or of all keys of the limit with this name. Return how many keys were held.

    Call it in a transaction.
    """
    first_key, end_key = keys_of_limit(limit_key)
    params = {"limit_key": limit_key, "first_key": first_key, "end_key": end_key}
    [(count, held_until)] = execute(connection, sql.limit_overrides.END_HOLDS, params)
    if count:
        chosen = {"limit_key": limit_key, "keys": count, "held_until": held_until.isoformat()}
        add_audit(connection, "end hold", chosen, [], done_by=changed_by, reason=reason)
    return int(count)


def prune_overrides(connection: Connection, older_than_seconds: float) -> None:
    """Remove overrides that ended more than `older_than_seconds` ago."""
    params = {"older_than_seconds": older_than_seconds}
    rows_in_ranges(connection, "the removal of override", sql.limit_overrides.PRUNE_LIMIT_OVERRIDES, params)


def _lock(connection: Connection, limit_key: str) -> tuple[Override, datetime | None] | None:
    """Return the values and the end of the override in force, and lock its row."""
    rows = execute(connection, sql.limit_overrides.LOCK_OVERRIDE, {"limit_key": limit_key})
    return (Override(*rows[0][:-1]), rows[0][-1]) if rows else None


def _as_json(found: tuple[Override, datetime | None] | None) -> dict[str, Any] | None:
    """Return an override as the audit stores it: the fields that are set, and the end."""
    if found is None:
        return None
    override, until = found
    given = {name: value for name, value in override._asdict().items() if value is not None}
    return given if until is None else {**given, "until": until.isoformat()}
