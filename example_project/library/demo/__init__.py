"""What the `demo` command is made of: feeding, watching, adding up, checking."""
