"""Names that every other package may use. Nothing here reads a setting, a table or another package."""
