"""How often the sweeps for batches and for missed events run."""

from __future__ import annotations

from typing import Final

SWEEP_SECONDS: Final = 10.0
"""The interval while there are batches, or jobs that wait for events."""
UNUSED_SECONDS: Final = 60.0
"""The interval after a sweep that found none. An idle worker of an application without them runs few statements."""
