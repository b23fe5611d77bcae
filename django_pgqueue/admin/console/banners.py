"""Warnings at the top of the overview: what stops or slows the queue now, and what to do.

Only checks of the doctor that take a few milliseconds run here, because the page may be refreshed every two seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_pgqueue.admin.formatting import shortened
from django_pgqueue.doctor import Finding, Level, examine
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.stats import Overview

EXAMINED: Final = ("server", "migrations", "installation", "listening", "pinned_rows")
"""The ids of the doctor's checks that the overview runs."""
NAMES_LIMIT: Final = 5


class Banner(NamedTuple):
    """A warning: its level, a sentence, and what to do about it."""

    level: Level
    text: Promise | str
    fix: Promise | str = ""


def examined(alias: str) -> list[Banner]:
    """Return what the doctor found. A check that cannot look is left out; the doctor's own page shows it."""
    findings = examine(alias, [check for check in CHECKS if check.id in EXAMINED])
    return [Banner(finding.level, finding.what, finding.fix) for finding in findings if _is_worth(finding)]


def _is_worth(finding: Finding) -> bool:
    is_blind = "cannot_see" in finding.data and finding.id != "server"
    return finding.level.is_at_least(Level.WARNING) and not is_blind


def of_overview(overview: Overview) -> list[Banner]:
    """Return the warnings that follow from the figures."""
    found = []
    if overview.unserved_queues:
        words = {"names": _listed(overview.unserved_queues)}
        text = _("No live worker serves %(names)s, and jobs are due there.") % words
        first = shortened(overview.unserved_queues[0])
        command = "manage.py runworker" if not overview.workers else f"manage.py runworker --queues {first}"
        found.append(Banner(Level.ERROR, text, command))
    if overview.lost.value:
        text = _("%(count)s running jobs are lost: their lease is over, and no worker has rescued them yet.")
        found.append(Banner(Level.WARNING, text % {"count": overview.lost}))
    if overview.finished_per_minute is None:
        text = _("PGQUEUE[“STATS”] is off: there are no rates, no charts and no failures.")
        found.append(Banner(Level.INFO, text))
    return found


def _listed(names: Iterable[str]) -> str:
    shown = [shortened(name) for name in names]
    more = _(" and %(count)s more") % {"count": len(shown) - NAMES_LIMIT} if len(shown) > NAMES_LIMIT else ""
    return ", ".join(f"“{name}”" for name in shown[:NAMES_LIMIT]) + more
