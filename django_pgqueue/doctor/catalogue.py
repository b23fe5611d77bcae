"""All checks of the doctor, in the order in which `examine()` runs them and the command and the page show them.

To add a check, write a function with `@check(...)` in one of the modules below, add it to the tuple of that module, and
add it to both tables of docs/production/doctor.md. A test compares the page with the checks.
"""

from __future__ import annotations

from typing import Final

from .access_checks import ACCESS_CHECKS
from .findings import Check
from .job_checks import JOB_CHECKS
from .pooler_checks import POOLER_CHECKS
from .sequence_checks import SEQUENCE_CHECKS
from .server_checks import SERVER_CHECKS
from .session_checks import SESSION_CHECKS
from .settings_checks import INSTALLATION_CHECKS, LIMIT_CHECKS, SETTINGS_CHECKS
from .storage_checks import STORAGE_CHECKS
from .worker_checks import WORKER_CHECKS

CHECKS: Final[tuple[Check, ...]] = (
    *SERVER_CHECKS,
    *POOLER_CHECKS,
    *ACCESS_CHECKS,
    *SETTINGS_CHECKS,
    *INSTALLATION_CHECKS,
    *WORKER_CHECKS,
    *JOB_CHECKS,
    *LIMIT_CHECKS,
    *SESSION_CHECKS,
    *STORAGE_CHECKS,
    *SEQUENCE_CHECKS,
)
