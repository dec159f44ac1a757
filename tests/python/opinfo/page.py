# Licensed under the Apache License, Version 2.0; see LICENSE.
"""`make operators`: what becomes of every operator of PyTorch's OpInfo database, as docs/operators.md.

What was found is kept in a file, one line each; a run makes what is missing there, or what is asked for again. Where there is no file,
what the page says is what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parent))

import torch  # noqa: E402
from check import Outcome, compiled, convertible, staged  # noqa: E402
from samples import OPERATORS, UNDEFINED, Sample, samples  # noqa: E402
from several_sizes import WAYS, Sized, apart, built, outcomes_of, sized  # noqa: E402

from opinfo import said  # noqa: E402

#: Columns of the page: types, and who decides sizes.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "complex64")
COLUMNS = (*DTYPES, *(f"size by {way}" for way in WAYS))
_PAGE = Path(__file__).parents[3] / "docs" / "operators.md"
_BATCH = 40
_SIGNS = {"compiled": "●", "right": "○", "partly": "◐", "refused": "–", "wrong": "✗", "crashed": "✗", "": ""}
#: What does not count: training, sparse tensors, memory that nobody wrote or that is made another size.
_OTHER = re.compile(r"sparse|batch_norm|cross_entropy\.chunked|ctc_loss|resize|rrelu|fractional_max_pool")

Found = dict[tuple[str, str], dict[str, str]]


def _counts(name: str) -> bool:
    return name not in UNDEFINED and not _OTHER.search(name)


def load(path: Path) -> Found:
    """Return what was found, the last of each operator and type."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {(r["operator"], r["dtype"]): r for r in rows}


def read_page(path: Path) -> Found:
    """Return what a page says was found. It has the reasons of an operator in one column: each of its types gets them all."""
    kinds = {sign: kind for kind, sign in _SIGNS.items() if kind != "crashed"}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    counts = {m[1]: m[2] for line in lines if (m := re.match(r"\| (\w+) \| up to (\d+) \|", line))}
    found: Found = {}
    for line in lines[lines.index("## Each") :] if "## Each" in lines else ():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name = cells[0].removesuffix(" *") if cells else ""
        if name not in OPERATORS:
            continue
        for dtype, sign in zip(COLUMNS, cells[1:-1]):
            text = cells[-1].replace("\\|", "|") if sign and kinds[sign] in ("refused", "partly") else ""
            found[name, dtype] = {"operator": name, "dtype": dtype, "kind": kinds[sign], "text": text, "samples": counts.get(dtype, "0")}
    return found


class Store:
    """The file of what was found."""

    def __init__(self, path: Path, page: Path | None = None) -> None:
        self.path, self.found = path, load(path)
        if not self.found and page is not None:
            self.found = read_page(page)
            path.write_text("".join(json.dumps(row) + "\n" for row in self.found.values()), encoding="utf-8")

    def put(self, operator: str, dtype: str, kind: str, text: str = "", count: int = 0) -> None:
        """Note what became of so many samples of an operator."""
        row = {"operator": operator, "dtype": dtype, "kind": kind, "text": text, "samples": str(count)}
        self.found[operator, dtype] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def lacks(self, operator: str, dtype: str, build: bool, again: str) -> bool:
        """Whether there is something to be done."""
        row = self.found.get((operator, dtype))
        return row is None or (build and row["kind"] == "right") or row["kind"] in again.split(",")


def _checked(chosen: Iterable[Sample]) -> Outcome | None:
    """Return the worst of what becomes of samples without compiling them; None if there are none."""
    worst = None
    for sample in chosen:
        outcome = staged(sample)
        outcome = convertible(sample) if outcome.kind == "right" else outcome
        if worst is None or (worst.kind == "right" and outcome.kind != "right") or outcome.kind in ("wrong", "crashed"):
            worst = outcome
    return worst


def fill(store: Store, dtype: str, count: int, build: bool, again: str, only: str) -> None:
    """Find out what is missing of a type, for so many samples of each operator."""
    batch: list[tuple[str, Sample]] = []
    for name in OPERATORS:
        if not re.search(only, name) or not store.lacks(name, dtype, build, again):
            continue
        chosen = list(samples(name, getattr(torch, dtype), count))
        outcome = _checked(chosen)
        if outcome is None:
            store.put(name, dtype, "")
        else:
            store.put(name, dtype, outcome.kind, "" if outcome.kind == "right" else said(outcome.text), len(chosen))
            if build and outcome.kind == "right" and name not in UNDEFINED:
                batch += [(name, sample) for sample in chosen]
        if len(batch) >= _BATCH:
            _build(store, dtype, batch)
            batch = []
    _build(store, dtype, batch)


def _build(store: Store, dtype: str, batch: list[tuple[str, Sample]]) -> None:
    outcomes: dict[str, Outcome] = {o.sample: o for o in compiled([sample for _, sample in batch])}
    for name in dict.fromkeys(name for name, _ in batch):
        made = [outcomes[sample.name] for n, sample in batch if n == name]
        bad = next((o for o in made if o.kind != "right"), None)
        if bad is None:
            store.put(name, dtype, "compiled", "", len(made))
        else:
            store.put(name, dtype, bad.kind, said(bad.text), len(made))
            print(f"{bad.kind}: {bad.sample}: {bad.text}", flush=True)


def fill_sizes(store: Store, count: int, build: bool, again: str, only: str) -> None:
    """Find out what is missing of sizes that are decided at run time, for so many samples of each operator and dimensions of each."""
    torch.set_num_threads(1)  # processes are forked
    batch: list[tuple[Sized, str]] = []
    for name in OPERATORS:
        if name in UNDEFINED or not re.search(only, name):
            continue
        ways = [way for way in WAYS if store.lacks(name, f"size by {way}", False, again)]
        if ways:
            _fill_ways(store, name, ways, count)
        if build and store.found[name, "size by caller"]["kind"] == "right":
            batch += [(case, "caller") for s in samples(name, torch.float32, 1) for case in sized(s, 1)]
        if len(batch) >= _BATCH:
            _build_sizes(store, batch)
            batch = []
    _build_sizes(store, batch)


def _fill_ways(store: Store, name: str, ways: Sequence[str], count: int) -> None:
    found = apart(lambda: _sized_kinds(name, ways, count))
    by_eager = found is None and apart(lambda: sum(1 for s in samples(name, torch.float32, count) for _ in sized(s, count))) is None
    for way in ways:
        if found is not None:
            kind, text, cases = found[way]
        else:
            kind, text, cases = ("", "", 0) if by_eager else ("crashed", "the process ended", 0)
        store.put(name, f"size by {way}", kind, text, cases)
        if kind in ("wrong", "crashed"):
            print(f"{kind}: {name} by {way}: {text}", flush=True)


def _sized_kinds(name: str, ways: Sequence[str], count: int) -> dict[str, tuple[str, str, int]]:
    """Return for each way the kind of its outcomes, one that says why, and how many there were."""
    found = outcomes_of(samples(name, torch.float32, count), ways, count)
    return {way: _together([o for _, of, o in found if of == way]) for way in ways}


def _together(outcomes: Sequence[Outcome]) -> tuple[str, str, int]:
    kinds = {o.kind for o in outcomes}
    bad = next((o for kind in ("crashed", "wrong", "refused", "limited") for o in outcomes if o.kind == kind), None)
    if bad is None:
        return "right" if outcomes else "", "", len(outcomes)
    kind = bad.kind if bad.kind in ("crashed", "wrong") else "partly" if kinds - {"refused"} else "refused"
    return kind, re.sub(r"\[[^]]*\]", "[...]", said(bad.text)), len(outcomes)


def _build_sizes(store: Store, batch: list[tuple[Sized, str]]) -> None:
    for (case, way), outcome in zip(batch, built(batch)):
        kind = "compiled" if outcome.kind == "right" else outcome.kind
        store.put(case.sample.operator, f"size by {way}", kind, "" if kind == "compiled" else said(outcome.text), 1)
        if kind != "compiled":
            print(f"{outcome.kind}: {outcome.sample}: {outcome.text}", flush=True)


def _share(kinds: Counter[str]) -> str:
    right, total = kinds["compiled"] + kinds["right"], sum(kinds.values()) - kinds[""]
    return f"{right} of {total} ({100 * right / total:.1f} %)" if total else ""


def page(found: Found) -> Iterator[str]:
    """Yield the lines of the page."""
    names = [name for name in OPERATORS if any((name, d) in found for d in COLUMNS)]

    def kind(name: str, dtype: str) -> str:
        return found.get((name, dtype), {"kind": ""})["kind"]

    yield from ("# Operators", "")
    version = torch.__version__.split("+")[0]
    yield f"Written by `make operators`. Every operator of the OpInfo database of PyTorch {version} (`op_db`), with some of its sample"
    yield "inputs of each type, compared with eager; `make opinfo` takes all of them. What was run stands in the first table."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield "| ● | compiled, and right |"
    yield "| ○ | staged, run by the reference interpreter and right, and taken by the compiler's import; not compiled for this page |"
    yield "| – | refused; the reason stands in the last column |"
    yield "| ◐ | of sizes: right of some dimensions or sizes, refused of others |"
    yield "| ✗ | wrong |"
    yield ""
    yield "An operator that is missing can be [added](adding-an-operator.md). Empty: PyTorch has no samples of the type."
    yield from ("", "## Totals", "")
    yield "Not counted are training (batch norms that write statistics, chunked losses), sparse tensors, and memory that nobody wrote or"
    yield "that changes its size."
    yield ""
    yield "Which of several equal elements a position names is left open by PyTorch: positions that `topk`, `sort`, `msort`, `mode`,"
    yield "`median`, `nanmedian` and `kthvalue` give are not compared, only the elements."
    yield ""
    yield "So are the signs of eigenvectors and singular vectors. Of what gives such, the samples compute what does not depend on them, as"
    yield "PyTorch's own tests do: such networks are compiled, others are refused ([python-support.md](python-support.md))."
    yield ""
    yield "| type | samples of an operator | right | compiled | interpreted | refused | wrong |"
    yield "|---|---|---|---|---|---|---|"
    for dtype in DTYPES:
        kinds = Counter(kind(name, dtype) for name in names if _counts(name))
        wrong = kinds["wrong"] + kinds["crashed"]
        most = max((int(row["samples"]) for (_, d), row in found.items() if d == dtype), default=0)
        if not most:
            yield f"| {dtype} | not run for this page | | | | | |"
            continue
        yield f"| {dtype} | up to {most} | {_share(kinds)} | {kinds['compiled']} | {kinds['right']} | {kinds['refused']} | {wrong} |"
    best = Counter(
        next((k for k in ("wrong", "crashed", "refused", "right", "compiled") if k in of), "")
        for name in names
        if _counts(name)
        for of in [{kind(name, d) for d in DTYPES if d != "complex64"}]
    )
    yield ""
    yield f"Right in all types but complex ones: {_share(best)} of the operators."
    yield from _sizes_section(found, names)
    yield from ("", "## Each", "")
    yield "| operator | " + " | ".join(COLUMNS) + " | why not |"
    yield "|---|" + ":-:|" * len(COLUMNS) + "---|"
    for name in sorted(names, key=str.lower):
        said_of = [found[name, d]["text"] for d in COLUMNS if (name, d) in found and found[name, d]["text"]]
        texts = dict.fromkeys(said_of)
        mark = "" if _counts(name) else " *"
        yield (
            f"| {name}{mark} | " + " | ".join(_SIGNS[kind(name, d)] for d in COLUMNS) + " | " + "; ".join(texts).replace("|", "\\|") + " |"
        )
    yield from ("", "\\* not counted")


def _sizes_section(found: Found, names: Sequence[str]) -> Iterator[str]:
    """Yield what is said of sizes that are decided at run time."""
    yield from ("", "## Sizes", "")
    yield "Samples of float32, of which one dimension, and those that have to go with it, has a size that is decided at run time: by the"
    yield "caller (`dynamic_shapes`), by the end of a slice that is a number of the run, or by a mask. Each is run at the bound, at one"
    yield "less, at 1 and 0, and at one more than it, which is an error before anything runs ([dynamic-shapes.md](dynamic-shapes.md))."
    yield ""
    yield "| size by | right | compiled | right of some | refused | wrong |"
    yield "|---|---|---|---|---|---|"
    for way in WAYS:
        of = (name for name in names if _counts(name) and (name, f"size by {way}") in found)
        kinds = Counter(found[name, f"size by {way}"]["kind"] for name in of)
        wrong = kinds["wrong"] + kinds["crashed"]
        yield f"| {way} | {_share(kinds)} | {kinds['compiled']} | {kinds['partly']} | {kinds['refused']} | {wrong} |"


def main() -> int:
    """Write the page; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("build/operators.jsonl"), help="the file of what was found")
    parser.add_argument("--samples", type=int, default=2, help="of each operator and type")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="types of which what is missing is found out")
    parser.add_argument("--compiled", default=",".join(DTYPES), help="types of which samples are compiled, not only interpreted")
    parser.add_argument("--sizes", choices=("interpreted", "compiled"), help="find out what is missing of sizes decided at run time")
    parser.add_argument("--again", default="", help="kinds that are done again: refused,partly,wrong,crashed")
    parser.add_argument("--only", default="", help="operators whose names hold this regular expression")
    parser.add_argument("--page", type=Path, default=_PAGE)
    parser.add_argument("--anew", action="store_true", help="what the page says does not count")
    options = parser.parse_args()
    options.store.parent.mkdir(parents=True, exist_ok=True)
    store = Store(options.store, None if options.anew else options.page)
    for dtype in filter(None, options.dtypes.split(",")):
        fill(store, dtype, options.samples, dtype in options.compiled.split(","), options.again, options.only)
    if options.sizes:
        fill_sizes(store, options.samples, options.sizes == "compiled", options.again, options.only)
    options.page.write_text("\n".join(page(store.found)) + "\n", encoding="utf-8")
    return int(any(row["kind"] in ("wrong", "crashed") for row in store.found.values()))


if __name__ == "__main__":
    sys.exit(main())
