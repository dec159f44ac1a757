# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Moments of staging: versions of memory, births of objects. What is younger than a branch exists on one of its sides only."""

from __future__ import annotations

import itertools

#: Numbers the moments.
clock = itertools.count(1)


class Dated:
    """Base of staging's own objects that know when they were made."""

    __slots__ = ()
    born: int


class OwnValue:
    """Base of what staging puts in the place of the user's values: not an object of the program."""

    __slots__ = ()
