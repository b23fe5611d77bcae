"""Arrays that are sent as text come back from PostgreSQL as the same values."""

from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue.db.statements import numbers, texts

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


def as_read(engine, text, kind):
    [value] = engine.execute(f"SELECT %s::{kind}[]", [text]).fetchone()
    return value


@given(st.lists(TEXT | st.sampled_from(["NULL", "", "{}", '"', "\\", ",", " "])))
def test_texts_any_strings_come_back_equal(engine, values):
    assert as_read(engine, texts(values), "varchar") == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_any_integers_come_back_equal(engine, values):
    assert as_read(engine, numbers(values), "bigint") == values


@given(st.lists(st.floats(allow_nan=False)))
def test_numbers_any_floats_come_back_equal(engine, values):
    assert as_read(engine, numbers(values), "float8") == values
