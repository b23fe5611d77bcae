"""The program that is counted: a Django project whose worker runs warm jobs in batches of a fixed size.

`tests.tools.benchmarks.counts` starts it as a process of its own, also with an older checkout of this package. It
therefore imports nothing of this repository except `django_pgqueue`.
"""
