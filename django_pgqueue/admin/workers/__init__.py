"""The parts of the pages of worker processes."""
