"""The stand-ins and the grammar, compared with Celery. The tests run only where Celery is installed."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue.management import celery_times
from django_pgqueue.management.celery_times import CannotMove, numbers, times_of

from .standins import Crontab, Every, Solar

theirs = pytest.importorskip("celery.schedules", reason="Celery is not a dependency of the tests: pip install celery")
WORDS = ["mon", "Sunday", "jan", "DEC", "fri", "x", "", "*", "1", "5", "7", "12", "31", "59", "60", "-1"]
PARTS = st.one_of(
    st.sampled_from(WORDS),
    st.builds("{}-{}".format, st.sampled_from(WORDS), st.sampled_from(WORDS)),
    st.builds("{}/{}".format, st.sampled_from(WORDS), st.integers(1, 20)),
    st.builds("{}-{}/{}".format, st.integers(0, 60), st.integers(0, 60), st.integers(1, 20)),
)
TEXTS = st.lists(PARTS, min_size=1, max_size=3).map(",".join)
ALL = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


@given(text=TEXTS, field=st.sampled_from([celery_times.MINUTE, celery_times.DAY_OF_MONTH, celery_times.DAY_OF_WEEK]))
def test_numbers_of_text_are_those_of_celery(text, field):
    """We refuse more than Celery, whose patterns ignore the end of a part, but never read a text differently."""
    try:
        ours = numbers(text, field)
    except CannotMove:
        return
    try:
        expected = theirs.crontab_parser(field.high - field.low + 1, field.low).parse(text)
    except (theirs.ParseException, ValueError):
        expected = set()
    assert ours == expected


def test_crontab_of_celery_has_the_attributes_of_the_standin():
    real = theirs.crontab(minute="*/15", hour=[7, 8], day_of_week="mon-fri", day_of_month="1-7", month_of_year="jan")
    standin = Crontab(
        minute={0, 15, 30, 45},
        hour={7, 8},
        day_of_week={1, 2, 3, 4, 5},
        day_of_month=set(range(1, 8)),
        month_of_year={1},
    )
    assert [getattr(real, name) for name in (*ALL, "nowfun")] == [getattr(standin, name) for name in (*ALL, "nowfun")]
    assert times_of(real, "UTC") == times_of(standin, "UTC")
    assert times_of(theirs.crontab(), "UTC") == ("* * * * *", "UTC")


def test_other_schedules_of_celery_have_the_attributes_of_the_standins():
    assert (
        times_of(theirs.schedule(60), None) == times_of(Every(timedelta(minutes=1)), None) == ("every 1 minute", None)
    )
    real = theirs.solar.__new__(theirs.solar)  # its constructor needs one more package
    real.event = Solar("sunset", 1, 1).event
    for sun in (real, Solar("sunset", 1, 1)):
        with pytest.raises(CannotMove, match="solar"):
            times_of(sun, "UTC")
