"""Find the code of the package by its name, such as `Claimer._note_failure` or `CLAIM`, wherever it is defined.

The mutants and the pages of `docs/internals` name code. A name stays right when its code moves to another module.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = "django_pgqueue"
SUFFIXES = frozenset({".py", ".html", ".txt", ".css", ".js", ".po", ".svg"})


class Span(NamedTuple):
    """The part of a text from `start` up to `end`."""

    start: int
    end: int


class Place(NamedTuple):
    """The code of one name: the file that defines it, and the parts of that file that do."""

    path: str
    spans: tuple[Span, ...]


class CodeNames:
    """The names of a package: its classes, functions and constants, with the places of their code.

    Args:
        texts: the text of each file, by its path.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._places: dict[str, list[tuple[str, Place]]] = defaultdict(list)
        for path, text in texts.items():
            if path.endswith(".py"):
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                for name, spans in _spans_of_names(text).items():
                    self._places[name].append((module, Place(path, tuple(spans))))

    def places(self, name: str) -> list[Place]:
        """Return every place whose code has this name; a prefix of the name can be the last parts of its module."""
        parts = name.split(".")
        return [
            place
            for cut in range(len(parts))
            for module, place in self._places.get(".".join(parts[cut:]), ())
            if not cut or f".{module}".endswith("." + ".".join(parts[:cut]))
        ]

    def has_method(self, name: str) -> bool:
        """Return whether some class or function defines this name inside of it."""
        return any(each.endswith(f".{name}") for each in self._places)

    def place(self, name: str, text: str = "") -> Place:
        """Return the place of the code with this name. Of several definitions, return the one that contains `text`.

        Raises:
            LookupError: if no code has the name, or more than one.
        """
        found = self.places(name)
        if len(found) > 1 and text:
            found = [place for place in found if self.contains(place, text)] or found
        if len(found) != 1:
            where = "nowhere" if not found else "in " + ", ".join(place.path for place in found)
            raise LookupError(f"{name} is defined {where}: name one definition, with the last parts of its module")
        return found[0]

    def contains(self, place: Place, text: str) -> bool:
        """Return whether the code at a place contains a text."""
        return any(text in self.texts[place.path][start:end] for start, end in place.spans)

    def whole_file(self, name: str) -> Place:
        """Return the place of a whole file, by its name or by the last parts of its path.

        Raises:
            LookupError: if no file has this name, or more than one.
        """
        found = [path for path in self.texts if f"/{path}".endswith(f"/{name}")]
        if len(found) != 1:
            raise LookupError(f"{name} is the end of the paths {found}: name one file, with its last directories")
        return Place(found[0], (Span(0, len(self.texts[found[0]])),))


@cache
def code_names(directory: str = PACKAGE) -> CodeNames:
    """Return the names of the package in this checkout, or of another directory."""
    files = sorted(path for path in (CHECKOUT / directory).rglob("*") if path.suffix in SUFFIXES)
    return CodeNames({path.relative_to(CHECKOUT).as_posix(): path.read_text() for path in files})


@cache
def _spans_of_names(text: str) -> dict[str, list[Span]]:
    """Return the parts of a module that define each of its names; an overloaded function has several."""
    lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    spans = defaultdict(list)
    for name, first_line, last_line in _definitions(ast.parse(text).body, "", in_function=False):
        spans[name].append(Span(lines[first_line - 1], lines[last_line]))
    return spans


def _definitions(body: Iterable[ast.AST], prefix: str, *, in_function: bool) -> Iterator[tuple[str, int, int]]:
    """Yield each name that these statements define, with its first and last line. Local variables are left out."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first_line = min(each.lineno for each in (node, *node.decorator_list))
            yield prefix + node.name, first_line, node.end_lineno or node.lineno
            is_function = not isinstance(node, ast.ClassDef)
            yield from _definitions(node.body, f"{prefix}{node.name}.", in_function=is_function)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            for name in () if in_function else names:
                yield prefix + name, node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, (ast.stmt, ast.excepthandler)):
            yield from _definitions(ast.iter_child_nodes(node), prefix, in_function=in_function)
