"""`python -m tests.tools.faults`: see bin/faults."""

import sys

from tests.tools.faults.cli import main

sys.exit(main())
