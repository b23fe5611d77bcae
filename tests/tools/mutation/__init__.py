"""Defects put into a copy of the package, one at a time, to see which test notices."""
