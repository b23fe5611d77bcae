"""Keeps the translations of the console complete: `python -m tests.tools.catalogues [--write]`.

The texts are found in the modules and the templates of the package. Each language of `LANGUAGES` has a catalogue,
`django_pgqueue/locale/LANGUAGE/LC_MESSAGES/django.po`, and the compiled file beside it, which Django reads.

Without `--write`, the program prints what is wrong and changes nothing. It ends with status 1 if it finds anything.
With `--write`, it adds new texts without a translation, drops those that the package no longer has, and compiles.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from gettext import GNUTranslations
from pathlib import Path
from typing import IO, Any, Final

from babel.messages import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

PACKAGE: Final = Path(__file__).resolve().parents[2] / "django_pgqueue"
LANGUAGES: Final = {"de": "German", "es": "Spanish", "fr": "French"}
KEYWORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop")),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), ((1, "c"), 2)),
    **dict.fromkeys(("npgettext", "npgettext_lazy"), ((1, "c"), 2, 3)),
}
METHODS: Final = [
    ("**.py", "python"),
    ("templates/**.html", "tests.tools.catalogues:texts_of_template"),
]
CALL: Final = re.compile(r"\b(_|n?p?gettext)\(")
PLACEHOLDER: Final = re.compile(r"%\((\w+)\)[sd]|%[sd%]|\{(\w*)\}")
MADE_AT: Final = datetime(2026, 11, 30, tzinfo=UTC)
"""The date in the head of each catalogue. It is the same each time, so that the same texts give the same file."""

Text = tuple[str, str | tuple[str, str]]
"""The context of a text, and the text or its singular and plural."""


def texts_of_template(file: IO[bytes], keywords: Any, tags: Any, options: Any) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield the texts of a template as Babel expects them from an extractor."""
    made = templatize(file.read().decode())
    for found in CALL.finditer(made):
        yield made.count("\n", 0, found.start()) + 1, found[1], _arguments(made[found.end() :]), []


def _arguments(text: str) -> Any:
    """Read the strings of a call whose first parenthesis is before this text."""
    for end in (found.start() for found in re.finditer(r"\)", text)):
        try:
            given = ast.parse(f"f({text[:end]})", mode="eval").body
        except SyntaxError:
            continue
        strings = [node.value for node in given.args if isinstance(node, ast.Constant)]  # type: ignore[attr-defined]
        return strings[0] if len(strings) == 1 else tuple(strings)
    raise ValueError(f"this call has no end: {text[:80]}")


def extracted(package: Path = PACKAGE) -> Catalog:
    """Return a catalogue of the texts of the package, without translations."""
    found = Catalog()
    for name, line, text, _comments, context in extract_from_dir(package, METHODS, keywords=KEYWORDS):
        found.add(text, locations=[(name, line)], context=context)
    return found


def path_of(language: str, ending: str = "po") -> Path:
    """Return the path of a catalogue."""
    return PACKAGE / "locale" / language / "LC_MESSAGES" / f"django.{ending}"


def read(language: str) -> Catalog:
    """Return the catalogue of a language."""
    with path_of(language).open("rb") as file:
        return read_po(file, locale=language)


def key_of(message: Message) -> Text:
    """Return what a text is found by."""
    return message.context or "", message.id  # type: ignore[return-value]


def texts(catalogue: Catalog) -> dict[Text, Message]:
    """Return the texts of a catalogue without its head."""
    return {key_of(message): message for message in catalogue if message.id}


def problems(language: str, found: Catalog) -> Iterator[str]:
    """Yield what is wrong with the catalogue of a language, compared with the texts of the package."""
    wanted, translated = texts(found), texts(read(language))
    for key in wanted.keys() - translated.keys():
        yield f"{language}: {key[1]!r} is not in the catalogue"
    for key in translated.keys() - wanted.keys():
        yield f"{language}: {key[1]!r} is no text of the package"
    for key in sorted(wanted.keys() & translated.keys(), key=str):
        yield from (f"{language}: {key[1]!r}: {problem}" for problem in problems_of(translated[key]))
    with path_of(language, "mo").open("rb") as file:
        compiled = GNUTranslations(file)
    if texts_of_compiled(compiled) != texts_of_compiled(GNUTranslations(io.BytesIO(made(read(language))))):
        yield f"{language}: the compiled file is old"


def problems_of(message: Message) -> Iterator[str]:
    """Yield what is wrong with one translation."""
    originals, forms = forms_of(message.id), forms_of(message.string)
    if not all(forms):
        yield "no translation"
    if message.fuzzy:
        yield "marked as fuzzy"
    for form in filter(None, forms):
        if placeholders(form) not in [placeholders(each) for each in originals]:
            yield f"other placeholders in {form!r}"
        if ends_of(form) != ends_of(originals[0]):
            yield f"begins or ends with a space in one of both: {form!r}"


def forms_of(text: Any) -> list[str]:
    """Return a text, or its singular and its plural."""
    return [text] if isinstance(text, str) else list(text)


def ends_of(text: str) -> tuple[bool, bool]:
    """Return whether a text begins and whether it ends with a space."""
    return text[:1].isspace(), text[-1:].isspace()


def placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, in alphabetical order."""
    return sorted(found[0] for found in PLACEHOLDER.finditer(text))


def texts_of_compiled(compiled: GNUTranslations) -> dict[Any, str]:
    """Return the texts of a compiled catalogue without its head."""
    return {key: text for key, text in compiled._catalog.items() if key}  # type: ignore[attr-defined]


def made(catalogue: Catalog) -> bytes:
    """Return a catalogue as Django reads it."""
    file = io.BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def write(language: str, found: Catalog) -> None:
    """Write the catalogue of a language with the texts of the package, and compile it."""
    known = texts(read(language)) if path_of(language).exists() else {}
    catalogue = Catalog(
        locale=language,
        header_comment=f"# The {LANGUAGES[language]} texts of the console: `python -m tests.tools.catalogues --write`.",
        project="dj-pgqueue",
        creation_date=MADE_AT,
        revision_date=MADE_AT,
        last_translator="The django_pgqueue contributors",
        language_team=LANGUAGES[language],
        fuzzy=False,
    )
    for key, message in texts(found).items():
        places = [f"in {name}" for name in sorted({name for name, _line in message.locations})]
        translation = known[key].string if key in known else ""
        catalogue.add(message.id, translation, context=message.context, auto_comments=places)
    path_of(language).parent.mkdir(parents=True, exist_ok=True)
    with path_of(language).open("wb") as file:
        write_po(file, catalogue, width=120, sort_output=True)
    path_of(language, "mo").write_bytes(made(read(language)))


def main(arguments: list[str] | None = None) -> int:
    """Write the catalogues, or print what is wrong with them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    found = extracted()
    if parser.parse_args(arguments).write:
        for language in LANGUAGES:
            write(language, found)
    wrong = [problem for language in LANGUAGES for problem in problems(language, found)]
    sys.stdout.writelines(f"{problem}\n" for problem in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
