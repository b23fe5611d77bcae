"""Integrations with other libraries, each in a package of its own that needs the extra of the same name.

Nothing else in `django_pgqueue` imports them, so a project that does not use them needs none of these libraries.
"""
