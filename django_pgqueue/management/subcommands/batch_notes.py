"""The texts that the commands for batches and workflows share, about one that does not go on."""

from __future__ import annotations

from typing import Final

BLOCKED: Final = "No job is ready or running. Waiting jobs depend on failed ones: retry those, or cancel the rest."
