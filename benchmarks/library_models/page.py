# Licensed under the Apache License, Version 2.0; see LICENSE.
"""docs/models.md."""

from __future__ import annotations

from collections import Counter
from typing import Any

from library_models import SUITES
from library_models.results import Results

_HEAD = """# Models of public libraries

Written by `make models`, which compiles models that others have written, unedited, and compares each with eager: several inputs, one
after the other, the first one twice. Weights are random. A model that was *built* went through the whole compiler with the default check
and was loaded from its files; one that was *staged* ran on the interpreter of the graph, which shows what the front end made of it.
*Edges* are those of the graph's decisions that the check took, of all, on forced paths of the unedited program (docs/verification.md): some
cannot be taken by any input. *none* means that this part of the check was not possible; nothing stands for builds of which it was not kept.

| state | meaning |
| --- | --- |
| right | all calls gave what eager gives: structure, classes, and numbers up to rounding |
| refused | an error with the line and the reason |
| too slow | staging or building passed its limit of time |
| stopped | the build's own check found a difference, so there is no artefact |
| crashed | an error that is not one for the user |
| wrong | a result differs, without a word |
"""
_STATES = ("right", "refused", "too slow", "stopped", "crashed", "wrong")


def document(results: Results, present: str = "") -> str:
    """Return the page; suites of which there are no results stay as they are on the page that is ``present``."""
    parts, kept = [_HEAD], _sections(present)
    for name, suite in SUITES.items():
        found = {n: r for n, r in sorted(results.of(name).items()) if r["state"] != "not run"}
        if not found:
            parts.append(kept.get(name, ""))
            continue
        version = next(iter(found.values())).get("version", "")
        parts.append(f"## {name} {version}\n\n{suite.about[0].upper()}{suite.about[1:]}: {len(found)} models.\n\n{_totals(found)}")
        parts.append(_reasons(found))
        parts.append(_table(found))
    return "\n".join(filter(None, parts))


def _sections(page: str) -> dict[str, str]:
    """Return what a page says of each suite, by its name."""
    sections = [f"## {text.rstrip()}\n" for text in f"\n{page}".split("\n## ")[1:]]
    return {section.split()[1]: section for section in sections}


def _totals(found: dict[str, Any]) -> str:
    rows = ["| | " + " | ".join(_STATES) + " |", "| --- |" + " ---: |" * len(_STATES)]
    for label, built in (("built", True), ("staged", False)):
        counts = Counter(r["state"] for r in found.values() if r["built"] == built)
        if counts:
            rows.append(f"| {label} | " + " | ".join(str(counts[s]) for s in _STATES) + " |")
    return "\n".join(rows) + "\n"


def _why(result: dict[str, Any]) -> str:
    """Return the sentence of an error, without its place and its advice."""
    lines = [line for line in result.get("why", "").splitlines() if line.strip()]
    carets = [k for k, line in enumerate(lines) if not line.strip(" ^~")]
    sentence = next(iter(lines[carets[0] + 1 :] if carets else lines), "")
    return sentence.strip().replace("|", "\\|")[:200]


def _reasons(found: dict[str, Any]) -> str:
    others = {n: r for n, r in found.items() if r["state"] != "right"}
    if not others:
        return ""
    rows = ["| model | state | why |", "| --- | --- | --- |"]
    rows += [f"| {n} | {r['state']} | {_why(r)} |" for n, r in sorted(others.items(), key=lambda item: (_why(item[1]), item[0]))]
    return "\n".join(rows) + "\n"


def _table(found: dict[str, Any]) -> str:
    rows = ["| right | how | blocks | edges | seconds | peak memory, MB | files, MB |", "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, r in found.items():
        if r["state"] == "right":
            how = "built" if r["built"] else "staged"
            edges = "none" if (taken := r.get("edges", "")) is None else taken
            rows.append(f"| {name} | {how} | {r['blocks']} | {edges} | {r['seconds']:.1f} | {r['peak_mb']} | {r.get('megabytes', '')} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else ""
