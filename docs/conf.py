"""The documentation site: bin/docs builds it into docs/_build/html."""

import django
from django.conf import settings

import django_pgqueue

settings.configure(INSTALLED_APPS=["django_pgqueue"], DATABASES={})  # the reference imports the models
django.setup()

project = "django_pgqueue"
author = "The django_pgqueue contributors"
copyright = f"2026, {author}"  # noqa: A001 -- Sphinx's own name for it
version = release = django_pgqueue.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["tasklist"]  # the production checklist
myst_heading_anchors = 4  # links to headings, as in a checkout
myst_fence_as_directive = ["mermaid"]
mermaid_fullscreen = False
mermaid_height = "auto"

default_role = "code"  # docstrings have names in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_extra_path = ["../django_pgqueue/llms.txt"]  # a summary of the site; the wheel has it too
html_title = f"django_pgqueue {release}"
html_theme_options = {"top_of_page_buttons": []}
