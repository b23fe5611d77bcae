"""Charts as SVG, and their axes."""
