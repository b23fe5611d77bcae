"""Show values of rows to an operator: hidden characters as escapes, times, JSON, and calls without secrets.

The admin and `manage.py pgqueue` call this module. It protects two rules: text from a row cannot change what the
operator reads, and a sensitive argument or an encoded value is never shown. If this process does not know a task, it
does not know which arguments are sensitive, so it shows none.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.utils import dateformat, formats, timezone
from django.utils.translation import get_language, gettext_lazy, pgettext
from django.utils.translation import gettext as _

from .ground.envelope import ERASED, codec_of
from .ground.visible_text import in_line as in_line
from .ground.visible_text import visible as visible
from .tasks import registry
from .tasks.redaction import hides_result, redacted_call

DAYS: Final = gettext_lazy("%(number)d d")
HOURS: Final = gettext_lazy("%(number)d h")
MINUTES: Final = gettext_lazy("%(number)d min")
SECONDS: Final = gettext_lazy("%(number)d s")
UNITS: Final = ((86400, DAYS, 3600, HOURS), (3600, HOURS, 60, MINUTES), (60, MINUTES, 1, SECONDS))

MORE_CHARACTERS: Final = 10_000
"""Indented JSON may have this many characters more than four times its size; see `pretty_json()`."""


def shortened(text: str, length: int = 80) -> str:
    """Return the first line of a text, cut to `length` characters, with hidden characters as escapes."""
    line = visible(text.strip().partition("\n")[0])
    return line if len(line) <= length else f"{line[: length - 1]}…"


def pretty_json(text: str) -> str:
    """Return JSON text indented, or unchanged if Python cannot read it or if it would grow too much.

    10 kB of brackets nested 5,000 deep would become 50 MB of indentation. Hidden characters become escapes.
    """
    pieces, size = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            size += len(piece)
            if size > 4 * len(text) + MORE_CHARACTERS:
                return visible(text)
    except (ValueError, RecursionError):  # the text was cut, has an integer of 5,000 digits, or nests 10,000 deep
        return visible(text)
    return visible("".join(pieces))


def full_date(at: datetime) -> str:
    """Return the date and the time to the second, in the current time zone: in English 2026-11-30 17:51:03."""
    return dateformat.format(timezone.localtime(at) if timezone.is_aware(at) else at, full_date_form())


def full_date_form() -> str:
    """Return the form of all instants in the active language, as Django's template filter `date` reads it."""
    return pgettext("the form of all dates with a time, as Django's template filter `date` reads it", "Y-m-d H:i:s")


def number(value: float, decimals: int = 0) -> str:
    """Return a number as the active language writes it: in English 12,000.5, in German 12.000,5."""
    if get_language() is None:  # translations are off, and with them the separators
        return f"{value:,.{decimals}f}"
    # As text, because Django would cut a float instead of rounding it.
    return formats.number_format(f"{value:.{decimals}f}", decimals, use_l10n=True, force_grouping=True)


def percent(share: float, decimals: int | None = None) -> str:
    """Return a share as the active language writes a percentage: in English 12.5 %, in German 12,5 %.

    By default it has a decimal below 10 %, and above 99 %. Only a share of all is 100 %, and only nothing is 0 %. With
    `decimals`, it has as many at most.
    """
    if decimals is None:
        if 0 < share < 0.0005:
            return "< " + percent(0.001)
        has_decimal = share < 0.0995 or 0.99 < share < 1
        value = 99.9 if 0.999 < share < 1 else round(100 * share, 1 if has_decimal else 0)
        decimals = int(value != int(value))
    else:
        value = round(100 * share, decimals)
        decimals = len(f"{value:.{decimals}f}".rstrip("0").partition(".")[2])
    return _("%(number)s %%") % {"number": number(value, decimals)}


def duration(span: timedelta, *, brief: bool = False) -> str:
    """Return a duration in at most two units ("12 ms", "3.4 s", "5 min 2 s", "3 d 1 h"), or in one if `brief`."""
    seconds = abs(span.total_seconds())
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    if seconds < 10:
        return _("%(number)s s") % {"number": number(seconds, 1)}
    whole = round(seconds)
    if brief:
        return _in_one_unit(whole)
    for size, unit, part_size, part_unit in UNITS:
        if whole >= size:
            part = whole % size // part_size
            text = unit % {"number": whole // size}
            return f"{text} {part_unit % {'number': part}}" if part else str(text)
    return str(SECONDS % {"number": whole})


def _in_one_unit(whole: int) -> str:
    """Return whole seconds in the largest unit that fits, rounded: 2 d 23 h are 3 d, and 59 min 40 s are 1 h."""
    for size, unit, part_size, _part in UNITS:
        if whole >= size - part_size // 2:
            return str(unit % {"number": (whole + size // 2) // size})
    return str(SECONDS % {"number": whole})


class Shown(NamedTuple):
    """A value as a page or a command shows it: text, a sentence that says why it or a part of it is hidden, or both."""

    text: str = ""
    note: str = ""


def shown_result(task_name: str, text: str | None) -> Shown | None:
    """Decode a result from its stored text. Return None if the job has no result."""
    if text is None:
        return None
    if reason := _hidden_because(task_name, text):
        return Shown(note=reason)
    task = registry.get(task_name)
    if task is None or hides_result(task):
        return Shown(note=_("Hidden: the task marks its result as sensitive."))
    return Shown(text=pretty_json(text))


def shown_arguments(task_name: str, text: str) -> Shown:
    """Return the arguments of a call, given as stored text, without the sensitive ones."""
    if reason := _hidden_because(task_name, text):
        return Shown(note=reason)
    task = registry.get(task_name)
    if task is None or not task.sensitive:
        return Shown(text=pretty_json(text))
    try:
        args, kwargs = redacted_call(task, *_args_and_kwargs(json.loads(text)))
        shown = pretty_json(json.dumps({"args": args, "kwargs": kwargs}, ensure_ascii=False))
    except (ValueError, RecursionError):  # the text was cut, or the row was written by hand
        return Shown(note=_("Hidden: the task has sensitive arguments, and they cannot be separated here."))
    return Shown(text=shown, note=_("The task marks some arguments as sensitive. They are hidden."))


def _args_and_kwargs(call: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(call, dict) and call.keys() == {"args", "kwargs"}:
        args, kwargs = call["args"], call["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise ValueError("these are not the arguments of a call")


def is_erased(text: str) -> bool:
    """Return whether somebody has erased a value, given as stored text."""
    return codec_of(text) == ERASED


def _hidden_because(task_name: str, text: str) -> str:
    """Return why a value of a job is hidden as a whole, "" if it is not."""
    if codec := codec_of(text):
        if codec == ERASED:
            return _("Erased.")
        return _("Encoded by “%(codec)s”.") % {"codec": shortened(codec)}
    if registry.get(task_name) is None:
        return _("Hidden: this process does not know the task, so it does not know which values are sensitive.")
    return ""
