"""Tell from its text whether a statement may change its session, so that the next job must get another one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

LEADING_COMMENTS: Final = r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*"
ORDINARY: Final = re.compile(
    LEADING_COMMENTS + r"(SELECT|INSERT|UPDATE|DELETE|WITH|VALUES|MERGE|LOCK|TRUNCATE|SHOW|NOTIFY"
    r"|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|COMMIT|SET\s+(LOCAL|TRANSACTION|CONSTRAINTS))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Beginnings of statements that do not change the session, unless they contain one of `LASTING`."""
LASTING: Final = ("set_config", "advisory_lock", ";")
INTO_TEMPORARY: Final = re.compile(r"\binto\s+(local\s+)?temp(orary)?\b")
KNOWN_LIMIT: Final = 2000
KNOWN_LENGTH: Final = 1000
"""How many verdicts are cached, and for statements of which length. The ORM repeats the same statements."""


def changes_the_session(statement: str) -> bool:
    """Return whether a statement may change its session. Every statement that is not known to be harmless may."""
    if not ORDINARY.match(statement):
        return True
    text = statement.lower().rstrip("; \n")
    if any(marker in text for marker in LASTING):
        return True
    return "temp" in text and INTO_TEMPORARY.search(text) is not None


known_to_change = lru_cache(KNOWN_LIMIT)(changes_the_session)
