"""The findings that an examination returns, and the results of checks from which it makes them.

Names from the database, such as an `application_name`, can contain any characters. Checks write them with `quoted()`,
so that they cannot forge lines on a terminal.

Each sentence of a finding is in the language that is active when the check runs. Names, statements and figures are the
same in all languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_pgqueue.display import DAYS, HOURS, MINUTES, SECONDS

if TYPE_CHECKING:
    from .session import Session

LISTED: Final = 5
"""Names that a sentence lists. The data of the finding has more."""


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    """Nothing is wrong."""
    INFO = "info"
    """Good to know. Nothing has to be done."""
    WARNING = "warning"
    """It will cause trouble, or the doctor could not look."""
    ERROR = "error"
    """The queue is slow, unsafe or stopped because of it."""

    def is_at_least(self, other: Level) -> bool:
        """Return whether this level is as serious as `other`, or more serious."""
        order = list(Level)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        id: The name of the check, such as `pinned_rows`. It is stable.
        level: How serious it is.
        what: One sentence with the figures: what the check has found.
        why: One sentence: why it matters.
        fix: The command, statement or setting that fixes it, "" if nothing has to be done.
        data: The figures, as values that JSON can represent. The key `cannot_see` says what the role of this process
            cannot see. It has the sentence of the finding.
    """

    id: str
    level: Level
    what: str
    why: str
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a dict that JSON can represent."""
        return asdict(self)


class Result(NamedTuple):
    """The outcome of a check, before it gets the id and the reason of its check."""

    level: Level
    what: str
    fix: str = ""
    data: dict[str, Any] = {}
    why: str = ""
    """Why that matters, if it is another reason than that of the check."""


@dataclass(frozen=True)
class Check:
    """One check of the doctor.

    Attributes:
        id: The id of its finding.
        reports: One sentence: what it reports, with the limits of the levels. Only the documentation shows it.
        why: One sentence: why that matters.
        look: Looks, and returns the result. An error of the database passes through.
    """

    id: str
    reports: str
    why: Promise | str
    look: Callable[[Session], Result]


def check(id: str, reports: str, why: Promise | str) -> Callable[[Callable[[Session], Result]], Check]:  # noqa: A002 -- its name
    """Make a check of the function that looks."""
    return lambda look: Check(id, reports, why, look)


def ok(what: str, **data: Any) -> Result:
    """Return a result that reports nothing."""
    return Result(Level.OK, what, data=data)


def cannot_see(what: str, fix: str, **data: Any) -> Result:
    """Return the result of a check that could not look. It is a warning, because a blind check proves nothing."""
    return Result(Level.WARNING, what, fix, {**data, "cannot_see": what})


def no_tables() -> Result:
    """Return the result of a check of a database that has no tables of this package."""
    what = _("Cannot see the tables of the queue, because this database does not have them.")
    why = _("The tables must exist before this can be examined.")
    return cannot_see(what, "manage.py migrate")._replace(why=why)


def worst(levels: Iterable[Level]) -> Level:
    """Return the most serious of these levels. Return `OK` if the list is empty."""
    order = list(Level)
    return max(levels, key=order.index, default=Level.OK)


def level_of(value: float, *, warning: float, error: float) -> Level:
    """Return the level of a figure that gets worse as it grows."""
    return Level.ERROR if value >= error else Level.WARNING if value >= warning else Level.OK


def quoted(name: object) -> str:
    """Return a name from the database in quotes, cut to 80 characters, with invisible characters escaped."""
    text = str(name)
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def listed(names: Iterable[object]) -> str:
    """Return names for a sentence: the first ones in quotes, and how many more there are."""
    found = list(names)
    first = ", ".join(map(quoted, found[:LISTED]))
    more = len(found) - LISTED
    return _("%(names)s and %(count)s more") % {"names": first, "count": more} if more > 0 else first


def literal(text: object) -> str:
    """Return a text as an SQL literal that the reader can copy. Escape invisible characters."""
    escaped = str(text).replace("\\", "\\\\").replace("'", "''")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in escaped)
    return f"E'{shown}'" if "\\" in shown else f"'{shown}'"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage: "80 %"."""
    return f"{100 * share:.{digits}f} %"


def span(seconds: float) -> str:
    """Return a duration in its largest unit: "40 s", "12 min", "3 h", "5 d"."""
    for size, text in ((86_400, DAYS), (3600, HOURS), (60, MINUTES)):
        if seconds >= 2 * size:
            return str(text % {"number": round(seconds / size)})
    return str(SECONDS % {"number": round(seconds)})
