"""Reading documents from files without a database: counts, titles, encodings and kinds."""

from pathlib import Path

import pytest

from example_project.library.reading import NotText, decode, kind_of, read


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "lines", "words"),
    [("", 0, 0), ("\n", 1, 0), ("a", 1, 1), ("a\n", 1, 1), ("a b\r\nc\n\nd", 4, 4), ("a\x0cb\x1cc\u2028d", 1, 4)],
)
def test_read_text_counts_lines_and_words(tmp_path: Path, text: str, lines: int, words: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    reading = read(path, "prose")
    assert (reading.lines, reading.words) == (lines, words)


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("a.py", '#!x\n# y\n\nr"""  The docstring. """\n', "The docstring."),
        ("a.py", '"""\nOn the next line.\nMore.\n"""', "On the next line."),
        ("a.py", "import this\n", "a.py"),
        ("a.md", "\n# Heading\ntext", "Heading"),
        ("METADATA", "Name: x\nSummary: What it is\n", "What it is"),
        ("a.css", "body {}", "a.css"),
        ("a.txt", "", "a.txt"),
    ],
)
def test_read_document_finds_its_title(tmp_path: Path, name: str, text: str, title: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read(path, str(kind_of(path))).title == title


@pytest.mark.parametrize(("data", "reason"), [(b"a\0b", "binary file: "), (b"\xff", "not UTF-8 text: ")])
def test_decode_binary_or_latin_1_raises_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotText, match=reason):
        decode(data)


def test_kind_of_unknown_suffix_returns_none() -> None:
    assert kind_of(Path("a.xyz")) is None
