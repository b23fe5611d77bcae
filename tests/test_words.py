"""Plain English: the worst patterns of unclear text stay out of the product's code and out of the documentation.

The tests check comments, docstrings and other strings in `django_pgqueue/`, and the prose of the documentation. They
skip code blocks.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules import for_each

TOP = Path(__file__).parents[1]
CODE = sorted(path for path in TOP.glob("django_pgqueue/**/*.py") if "migrations" not in path.parts)
PAGES = sorted(
    [
        *(path for path in TOP.glob("docs/**/*.md") if "_build" not in path.parts),
        *(TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md", TOP / ".github/SECURITY.md"),
    ]
)
PATTERNS = {
    "'tell' and 'told': say notify, send, report or return": r"\b(tells?|told|telling|teller)\b",
    "'mend': say fix": r"\bmend(s|ed|ing)?\b",
    "'whoever': name the actor": r"\bwhoever\b",
    "'is none': say that it is not one": r"(?<!there )\b(is|are|was|were) none\b",
    "'for' as 'because'": r"[,;:] for (it|they|we|he|this|that|there|nobody|nothing|no \w+|the \w+|an? \w+|its \w+) "
    r"(is|are|was|were|has|have|had|can|cannot|may|might|must|would|could|will|does|do|did)\b",
    "'else' as 'otherwise'": r"\b(or|would|could|will|may|might|must) else\b|(^|[.;:] )Else\b",
    "'give back': say release or requeue": r"\b(gives?|giving|gave|given) (it |them |that |jobs? |this )?back\b",
    "'at the most': say at most": r"\bat the most\b",
    "'so as to': say to": r"\bso as to\b",
}
STARTS = re.compile(r"(Who|What|Whoever)\b[^?]*[.:]$", re.DOTALL)
EXCEPTIONS: dict[str, tuple[str, ...]] = {}
"""Parts of correct sentences that the patterns would report, by file."""


def texts_of_code(path: Path) -> Iterator[str]:
    """Yield the comments of a module, with consecutive lines as one text, and its strings."""
    source = path.read_text()
    comment: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string and "type: ignore" not in token.string:
            if token.start[0] != last + 1:
                yield " ".join(comment)
                comment = []
            comment.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(comment)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "/* pgqueue:" not in node.value:
            yield node.value


def texts_of_page(path: Path) -> Iterator[str]:
    """Yield the paragraphs, list items and table cells of a page, without code."""
    prose = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*|#\d] ?)|\|", prose):
        yield re.sub(r"`[^`]*`", "`code`", paragraph)


def sentences(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text) if part.strip()]


def complaints(name: str, texts: Iterator[str]) -> list[str]:
    """Return a line for each problem in these texts."""
    found = []
    for sentence in (each for text in texts for each in sentences(text)):
        if any(part in sentence for part in EXCEPTIONS.get(name, ())):
            continue
        found += [f"{why}: {sentence}" for why, pattern in PATTERNS.items() if re.search(pattern, sentence)]
        if STARTS.match(sentence) and not sentence.startswith("What is new"):
            found.append(f"a sentence without a subject: {sentence}")
    return found


@for_each(CODE)
def test_code_is_written_in_plain_english(path):
    assert complaints(str(path.relative_to(TOP)), texts_of_code(path)) == []


@for_each(PAGES)
def test_page_is_written_in_plain_english(path):
    assert complaints(str(path.relative_to(TOP)), texts_of_page(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The worker tells of it.",
        "Errors that no repetition mends.",
        "It is none.",
        "It waits, for it has no connection.",
        "It would else wait for ever.",
        "Who meets a held key waits.",
        "What is claimed ahead is given back.",
    ],
)
def test_complaints_unclear_sentence_is_reported(text):
    assert complaints("", iter([text]))


@pytest.mark.parametrize("text", ["What can go wrong?", "Wait for it, for a second at most.", "if a: b else: c"])
def test_complaints_plain_sentence_passes(text):
    assert not complaints("", iter([text]))
