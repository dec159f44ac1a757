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
import pages

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


def _site() -> Any:
    spec = importlib.util.spec_from_file_location("dycl_make_site", DOCS / "site" / "make_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _anchors(text: str) -> set[str]:
    """Return the names that the site gives to headings."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", head)).strip().lower()) for head in heads}


def test_links_of_the_site_lead_to_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the repository are no pages; mkdocs refuses a link to one, and an anchor that no heading has."""
    site = _site()
    monkeypatch.setattr(site, "PAGES", tmp_path / "pages")
    site.write_pages()
    texts = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "pages").iterdir()}
    written = {"api.md", "errors.md", "graphs.md"}  # from the package
    wrong = []
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)):
            page, _, anchor = target.partition("#")
            if not re.match("https?:", target) and page not in written:
                if (page or name) not in texts or (anchor and anchor not in _anchors(texts[page or name])):
                    wrong.append(f"{name}: {target}")
    assert len(texts) > 20
    assert wrong == []


def test_the_model_of_the_tutorial(tmp_path: Path) -> None:
    source, *_ = pages.programs("tutorial.md", "# From a model to C++ and to a board", "python")
    (tmp_path / "tutorial_model.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tutorial_model", tmp_path / "tutorial_model.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["tutorial_model"] = module
    spec.loader.exec_module(module)
    graph = dycl_tvm.stage(module.net, (torch.randn(1, 3, 32, 32),))
    assert "if y.max() > 0.9:" in repr(graph)
