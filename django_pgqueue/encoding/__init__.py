"""How arguments, results and headers become text, and how they are read again."""
