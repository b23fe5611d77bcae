"""Test how the lines of code of the package are counted."""

from __future__ import annotations

import subprocess

from tests.tools import lines

MODULE = '''"""What it is.

More of it.
"""

import os  # why


class Row:
    """A row."""

    name = "a"
    """Its name."""

    # A comment.
    QUERY = """
        SELECT 1
    """


def answer(
    first: int,
) -> int:
    """Return the answer."""
    text = """two
    lines"""
    return len(text + os.sep) + first
'''


def test_blanks_comments_and_docstrings_do_not_count():
    assert lines.lines_of_code(MODULE) == len(
        [
            *("import os", "class Row:", "name", "QUERY", "SELECT", '"""'),
            *("def answer(", "first: int,", ") -> int:", "text", "lines", "return"),
        ]
    )


def test_working_tree_is_counted_by_rooms(capsys, monkeypatch):
    monkeypatch.setattr(lines, "PACKAGE", "django_pgqueue/stats")
    assert lines.run([]) == 0
    printed = capsys.readouterr().out.splitlines()
    numbers = {room: int(number.replace(",", "")) for number, room in (line.split() for line in printed)}
    assert numbers.pop("all") == sum(numbers.values())
    assert set(numbers) == {f"django_pgqueue/stats{room}" for room in ("", "/causes", "/graphs", "/limits")}


def test_difference_to_a_commit_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(
        lines, "_modules", {None: [("a/b.py", "x = 1\ny = 2\n")], "then": [("a/c/d.py", "x = 1\n")]}.get
    )
    assert lines.run(["then"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["+2", "2", "a"],
        ["-1", "0", "a/c"],
        ["+1", "2", "all"],
    ]


def test_modules_of_a_commit_are_read_from_git(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments], cwd=tmp_path, check=True
        )

    package = tmp_path / lines.PACKAGE
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    (package / "page.html").write_text("<p>")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    (package / "a.py").write_text("x = 1\ny = 2\n")
    monkeypatch.setattr(lines, "CHECKOUT", tmp_path)
    assert lines.counted() - lines.counted("HEAD") == {lines.PACKAGE: 1}
