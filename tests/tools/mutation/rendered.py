"""The value of a constant that is joined from literals and other constants, read from the source of its module.

The mutants call it: a mutant of a statement changes the text that PostgreSQL gets, whichever clauses hold that text.
Nothing is imported, because the source can be that of a package in which code has moved.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

GROUND = "django_pgqueue.ground."


def rendered(name: str, path: str, texts: Mapping[str, str]) -> str:
    """Return the value of a constant, or "" if it is not joined from literals and earlier constants with `+`.

    Args:
        name: the name of the constant, which can have the last parts of its module before it.
        path: the file of its module.
        texts: the text of each file, by its path.
    """
    return _texts_of(path, texts).get(name.rpartition(".")[2], "")


def _texts_of(path: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the constants of a module that are texts, with those that it imports from beside it and from `ground`."""
    found: dict[str, str] = {}
    for node in ast.parse(texts.get(path, "")).body:
        match node:
            case ast.ImportFrom(module=str(module), level=level) if level or module.startswith(GROUND):
                other = f"{path.rpartition('/')[0]}/{module}.py" if level else f"{module.replace('.', '/')}.py"
                imported = _texts_of(other, texts)
                found |= {each.name: imported[each.name] for each in node.names if each.name in imported}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if (text := _joined(value, found)) is not None:
                    found[name] = text
    return found


def _joined(value: ast.expr, known: Mapping[str, str]) -> str | None:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _joined(left, known), _joined(right, known)
            return None if first is None or second is None else first + second
    return None
