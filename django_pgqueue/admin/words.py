"""Rows in words: durations, moments, what holds a job back; and text made harmless to read.

Times are the database's: `seen_at` is its clock when the row was read.
"""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.models import Job
from django_pgqueue.states import State

BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of text, and make a name read as another."""

UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))

MORE_CHARACTERS: Final = 10_000
"""How far beyond four times its size JSON may grow when it is indented."""


def visible(text: str) -> str:
    """Return text with its control and direction characters written out, as `\\x1b` and `\\u202e`.

    Line ends and tabs stay. Escaping HTML is the template's work, not done here.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_written_out(c) if _is_hidden(c) else c for c in text)


def _is_hidden(character: str) -> bool:
    category = unicodedata.category(character)
    return character in BIDIRECTIONAL or category == "Cs" or (category == "Cc" and character not in "\n\t")


def _written_out(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def shortened(text: str, length: int = 80) -> str:
    """Return the first line of a text, cut to `length` characters, visible."""
    line = visible(text.strip().partition("\n")[0])
    return line if len(line) <= length else f"{line[: length - 1]}…"


def breakable(name: str) -> SafeString:
    """Return a dotted name that a narrow column breaks at its dots and underscores rather than within a word."""
    return format_html_join("", "{}<wbr>", ((part,) for part in re.split(r"(?<=[._])", visible(name))))


def pretty_json(text: str) -> str:
    """Return JSON text indented, or as it is if Python cannot read it, or it would grow too much; visible either way.

    Nested 5,000 deep, 10 kB of brackets become 50 MB of indentation.
    """
    pieces, size = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            size += len(piece)
            if size > 4 * len(text) + MORE_CHARACTERS:
                return visible(text)
    except (ValueError, RecursionError):  # cut off, an integer of 5,000 digits, nested 10,000 deep
        return visible(text)
    return visible("".join(pieces))


def duration(span: timedelta, *, brief: bool = False) -> str:
    """Return a duration in at most two units, "12 ms", "3.4 s", "5 min 2 s", "3 d 1 h", or in one if `brief`."""
    seconds = abs(span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part_size, part_unit in UNITS:
        if whole >= size:
            part = whole % size // part_size
            return f"{whole // size} {unit} {part} {part_unit}" if part and not brief else f"{whole // size} {unit}"
    return f"{whole} s"


def ago(moment: datetime, seen_at: datetime, *, brief: bool = False) -> str:
    """Return how long ago, or how far ahead, a moment is."""
    span = duration(seen_at - moment, brief=brief)
    return _("%(span)s ago") % {"span": span} if moment <= seen_at else _("in %(span)s") % {"span": span}


def moment(at: datetime | None, text: str | None = None) -> SafeString | str:
    """Return a moment as `<time>`; shown as `text` if given, with the full date as its tooltip."""
    if at is None:
        return ""
    full = full_date(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), full, text or full)


def dated(at: datetime, seen_at: datetime, *, with_zone: bool = False) -> SafeString | str:
    """Return a moment in full, and how far away it is; the current time zone's name where another is meant nearby."""
    zone = f" {timezone.get_current_timezone_name()}" if with_zone else ""
    return moment(at, f"{full_date(at)}{zone} ({ago(at, seen_at)})")


def full_date(at: datetime) -> str:
    """Return date and time to the second, in the current time zone."""
    return formats.date_format(timezone.localtime(at) if timezone.is_aware(at) else at, "Y-m-d H:i:s")


def badge(state: str, word: Any) -> SafeString:
    """Return a word on the colour of a state; a state that is none, as a row may hold one, is grey."""
    known = state if state in set(State) else "unknown"
    return format_html('<span class="pgqueue-state pgqueue-{}">{}</span>', known, visible(str(word)))


def seen_at(row: Any) -> datetime:
    """Return the database's clock when a row was read: annotated by this admin's querysets."""
    at = vars(row).get("seen_at")
    return at if isinstance(at, datetime) else timezone.now()


def situation(job: Job, started_at: datetime | None = None, *, is_paused: bool = False) -> str:
    """Return in words, to be read after its state, how long a job has been in it or what it waits for."""
    now = seen_at(job)
    if job.state == State.RUNNING:
        return _running(job, now, started_at)
    if job.state == State.READY:
        return _ready(job, now, is_paused=is_paused)
    if job.finished_at is not None:
        return ago(job.finished_at, now)
    return ""


def _running(job: Job, now: datetime, started_at: datetime | None) -> str:
    said = []
    if started_at is not None:
        said.append(_("for %(span)s, since %(at)s") % {"span": duration(now - started_at), "at": full_date(started_at)})
    if job.cancel_requested_at is not None:
        said.append(_("asked to stop %(ago)s") % {"ago": ago(job.cancel_requested_at, now)})
    return ", ".join(said)


def _ready(job: Job, now: datetime, *, is_paused: bool) -> str:
    due = job.run_after <= now
    when = _("due for %(span)s") if due else _("due in %(span)s")
    when %= {"span": duration(now - job.run_after)}
    if job.unknown_since is not None:
        why = _("no worker has known its task since %(ago)s") % {"ago": ago(job.unknown_since, now)}
        return f"{why}; {when}"
    said = [when]
    if is_paused:
        said.insert(0, _("held back by a pause"))
    if job.attempt:
        attempt = {"attempt": job.attempt + 1, "most": job.max_attempts}
        said.insert(0, _("waiting for attempt %(attempt)s of %(most)s") % attempt)
    elif due and not is_paused:
        said.insert(0, _("waiting for a worker"))
    return ", ".join(said)
