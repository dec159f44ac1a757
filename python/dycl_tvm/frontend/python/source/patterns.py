# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The patterns of ``match`` statements."""

from __future__ import annotations

import ast
from typing import Any

from dycl_tvm.frontend.python.source.syntax import operator_named, placed


class Singletons(ast.NodeTransformer):
    """Lets patterns compare with an operator's objects where they would ask by ``is`` for True, False or None."""

    def visit_MatchSingleton(self, node: Any) -> Any:
        """Make a value pattern of it."""
        return placed(ast.MatchValue(placed(operator_named(f"match_{node.value}".lower()), node)), node)


def class_depth(pattern: Any, depth: int = 0) -> int:
    """Return how deep in the subject the deepest class pattern looks; -1 if there is none."""
    inner = depth if isinstance(pattern, (ast.MatchOr, ast.MatchAs)) else depth + 1
    below = [class_depth(p, inner) for p in ast.iter_child_nodes(pattern) if isinstance(p, ast.pattern)]
    return max([depth if isinstance(pattern, ast.MatchClass) else -1, *below])
