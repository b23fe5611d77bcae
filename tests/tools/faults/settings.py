"""Settings of the processes that the fault suite starts: a worker's in tests, with the suite's own app."""

from tests import worker_settings

globals().update({name: value for name, value in vars(worker_settings).items() if name.isupper()})

INSTALLED_APPS = [*worker_settings.INSTALLED_APPS, "tests.tools.faults.app"]  # type: ignore[attr-defined]  # put there by name
