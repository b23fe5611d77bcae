"""Write completions, and notify the application and the waiters about them."""
