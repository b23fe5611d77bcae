"""Archive finished jobs, and erase their arguments, results and errors.

Applications and `manage.py pgqueue archive|erase` call these functions. They work in batches, leave locked jobs alone,
and change a job only if it is as they saw it: a job that was retried since stays as it is.
"""

from .archiving import ARCHIVED_STATES, Archived, archive
from .erasing import Erased, count_erasable, erasable_pages, erase

__all__ = ["ARCHIVED_STATES", "Archived", "Erased", "archive", "count_erasable", "erasable_pages", "erase"]
