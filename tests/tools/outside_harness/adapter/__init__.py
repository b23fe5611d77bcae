"""The adapter: a program that speaks the protocol of the harness, and a Django project with one task."""
