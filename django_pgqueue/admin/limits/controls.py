"""Read the pauses, overrides and open breakers of limits and limit keys, and describe them for the pages and forms.

`buttons` and `limit_form` compare these rows with what the page showed. A pause or an override of a limit's name
applies to all its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import acts
from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import REASON_SHOWN, by_until, full_date, pause_text, shortened
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.admin.pause_admin import in_force
from django_pgqueue.declared.limit_policies import PROBING, KeyPolicy, Override, policy_of
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.models import LimitOverride, OpenBreaker, Pause
from django_pgqueue.states import Pausable
from django_pgqueue.stats.sentences import OpenedAt
from django_pgqueue.tasks import registry

FIELDS: Final[dict[str, Promise | str]] = {
    "concurrency": gettext_lazy("Concurrency"),
    "rate": gettext_lazy("Rate"),
    "burst": gettext_lazy("Burst"),
    "share": gettext_lazy("Share"),
}
"""The fields of a limit that an override can change."""
LISTED: Final = 50
"""Keys of a limit that are listed because they have a pause, an override or an open breaker."""
BREAKER_OPEN: Final = gettext_lazy("The circuit breaker is open. After the pause, one job at a time probes the limit.")
BREAKER_PROBES: Final = gettext_lazy(
    "The circuit breaker probes the limit: one job at a time runs. If the job succeeds, the breaker closes and the "
    "usual limit applies again. If it fails, the breaker pauses the limit again."
)


def overrides_in_force(alias: str) -> QuerySet[LimitOverride]:
    """Return the overrides that have not ended."""
    return LimitOverride.objects.using(alias).filter(Q(valid_until__isnull=True) | Q(valid_until__gt=Now()))


def pauses_in_force(alias: str) -> QuerySet[Pause]:
    """Return the pauses of limits and of keys that have not ended."""
    return in_force().using(alias).filter(kind=Pausable.LIMIT)


def controls_of(request: HttpRequest, alias: str, limit_keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the pause and the override of each limit or key, as a page shows them and its forms send them.

    Runs at most three statements, which read only their rows.
    """
    keys = list(dict.fromkeys(limit_keys))
    names = {*keys, *map(name_of, keys)}
    pauses = {row.name: row for row in pauses_in_force(alias).filter(name__in=names)}
    overrides = {row.limit_key: row for row in overrides_in_force(alias).filter(limit_key__in=names)}
    opened = open_breakers(alias, keys)
    return {key: _controls(request, key, pauses, overrides, opened.get(key)) for key in keys}


def open_breakers(alias: str, limit_keys: Iterable[str]) -> dict[str, OpenedAt]:
    """Return the open circuit breakers of some keys. Without a breaker in the code, read nothing."""
    limits = registry.limits()
    keys = [key for key in limit_keys if (limit := limits.get(name_of(key))) is not None and limit.breaker is not None]
    found = OpenBreaker.objects.using(alias).filter(limit_key__in=keys) if keys else ()
    return {each.limit_key: OpenedAt(each.opened_at, each.probes_failed) for each in found}


def _controls(
    request: HttpRequest,
    limit_key: str,
    pauses: Mapping[str, Pause],
    overrides: Mapping[str, LimitOverride],
    opened: OpenedAt | None,
) -> dict[str, Any]:
    pause = pauses.get(limit_key)
    override, policy = overrides.get(limit_key), policy_in_force(limit_key, overrides, is_probing=opened is not None)
    may_change = policy is not None and acts.OVERRIDE_LIMIT.is_allowed(request.user)
    is_paused = pause is not None or name_of(limit_key) in pauses
    breaker = (_("breaker open"), BREAKER_OPEN) if is_paused else (_("breaker probing"), BREAKER_PROBES)
    label, sentence = breaker if opened else ("", "")
    return {
        "limit_key": limit_key,
        "label": shortened(limit_key),
        "is_whole": not has_value(limit_key),
        "is_paused": is_paused,
        "pause": pause and pause_text(pause.paused_at, pause.paused_by, pause.paused_until, pause.reason),
        "pause_shown": str(shown.number(pause.paused_at if pause else None)),
        "change": override and override_text(override, inherited_policy(limit_key, overrides)),
        "change_shown": str(shown.number(override.changed_at if override else None)),
        "change_url": page_url(request, "limit_change", key=limit_key) if may_change else "",
        "policy": policy,  # None if no task of this process declares the limit
        "breaker_label": label,
        "breaker": f"{sentence} {opened.text(lambda at: str(full_date(at)))}" if opened else "",
    }


def changed_keys(alias: str, name: str) -> list[str]:
    """Return the first keys of a limit that are paused, or have an override or an open breaker, in their order."""
    first, end = f"{name}:", f"{name};"
    overrides = overrides_in_force(alias).filter(limit_key__gte=first, limit_key__lt=end).order_by("limit_key")
    pauses = pauses_in_force(alias).filter(name__gte=first, name__lt=end).order_by("name")
    found = {*overrides.values_list("limit_key", flat=True)[:LISTED], *pauses.values_list("name", flat=True)[:LISTED]}
    limit = registry.limits().get(name)
    if limit is not None and limit.breaker is not None:
        opened = OpenBreaker.objects.using(alias).filter(limit_key__gte=first, limit_key__lt=end).order_by("limit_key")
        found.update(opened.values_list("limit_key", flat=True)[:LISTED])
    return sorted(found)[:LISTED]


def values_of(override: LimitOverride | None) -> Override:
    """Return the values of an override. Without an override, all are None."""
    return Override() if override is None else Override(*(getattr(override, name) for name in Override._fields))


def policy_in_force(
    limit_key: str, overrides: Mapping[str, LimitOverride], *, is_probing: bool = False
) -> KeyPolicy | None:
    """Return what holds for a limit or key; None if no task of this process declares the limit.

    `is_probing`: whether the circuit breaker of the key is open.
    """
    limit = registry.limits().get(name := name_of(limit_key))
    if limit is None:
        return None
    given = (values_of(overrides.get(each)) for each in (limit_key, name))
    return policy_of(limit, PROBING if is_probing else None, *given)


def inherited_policy(limit_key: str, overrides: Mapping[str, LimitOverride]) -> KeyPolicy | None:
    """Return what holds without the override of the limit or key itself."""
    others = {key: row for key, row in overrides.items() if key != limit_key}
    return policy_in_force(limit_key, others)


def override_text(override: LimitOverride, before: KeyPolicy | None) -> str:
    """Return a sentence: "changed at … by … until …: concurrency 2 instead of 10 (the reason)"."""
    began = _("changed at %(at)s") % {"at": full_date(override.changed_at)}
    values = ", ".join(_value_text(override, name, before) for name in FIELDS if getattr(override, name) is not None)
    reason = f" ({shortened(override.reason, REASON_SHOWN)})" if override.reason else ""
    return f"{began}{by_until(override.changed_by, override.valid_until)}: {values}{reason}"


def _value_text(override: LimitOverride, name: str, before: KeyPolicy | None) -> str:
    value, old = getattr(override, name), getattr(before, name, None)
    words = {"field": str(FIELDS[name]).lower(), "value": shortened(str(value)), "old": shortened(str(old))}
    if before is None:
        return "{field} {value}".format(**words)
    if old is None:
        return str(_("%(field)s %(value)s instead of none") % words)
    return str(_("%(field)s %(value)s instead of %(old)s") % words)
