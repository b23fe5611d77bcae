"""The templates of unique keys and limit keys: text with names of arguments in braces, such as `"order:{order_id}"`.

A brace itself is doubled. `Limit` and the options of tasks check the syntax, a task checks the names against its
signature, and an enqueue fills in the arguments of the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from string import Formatter
from typing import Any, Final

CONVERSIONS: Final = "sra"
"""The letters that `str.format()` accepts after a `!`."""


def template_problems(key: str, template: str) -> Iterator[str]:
    """Yield the problems of a template, without those of the names in it. `key` names the template in them."""
    try:
        names = names_in(template)
    except ValueError as error:
        yield f"{key} is not a template: {error}. Write {{{{ and }}}} for braces"
        return
    yield from _conversion_problems(key, template)
    for name in names:
        if not name.isidentifier():
            yield (
                f"{key} can contain names of arguments in braces, not {{{name}}}: use a function for others, and write "
                "{{ and }} for braces"
            )


@lru_cache(maxsize=1000)
def names_in(template: str) -> tuple[str, ...]:
    """Return the names of arguments in a template. Raise `ValueError` if it is not a template."""
    names = []
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            names.append(name)
        if form and ("{" in form or "}" in form):
            raise ValueError(f"a field within {{{name}:…}}")
    return tuple(names)


def name_without_braces(template: str, names: Collection[str]) -> str:
    """Return the argument whose braces a text seems to have forgotten, as in `"order:order_id"`; "" if there is none.

    A text such as `"order"` is not taken for one, although an argument can have this name: it can be a whole key.
    """
    if names_in(template):
        return ""
    if re.search(r"%[sd]", template):
        return next(iter(names), "")
    found = re.search(r"(^|[:/.\-$<])([^\W\d]\w*)>?$", template)
    if found is None or found[2] not in names:
        return ""
    return found[2] if found[1] or "_" in found[2] else ""


def reads_arguments(key: object) -> bool:
    """Return whether a key is made from the arguments of a call: a template that names one, or a function."""
    return callable(key) or (isinstance(key, str) and bool(names_in(key)))


def filled(template: str, values: Mapping[str, Any], what: str) -> str:
    """Return a template with the arguments of a call. `what` names it in errors.

    Raises `ValueError` if an argument is missing, or does not fit its format.
    """
    for name in names_in(template):
        if name not in values:
            raise ValueError(f"the call has no argument {name!r} for {what}: pass it, or use a function as key")
    try:
        return template.format_map(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} does not fit: {error}") from error


def escaped(key: str) -> str:
    """Return the template whose value is a key, with each brace doubled."""
    return key.replace("{", "{{").replace("}", "}}")


def _conversion_problems(key: str, template: str) -> Iterator[str]:
    """Yield the problems of conversions, with which each enqueue would fail."""
    for _, name, form, conversion in Formatter().parse(template):
        if not conversion:
            continue
        if conversion not in CONVERSIONS:
            yield f"{key} converts {name!r} by !{conversion}, which does not exist: use !s, !r, !a or none"
            continue
        try:
            format("", form or "")
        except ValueError as error:
            yield f"{key} formats the text {{{name}!{conversion}}} as {form!r}: {error}"
