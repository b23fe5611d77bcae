"""The page *Doctor*: the findings of an examination of the database of the jobs, the most serious first.

It runs a fixed number of statements, each with a time limit.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin.formatting import breakable
from django_pgqueue.doctor import Level, examine

from .page import ConsolePage

LABELS: Final = {Level.OK: _("ok"), Level.INFO: _("info"), Level.WARNING: _("warning"), Level.ERROR: _("error")}


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    order = list(Level)
    findings = sorted(examine(alias), key=lambda finding: order.index(finding.level), reverse=True)
    return {
        "database": alias,
        "findings": [(finding, LABELS[finding.level], breakable(finding.fix)) for finding in findings],
        "healthy": sum(finding.level is Level.OK for finding in findings),
    }


DOCTOR: Final = ConsolePage("doctor", _("Doctor"), _context)
