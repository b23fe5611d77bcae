"""Template tags for the templates of this package."""
