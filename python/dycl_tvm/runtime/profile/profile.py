# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the runs of a profile took, added up by kernel, sub-DNN, block, line, edge and path."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import mul
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.path import Decision, SourceLine, decision_of, source_line
from dycl_tvm.runtime.profile.quantiles import quantile
from dycl_tvm.runtime.profile.ring import RecordedRun
from dycl_tvm.runtime.profile.stretches import Stretch, stretches_of

#: A path: the decisions in order, each with the number of the side taken (a branch: 1 is true).
Key = tuple[tuple[int, int], ...]
_FORMAT = 2
_PARTS = ("name", "fingerprint", "code", "flow", "blocks", "calls", "lines", "kernels", "decisions", "sites")


@dataclass(frozen=True)
class Row:
    """A line of a table; times are nanoseconds.

    Attributes
    ----------
    name : str
    runs : int
        How often it ran.
    total : int
        What all that took.
    share : float
        The part of the time of all runs.
    p50, p99 : int
        Of one time; 0 where only the total is known.
    timed : int
        How many times these are of.
    """

    name: str
    runs: int
    total: int
    share: float
    p50: int = 0
    p99: int = 0
    timed: int = 0


@dataclass(frozen=True)
class PathTimes:
    """A path that runs took.

    Attributes
    ----------
    key : tuple
        Its decisions and sides, as numbers.
    decisions : list of Decision
    origin : SourceLine
        Of its ``return``.
    times : list of int
        Nanoseconds of its runs, in ascending order.
    in_order : sequence of int
        The same as the runs followed each other.
    share : float
        The part of all runs.
    kernels, bytes : int
        Kernel calls of one run, and the bytes of the tensors that these read and write.
    """

    key: Key
    decisions: list[Decision]
    origin: SourceLine
    times: list[int]
    in_order: Sequence[int]
    share: float
    kernels: int
    bytes: int

    def quantile(self, p: float) -> int:
        """Return the p-quantile of the times of its runs."""
        return quantile(self.times, p)


@dataclass
class Sample:
    """Times of a part of the network in runs that were timed inside, and for how many runs each of these stands."""

    times: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))

    def add(self, time: int, weight: int) -> None:
        """Add a time."""
        self.times.append(time)
        self.weights.append(weight)

    def extend(self, other: Sample) -> None:
        """Add the times of another sample."""
        self.times.extend(other.times)
        self.weights.extend(other.weights)

    @property
    def total(self) -> int:
        """The sum, each time as often as its weight says."""
        return sum(map(mul, self.times, self.weights))


class Profile:
    """The runs of a network, and where their time went.

    Parameters
    ----------
    metadata : dict
        Of the artefact.
    kept : int
        How many of the last runs are kept one by one, for the trace.

    Attributes
    ----------
    failed, cut : int
        Runs that ended in an error, and runs whose first events were lost: they are in no table.
    lost : int
        Events for which the ring had no room.
    timed : int
        How many of the runs were timed inside. How often something ran is known of all; what it took in all is told of these, each of which
        stands for as many runs as it was chosen among.
    last_runs : deque of RecordedRun
        Of those that were timed inside.
    edges : Counter
        How often each edge was taken: from (block, block).
    """

    def __init__(self, metadata: dict[str, Any], kept: int = 50) -> None:
        self.stretches: dict[int, Stretch] = stretches_of(metadata)
        self.metadata = {part: metadata[part] for part in _PARTS}
        self.failed = self.cut = self.lost = 0
        self.last_runs: deque[RecordedRun] = deque(maxlen=kept)
        self.edges: Counter[tuple[int, int]] = Counter()
        self._paths: dict[tuple[Key, int], array[int]] = {}
        self._inputs: array[int] = array("q")
        self._calls: dict[int, Sample] = {}
        self._blocks: Counter[int] = Counter()
        self._timed_blocks: Counter[int] = Counter()  # as the runs that were timed inside tell
        self.timed = 0
        self._weights: set[int] = set()
        self._host: Counter[int] = Counter()
        self._stretches: dict[int, Sample] = {}
        self._going_on: dict[int, Sample] = {}
        self._leaves = {k: d["leaves"] for k, d in enumerate(metadata["decisions"]) if "leaves" in d}
        self._block_of: list[int] = [call["block"] for call in metadata["calls"]]

    def is_of(self, metadata: dict[str, Any]) -> bool:
        """Return whether this is a profile of the very build that these metadata are of, and of its code for the same CPU."""
        return all(self.metadata[part] == metadata[part] for part in ("fingerprint", "code", "kernels"))

    # -- taking runs in ------------------------------------------------------------------------------------------------

    def add(self, runs: Iterable[RecordedRun | None]) -> None:
        """Add runs; None stands for one that is not known as a whole."""
        for run in runs:
            if run is None:
                self.cut += 1
            elif run.site is None:
                self.failed += 1
            else:
                self._add(run, run.site)

    def _add(self, run: RecordedRun, site: int) -> None:
        key = tuple((d, choice) for d, choice, _ in run.decisions)
        self._paths.setdefault((key, site), array("q")).append(run.end - run.begin)
        self._inputs.append(run.started - run.begin)
        self._weights.add(run.weight)
        for head, target in self._ways(key):
            stretch = self.stretches[head]
            self._blocks.update(stretch.blocks)
            self.edges.update(zip(stretch.blocks, stretch.blocks[1:]))
            if target is not None:
                self.edges[stretch.blocks[-1], target] += 1
        if run.timed:
            self._add_times(run, self.heads(key))

    def _ways(self, key: Key) -> Iterator[tuple[int, int | None]]:
        """Yield each stretch of a path and the one behind it."""
        heads = self.heads(key)
        yield from zip(heads, [*heads[1:], None])

    def _add_times(self, run: RecordedRun, heads: list[int]) -> None:
        for number, begin, end in run.calls:
            self._calls.setdefault(number, Sample()).add(end - begin, run.weight)
        start, k = run.started, 0
        longest: dict[int, int] = {}
        for head, at in zip(heads, [*(at for _, _, at in run.decisions), run.end]):
            blocks = self.stretches[head].blocks
            in_kernels = 0
            while k < len(run.calls) and run.calls[k][2] <= at:
                in_kernels += run.calls[k][2] - run.calls[k][1]
                k += 1
            for block in blocks:
                self._timed_blocks[block] += run.weight
            self._host[blocks[-1]] += (at - start - in_kernels) * run.weight
            longest[head] = max(longest.get(head, 0), at - start)
            start = at
        for number, took in longest.items():
            self._stretches.setdefault(number, Sample()).add(took, run.weight)
        self._note_going_on(run)
        self.timed += 1
        self.last_runs.append(run)

    def _note_going_on(self, run: RecordedRun) -> None:
        """Take down what it took from each decision at which the run could have left to the next one, or to the end."""
        could = [(d, choice, at) for d, choice, at in run.decisions if d in self._leaves]
        for (decision, choice, at), after in zip(could, [*(at for _, _, at in could[1:]), run.end]):
            if choice != self._leaves[decision]:
                self._going_on.setdefault(decision, Sample()).add(after - at, run.weight)

    # -- telling -------------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """How many runs the tables are of."""
        return len(self._inputs)

    @property
    def total(self) -> int:
        """Nanoseconds of all runs."""
        return sum(sum(times) for times in self._paths.values())

    def times(self) -> list[int]:
        """Return the nanoseconds of each run, in ascending order."""
        return sorted(t for times in self._paths.values() for t in times)

    def input_times(self) -> list[int]:
        """Return what each run took until its inputs were bound, in ascending order."""
        return sorted(self._inputs)

    @property
    def even(self) -> bool:
        """Whether all runs had the same chance to be timed inside. Otherwise times of parts come as often as their weight says."""
        return len(self._weights) <= 1

    def stretch_times(self, head: int) -> list[int]:
        """Return, of each run through a stretch, the longest time in it, in ascending order."""
        return self._ordered(self._stretches.get(head, Sample()))

    def call_times(self, number: int) -> list[int]:
        """Return the times of a kernel call in ascending order; where it never ran, those of the kernel at other places."""
        if number in self._calls:
            return self._ordered(self._calls[number])
        kernel, elsewhere = self.metadata["calls"][number]["kernel"], Sample()
        for n, sample in self._calls.items():
            if self.metadata["calls"][n]["kernel"] == kernel:
                elsewhere.extend(sample)
        return self._ordered(elsewhere)

    def leaving(self) -> dict[int, int]:
        """Return the side that leaves of each decision at which a run may leave early."""
        return dict(self._leaves)

    def going_on_times(self, decision: int) -> list[int]:
        """Return what it took to go on at such a decision until the next one, or the end, in ascending order."""
        return self._ordered(self._going_on.get(decision, Sample()))

    def by_kernel(self) -> list[Row]:
        """Return a row a kernel, the longest first."""
        kernels, calls = self.metadata["kernels"], self.metadata["calls"]
        return self._rows(lambda number: calls[number]["kernel"], lambda kernel: kernels[kernel]["symbol"])

    def by_sub_dnn(self) -> list[Row]:
        """Return a row a sub-DNN, the longest first; one time is that of a kernel call of it."""
        return self._rows(lambda number: self.metadata["calls"][number]["sub_dnn"], str)

    def by_line(self) -> list[Row]:
        """Return a row for each set of the user's lines that a sub-DNN computes, the longest first.

        Kernels fuse operations of several lines, so their time is told of all lines of the call of the sub-DNN.
        """
        return self._rows(lambda number: tuple(self.metadata["calls"][number]["lines"]), self._lines)

    def by_block(self) -> list[Row]:
        """Return a row a block that ran, the longest first: its kernels, and what the host did.

        Of blocks that always follow each other the time of the host is told of the last.
        """
        total = self.total
        rows = [Row(self.block_name(b), n, took, _part(took, total)) for b, (n, took) in self.block_runs().items()]
        return sorted(rows, key=lambda row: -row.total)

    def paths(self) -> list[PathTimes]:
        """Return the paths that the runs took, the most frequent first."""
        found = []
        for (key, site), times in self._paths.items():
            visits = Counter(block for head in self.heads(key) for block in self.stretches[head].blocks)
            kernels = sum(visits[block] for block in self._block_of)
            bytes_ = sum(visits[call["block"]] * call["bytes"] for call in self.metadata["calls"])
            origin = source_line(self.metadata["sites"][site]["origin"])
            found.append(PathTimes(key, self.describe(key), origin, sorted(times), times, len(times) / self.runs, kernels, bytes_))
        return sorted(found, key=lambda path: -len(path.times))

    def describe(self, key: Key) -> list[Decision]:
        """Return the decisions of a path in the user's terms."""
        return [decision_of(self.metadata, number, side) for number, side in key]

    def heads(self, key: Key) -> list[int]:
        """Return the stretches of a path, in order."""
        found = [0]
        for _, side in key:
            found.append(self.stretches[found[-1]].targets[side])
        return found

    def calls_of(self, head: int) -> list[int]:
        """Return the kernel calls of a stretch."""
        blocks = self.stretches[head].blocks
        return [number for number, block in enumerate(self._block_of) if block in blocks]

    def block_runs(self) -> dict[int, tuple[int, int]]:
        """Return how often each block ran, and its nanoseconds in all."""
        total = Counter(self._host)
        for number, sample in self._calls.items():
            total[self._block_of[number]] += sample.total
        return {block: (n, self._of_all(block, total[block])) for block, n in self._blocks.items()}

    def _of_all(self, block: int, took: int) -> int:
        """Return what a part of a block took in all runs, by what it took in those timed inside; 0 where none of them came there."""
        timed = self._timed_blocks[block]
        return took * self._blocks[block] // timed if timed else 0

    def _ordered(self, sample: Sample) -> list[int]:
        if self.even:
            return sorted(sample.times)
        return sorted(chain.from_iterable(map(repeat, sample.times, sample.weights)))

    def block_name(self, block: int) -> str:
        """Return a block in the user's terms."""
        named = self.metadata["blocks"][block]
        return f"{block} {named['name']}" + (f", {source_line(named['origin'])}" if named["origin"] else "")

    def _rows(self, group: Callable[[int], Hashable], name: Callable[[Any], str]) -> list[Row]:
        found: dict[Any, Sample] = {}
        counts: Counter[Any] = Counter()
        took: Counter[Any] = Counter()
        for number, block in enumerate(self._block_of):
            if self._blocks[block]:
                part, sample = group(number), self._calls.get(number, Sample())
                found.setdefault(part, Sample()).extend(sample)
                counts[part] += self._blocks[block]
                took[part] += self._of_all(block, sample.total)
        rows, total = [], self.total
        for part, sample in found.items():
            ordered = self._ordered(sample)
            p50, p99 = (quantile(ordered, p) if ordered else 0 for p in (0.5, 0.99))
            rows.append(Row(name(part), counts[part], took[part], _part(took[part], total), p50, p99, len(sample.times)))
        return sorted(rows, key=lambda row: -row.total)

    def _lines(self, numbers: tuple[int, ...]) -> str:
        lines = [source_line(self.metadata["lines"][k]) for k in numbers]
        if not lines:
            return "an unknown line"
        return str(lines[0]) + (f" (and {len(lines) - 1} lines: {_ranges(lines[1:], lines[0].file)})" if lines[1:] else "")

    # -- files ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return all but the last runs one by one, as plain data for JSON."""
        return {
            "format": _FORMAT,
            "metadata": self.metadata,
            "failed": self.failed,
            "cut": self.cut,
            "lost": self.lost,
            "inputs": list(self._inputs),
            "paths": [{"decisions": key, "site": site, "times": list(times)} for (key, site), times in self._paths.items()],
            "calls": _listed(self._calls),
            "stretches": _listed(self._stretches),
            "going_on": _listed(self._going_on),
            "blocks": [[block, n, self._host[block]] for block, n in self._blocks.items()],
            "timed": self.timed,
            "weights": sorted(self._weights),
            "timed_blocks": [[block, n] for block, n in self._timed_blocks.items()],
            "edges": [[source, target, n] for (source, target), n in self.edges.items()],
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Profile:
        """Return the profile of which :meth:`to_dict` gave the data.

        Raises
        ------
        UsageError
            If another version wrote them.
        """
        if data.get("format") != _FORMAT:
            raise UsageError(f"the profile is of format {data.get('format')}, this version reads {_FORMAT}; make it again")
        profile = Profile(data["metadata"])
        profile.failed, profile.cut, profile.lost = data["failed"], data["cut"], data["lost"]
        profile._inputs = array("q", data["inputs"])
        for path in data["paths"]:
            profile._paths[tuple((d, side) for d, side in path["decisions"]), path["site"]] = array("q", path["times"])
        for part, samples in (("calls", profile._calls), ("stretches", profile._stretches), ("going_on", profile._going_on)):
            samples.update({number: Sample(array("q", times), array("I", weights)) for number, times, weights in data[part]})
        for block, n, host in data["blocks"]:
            profile._blocks[block], profile._host[block] = n, host
        profile.timed, profile._weights = data["timed"], set(data["weights"])
        profile._timed_blocks.update(dict(data["timed_blocks"]))
        profile.edges.update({(source, target): n for source, target, n in data["edges"]})
        return profile


def _listed(samples: dict[int, Sample]) -> list[Any]:
    return [[number, list(sample.times), list(sample.weights)] for number, sample in samples.items()]


def _part(took: int, total: int) -> float:
    return took / total if total else 0.0


def _ranges(lines: list[SourceLine], known: str) -> str:
    """Return the numbers of lines, neighbours as a range; files other than ``known`` are named."""
    found: list[list[Any]] = []
    for line in sorted({(line.file, line.line) for line in lines}):
        if found and found[-1][0] == line[0] and found[-1][2] == line[1] - 1:
            found[-1][2] = line[1]
        else:
            found.append([line[0], line[1], line[1]])
    texts = [("" if file == known else f"{file}:") + (f"{a}" if a == b else f"{a}-{b}") for file, a, b in found]
    return ", ".join(texts)
