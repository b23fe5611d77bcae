"""The doctor: examine the database, the workers and the settings, and report what slows or stops the queue.

`manage.py pgqueue doctor`, the admin's page *Doctor* and the system checks for databases call it. It only reads: every
statement runs in a read-only transaction with a time limit.
"""

from .examination import examine
from .findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
