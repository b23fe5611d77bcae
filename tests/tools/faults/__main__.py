"""`python -m tests.tools.faults`: see bin/faults."""

import sys

from django.conf import settings

from tests.tools.faults.cli import main

if __name__ == "__main__":
    settings.configure()  # scenarios make some claims themselves, with the defaults
    sys.exit(main())
