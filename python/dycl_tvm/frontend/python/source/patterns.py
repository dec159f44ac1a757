# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the patterns of a ``match`` statement ask of its subject, as a nested tuple that the rewritten code carries."""

from __future__ import annotations

import ast
from typing import Any

#: None: nothing. Otherwise a kind and what belongs to it: ("value",), ("is",), ("or", patterns), ("sequence", patterns before the star,
#: patterns after it), ("mapping", (key, pattern) pairs), ("class", patterns by position, (attribute, pattern) pairs).
Pattern = Any


def described(pattern: ast.pattern | None) -> Pattern:
    """Describe a pattern."""
    if isinstance(pattern, ast.MatchAs):
        return described(pattern.pattern)
    if isinstance(pattern, ast.MatchValue):
        return ("value",)
    if isinstance(pattern, ast.MatchSingleton):
        return ("is",)
    if isinstance(pattern, ast.MatchOr):
        return ("or", tuple(map(described, pattern.patterns)))
    if isinstance(pattern, ast.MatchSequence):
        stars = [i for i, p in enumerate(pattern.patterns) if isinstance(p, ast.MatchStar)]
        star = stars[0] if stars else len(pattern.patterns)
        return ("sequence", tuple(map(described, pattern.patterns[:star])), tuple(map(described, pattern.patterns[star + 1 :])))
    if isinstance(pattern, ast.MatchMapping):
        keys = [k.value if isinstance(k, ast.Constant) else None for k in pattern.keys]
        return ("mapping", tuple(zip(keys, map(described, pattern.patterns))))
    if isinstance(pattern, ast.MatchClass):
        return ("class", tuple(map(described, pattern.patterns)), tuple(zip(pattern.kwd_attrs, map(described, pattern.kwd_patterns))))
    return None
