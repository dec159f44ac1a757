# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Makes the documentation site: the pages of docs/, the interface from its docstrings, and the graphs of the zoo in their viewer.

python docs/site/make_site.py [--networks NAME,...] [--sources-only]
"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "site" / "pages"
#: Pages that lie outside of docs/.
SITE_NAMES = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
}


def with_links_of_the_site(page: Path) -> str:
    """Return the text of a page whose links lead to pages of the site; where one leads to another file of the repository its text stays."""

    def of_the_site(link: re.Match[str]) -> str:
        text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        file = (page.parent / path).resolve()
        if not path or re.match("[a-z]+:", target):
            return link[0]
        name = SITE_NAMES.get(file) or (file.name if file.parent == ROOT / "docs" and file.suffix == ".md" else None)
        return f"[{text}]({name}{hash_}{anchor})" if name else text

    return re.sub(r"\[([^][]*)\]\(([^)\s]+)\)", of_the_site, page.read_text(encoding="utf-8"))


def write_pages() -> None:
    """Write the pages that are text."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for path in [*sorted((ROOT / "docs").glob("*.md")), *SITE_NAMES]:
        (PAGES / SITE_NAMES.get(path, path.name)).write_text(with_links_of_the_site(path), encoding="utf-8")
    shutil.copy2(Path(__file__).with_name("site.css"), PAGES)


def write_reference() -> None:
    """Write the page of the interface, from the package."""
    import dycl_tvm
    from dycl_tvm import errors

    homes = {name: inspect.getmodule(getattr(dycl_tvm, name)).__name__ for name in dycl_tvm.__all__ if _has_a_docstring(dycl_tvm, name)}
    first = ["build", "load", "Module", "Artifact", "TensorSpec", "Dim"]
    names = [name for name in [*first, *sorted(homes)] if name in homes and homes[name] != errors.__name__]
    entries = [f"::: {homes[name]}.{name}" for name in dict.fromkeys(names)]
    serving = ["::: dycl_tvm.serve.ray_serve.deployment", "::: dycl_tvm.serve.server.Server", "::: dycl_tvm.serve.settings.Settings"]
    parts = ["# Python", "All of these are names of `dycl_tvm`.", *entries, "# Serving", *serving]
    (PAGES / "api.md").write_text("\n\n".join(parts), encoding="utf-8")


def _has_a_docstring(package: object, name: str) -> bool:
    value = getattr(package, name)
    return (inspect.isclass(value) or inspect.isfunction(value)) and bool(value.__doc__)


def write_graphs(chosen: list[str] | None) -> None:
    """Write the graphs of networks of the zoo as pages that can be moved and zoomed, and a page with links to them."""
    import dycl_tvm
    from dycl_tvm import zoo
    from dycl_tvm.cli.main import main

    folder = PAGES / "graphs"
    folder.mkdir()
    lines = ["# Graphs of the zoo", "The control flow graph of each network, as `dycl-tvm inspect zoo:NAME -o NAME.html` writes it.", ""]
    for name in chosen if chosen is not None else zoo.names():
        page = folder / f"{name}.html"
        if main(["inspect", f"zoo:{name}", "-q", "-o", str(page)]):
            sys.exit(f"the graph of {name} could not be written")
        # Where the package lies on this machine is nobody's business.
        page.write_text(page.read_text(encoding="utf-8").replace(f"{Path(dycl_tvm.__file__).parents[1]}/", ""), encoding="utf-8")
        lines.append(f"- [{name}](graphs/{name}.html): {zoo.describe(name)}")
    (PAGES / "graphs.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Make the site in build/site/html."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help="of the zoo, whose graphs are shown (default: all)")
    parser.add_argument("--sources-only", action="store_true", help="write the pages, do not make HTML of them")
    args = parser.parse_args()
    write_pages()
    write_reference()
    write_graphs(None if args.networks is None else [name for name in args.networks.split(",") if name])
    if not args.sources_only:
        # strict: a link or an anchor that leads nowhere is an error
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(Path(__file__).with_name("mkdocs.yml"))]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
