"""Find jobs for an operator: the words for states, the filters, and searches whose cost is bounded.

The lists of the admin and the commands `pgqueue jobs` and `pgqueue dead` call this package, so both find the same jobs
and use the same words.
"""

from django_pgqueue.states import FINISHED_WORDS, READY_WORDS, RUNNING_WORDS, STATE_OF, WAITING_WORDS, WORDS

from .filters import LATEST_ERROR, NO_CLASS, Filters, Moment, PausedNames, latest, word_of
from .index_ranges import Range, condition_of, ranges
from .search import SEARCHED, Found, find, is_cut, label_of, meeting

__all__ = [
    "FINISHED_WORDS",
    "LATEST_ERROR",
    "NO_CLASS",
    "READY_WORDS",
    "RUNNING_WORDS",
    "SEARCHED",
    "STATE_OF",
    "WAITING_WORDS",
    "WORDS",
    "Filters",
    "Found",
    "Moment",
    "PausedNames",
    "Range",
    "condition_of",
    "find",
    "is_cut",
    "label_of",
    "latest",
    "meeting",
    "ranges",
    "word_of",
]
