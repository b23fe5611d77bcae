"""Watches and arms a process when it starts, if its environment says so."""

from django.apps import AppConfig

from tests.tools.faults import failpoints
from tests.tools.faults.app import receivers


class FaultsConfig(AppConfig):
    """No models: the suite makes its tables itself, in its own databases."""

    name = "tests.tools.faults.app"
    label = "faults"

    def ready(self) -> None:
        """Wrap the seams; in a process without the suite's environment this does nothing."""
        failpoints.install()
        receivers.install()
