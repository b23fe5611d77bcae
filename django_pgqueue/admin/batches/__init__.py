"""The parts of the pages of batches."""
