"""Our own tests."""

import os
import sys

# Hundreds of processes are started here, and each would compile the package anew: a fifth of what its start takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
