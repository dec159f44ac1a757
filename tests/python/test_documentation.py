# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The pages: links lead somewhere, the site has them all, and the model of the tutorial is one that the compiler takes."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import dycl_tvm
import pages
from dycl_tvm import errors
from dycl_tvm.cli import exit_codes
from dycl_tvm.runtime import capi

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file = target.split("#")[0]
        assert re.match("https?:", target) or not file or (page.parent / file).exists(), f"{page.name} links to {target}"


def test_contributing_fits_one_screen() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80


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


@pytest.fixture
def site_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `make docs` hands to mkdocs, with the graph of one network."""
    site = _site()
    monkeypatch.setattr(site, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(sys, "argv", ["make_site.py", "--networks", "act_rnn", "--sources-only"])
    site.main()
    assert "<svg" in (tmp_path / "pages" / "graphs" / "act_rnn.html").read_text(encoding="utf-8")
    return {str(path.relative_to(site.PAGES)): path.read_text(encoding="utf-8") for path in site.PAGES.rglob("*.*")}


def test_the_site_is_whole(site_pages: dict[str, str]) -> None:
    """Its pages are there, and no more; each link leads to one, and to a heading. mkdocs refuses others, and files of the repository."""
    navigation = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[1]
    texts = {name: text for name, text in site_pages.items() if name.endswith(".md")}
    assert set(re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE)) == set(texts)
    wrong = []
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)):
            page, _, anchor = target.partition("#")
            if not re.match("https?:", target):
                if (page or name) not in site_pages or (anchor and anchor not in _anchors(texts[page or name])):
                    wrong.append(f"{name}: {target}")
    assert wrong == []


def test_the_reference_has_what_is_public(site_pages: dict[str, str]) -> None:
    named = re.findall(r"^::: (\S+)\.(\w+)$", site_pages["api.md"], flags=re.MULTILINE)
    assert len(named) == site_pages["api.md"].count(":::")
    for module, name in named:  # the site reads sources as well, so that Ray need not be there
        tree = ast.parse((ROOT / "python" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        (made,) = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name)
        assert ast.get_docstring(made), name
    public = {name for name in dycl_tvm.__all__ if callable(value := getattr(dycl_tvm, name)) and value.__module__ != errors.__name__}
    assert public <= {name for _, name in named}


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of docs/errors.md."""
    _, _, section = (DOCS / "errors.md").read_text(encoding="utf-8").partition(f"## {heading}\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _said(cell: str) -> bool:
    return len(cell.split()) >= 3


def test_every_class_of_errors_is_in_the_table() -> None:
    classes = {name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, Exception)}
    rows = _rows("In Python")
    assert sorted(row[0] for row in rows) == sorted(f"`{name}`" for name in classes)
    assert [row for row in rows if not _said(row[1]) or not _said(row[2])] == []


def test_every_number_of_c_is_in_the_table() -> None:
    """With the exception that Python makes of it."""
    header = (ROOT / "src" / "runtime" / "include" / "dycl" / "dycl.h").read_text(encoding="utf-8")
    body = header.partition("enum DyclStatus {")[2].partition("};")[0]
    numbers = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", body)}
    assert numbers.pop("DYCL_OK") == 0
    rows = _rows("In C and C++")
    assert {row[1]: int(row[0]) for row in rows} == {f"`{name}`": number for name, number in numbers.items()}
    library: Any = types.SimpleNamespace(dycl_last_error=lambda: b"", dycl_last_error_kind=lambda: b"ValueError")
    for number, _, python, when, what_to_do in rows:
        assert _said(when) and _said(what_to_do)
        with pytest.raises(Exception) as raised:
            capi.check(library, int(number))
        assert f"`{type(raised.value).__name__}`" == python


def test_every_exit_code_is_in_the_table() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert sorted(int(row[0]) for row in _rows("Exit codes of the command")) == sorted(codes)


def test_the_model_of_the_tutorial(tmp_path: Path) -> None:
    source, *_ = pages.programs("tutorial.md", "# From a model to C++ and to a board", "python")
    (tmp_path / "tutorial_model.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tutorial_model", tmp_path / "tutorial_model.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["tutorial_model"] = module
    spec.loader.exec_module(module)
    graph = dycl_tvm.stage(module.net, (torch.randn(1, 3, 32, 32),))
    assert "if y.max() > 0.9:" in str(graph)
