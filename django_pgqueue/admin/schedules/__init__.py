"""The parts of the pages of schedules."""
