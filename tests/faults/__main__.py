"""`python -m tests.faults`: see bin/faults."""

import sys

from tests.faults.cli import main

sys.exit(main())
