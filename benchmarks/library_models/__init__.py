# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Unedited models of public libraries, staged or built, and compared with eager: ``make models``."""

from library_models import generate_suite, timm_suite, transformers_suite

SUITES = {
    "transformers": transformers_suite.SUITE,
    "transformers-open": transformers_suite.OPEN,
    "timm": timm_suite.SUITE,
    "generate": generate_suite.SUITE,
}
