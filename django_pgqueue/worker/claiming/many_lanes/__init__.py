"""Read the lanes page by page, if there are too many for one statement."""
