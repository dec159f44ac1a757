# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The pages: links lead somewhere, the site has them all, and the model of the tutorial is one that the compiler takes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dycl_tvm

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file = target.split("#")[0]
        assert re.match("https?:", target) or not file or (page.parent / file).exists(), f"{page.name} links to {target}"


def test_the_site_has_every_page() -> None:
    navigation = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[1]
    named = set(re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE))
    assert {page.name for page in PAGES} <= named


def test_the_model_of_the_tutorial(tmp_path: Path) -> None:
    source = re.search(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert source is not None
    (tmp_path / "tutorial_model.py").write_text(source[1], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tutorial_model", tmp_path / "tutorial_model.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["tutorial_model"] = module
    spec.loader.exec_module(module)
    graph = dycl_tvm.stage(module.net, (torch.randn(1, 3, 32, 32),))
    assert "if y.max() > 0.9:" in repr(graph)
