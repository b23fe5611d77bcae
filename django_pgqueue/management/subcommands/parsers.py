"""The parser of a subcommand: errors of the command line that say what was meant; and the values of its arguments."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from django.core.management.base import CommandParser

from django_pgqueue.ground.similar_names import closest

INVALID_CHOICE: Final = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$", re.DOTALL)
INVALID_VALUE: Final = re.compile(r"invalid (\w+) value: ")
KINDS: Final = {
    "int": "a whole number",
    "positive": "a whole number",
    "port": "a port number",
    "ip_address": "an IP address, such as 127.0.0.1",
}
"""The functions that read values, and what each accepts. The others accept a number."""
ARGUMENTS_HINT: Final = ". Pass the arguments of the task as JSON: --args '[7]'."
NO_VALUE: Final = "expected one argument"
OF_DJANGO: Final = ("--settings", "--pythonpath", "--traceback", "--verbosity", "-v", "--no-color", "--force-color")
SIMILAR: Final = 0.8
"""How similar an option or a choice must be. The options of a command resemble one another more than names do."""


class SubcommandParser(CommandParser):
    """A parser whose errors name the word that may be meant, and show the usage of the subcommand.

    argparse leaves unknown options to the parser of the whole command, whose usage does not help.
    """

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed differ only in the namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0])}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(with_hint(message))
        raise AssertionError  # it does not return, which its annotation does not say

    def _hint(self, typed: str) -> str:
        option = typed.partition("=")[0]
        if not option.startswith("-"):
            return ARGUMENTS_HINT if "--args" in self._option_string_actions else ""
        if option in OF_DJANGO:
            return f". Pass {option} before the subcommand."
        known = {each.lstrip("-"): each for each in self._option_string_actions}
        close = closest(option.lstrip("-"), known, SIMILAR)
        return f". Did you mean {known[close]}?" if close else ""


def show_hints(parser: ArgumentParser) -> None:
    """Let the errors of a parser name what may be meant. Django has made the parser of the whole command."""
    error = parser.error
    vars(parser)["error"] = lambda message: error(with_hint(message))


def with_hint(message: str) -> str:
    """Return the message of argparse with the choice that may be meant, and what to pass instead of another value."""
    if found := INVALID_CHOICE.search(message):
        close = closest(found[1], re.findall(r"[\w-]+", found[2]), SIMILAR)
        return f"{message}. Did you mean {close}?" if close else message
    if found := INVALID_VALUE.search(message):
        return f"{message.replace(found[0], 'invalid value ')}: pass {KINDS.get(found[1], 'a number')}"
    if message.endswith(NO_VALUE):
        return f"{message}. Write a value that begins with - as --option=VALUE."
    return message


def row_id(text: str) -> int:
    """Return an id that was typed. Raise `ArgumentTypeError` for a text that is not a number above 0."""
    if not (text.isascii() and text.isdecimal() and len(text) < 100 and int(text)):
        raise ArgumentTypeError(f"invalid id {text[:50]!r}: pass a whole number above 0, such as 4711")
    return int(text)
