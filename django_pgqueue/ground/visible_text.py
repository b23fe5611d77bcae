"""Show characters that a screen hides, or that change what a person reads, as escapes.

The pages of the console, the commands, and the names of rows in Django's own pages use it.
"""

from __future__ import annotations

import unicodedata
from typing import Final

BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text and can make one name look like another."""

HIDDEN_CATEGORIES: Final = frozenset({"Cs", "Zl", "Zp"})
"""Surrogates, and the two characters that end a line in some programs and are no control characters."""


def visible(text: str) -> str:
    """Return text with control and direction characters as escapes, such as `\\x1b` and `\\u202e`.

    Line ends and tabs stay. HTML is not escaped here; the template does it.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if _is_hidden(c) else c for c in text)


def in_line(text: str) -> str:
    """Return text for a place inside a line: line ends and tabs are escapes too, so it cannot look like a line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _is_hidden(character: str) -> bool:
    category = unicodedata.category(character)
    return character in BIDIRECTIONAL or category in HIDDEN_CATEGORIES or (category == "Cc" and character not in "\n\t")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
