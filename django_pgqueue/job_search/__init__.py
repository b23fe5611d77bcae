"""Find jobs for an operator: the filters, the words for states, and searches whose cost is bounded.

The lists of the admin and the commands `pgqueue jobs` and `pgqueue dead` call this package, so both find the same jobs
and use the same words.
"""

from .filters import NO_CLASS, Filters, Moment, PausedNames, is_limit_paused, latest, matching, word_of
from .index_ranges import condition_on_few, ranges
from .search import SEARCHED, Found, find, is_cut, label_of, meeting, searched_by

__all__ = [
    "NO_CLASS",
    "SEARCHED",
    "Filters",
    "Found",
    "Moment",
    "PausedNames",
    "condition_on_few",
    "find",
    "is_cut",
    "is_limit_paused",
    "label_of",
    "latest",
    "matching",
    "meeting",
    "ranges",
    "searched_by",
    "word_of",
]
