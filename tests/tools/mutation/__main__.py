"""`python -m tests.tools.mutation`: see `runner`."""

import sys

from tests.tools.mutation.runner import run

sys.exit(run(sys.argv[1:]))
