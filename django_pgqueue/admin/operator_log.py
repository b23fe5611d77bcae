"""The history of the admin: what a user of the admin did to a row. The command line and the audit do not write it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Model
from django.http import HttpRequest


def log_change(request: HttpRequest, rows: Model | Iterable[Model] | None, message: Any, flag: int = CHANGE) -> None:
    """Write an entry into the history of a row or of each of some rows. It never contains a value of an argument."""
    entries = [rows] if isinstance(rows, Model) else list(rows or ())
    user_id = cast(int, request.user.pk)  # not None: anonymous users have no permission to get here
    LogEntry.objects.log_actions(user_id, entries, flag, message)
