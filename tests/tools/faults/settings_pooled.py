"""Settings of a worker behind a pooler, with an alias that leads past it."""

import json
import os

from tests.tools.faults import settings

globals().update({name: value for name, value in vars(settings).items() if name.isupper()})

DATABASES = settings.DATABASES | {  # type: ignore[attr-defined]  # put there by name
    "direct": settings.DATABASES["default"] | json.loads(os.environ["PGQUEUE_FAULTS_DIRECT"])  # type: ignore[attr-defined]  # as above
}
