"""The pages and forms with which an operator changes limits."""
