# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The measurement, part by part, into the file of results. What is there with today's key stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from speed.ablations import ABLATIONS, folder_name
from speed.pool import Plan, Tell, environment, measure, run_job
from speed.results import Results, aim_of, fastest_peer
from speed.units import Sizes, compiler_key, make_unit, network_key

PARTS = ("networks", "dispatch", "ablation", "roofline")
#: Paths and rounds of the ablation, which compares artefacts of one compiler.
_ABLATION_PATHS, _ABLATION_ROUNDS = 2, 5
_COMPILE_LIMIT = 600.0


@dataclass
class Measurement:
    """One run of the benchmark.

    Attributes
    ----------
    work : Path
    results : Results
    sizes : Sizes
    plan : Plan
    again : bool
        Whether to measure what is there.
    keep : bool
        Whether to keep also what was measured with other sources of the compiler.
    tell : callable
    """

    work: Path
    results: Results
    sizes: Sizes
    plan: Plan
    again: bool
    keep: bool
    tell: Tell

    def run(
        self,
        parts: Sequence[str],
        networks: Sequence[str],
        contenders: Sequence[str],
        ablated: Sequence[str],
        rooflines: Sequence[str] | None,
    ) -> None:
        """Measure the parts; ``rooflines`` None stands for the networks that are below the aim."""
        if "networks" in parts:
            for number, name in enumerate(networks):
                if not self.known("networks", name, contenders):
                    self.tell(f"network {number + 1} of {len(networks)}: {name}")
                    record = self.network(name, contenders)
                    self.put("networks", name, record)
                    fastest = fastest_peer(record)
                    self.tell("  no comparison" if fastest is None else f"  {fastest[1]:.2f} times as fast as {fastest[0]}")
        if "dispatch" in parts and not self.known("dispatch_bound", "mlp"):
            self.tell("dispatch-bound: early-exit MLP")
            self.put("dispatch_bound", "mlp", self.dispatch())
        if "ablation" in parts:
            for name in ablated:
                if not self.known("ablation", name):
                    self.tell(f"ablation: {name}")
                    self.put("ablation", name, self.ablation(name))
        if "roofline" in parts:
            for name in self.short(networks) if rooflines is None else rooflines:
                if not self.known("roofline", name):
                    self.tell(f"kernels one by one: {name}")
                    self.put("roofline", name, self.roofline(name))

    def known(self, section: str, name: str, contenders: Sequence[str] = ()) -> bool:
        """Whether the results have this already."""
        found = self.results.section(section).get(name)
        if found is None or self.again or not set(contenders) <= set(found.get("contenders", ())):
            return False
        return self.keep or found["key"] == self.key()

    def key(self) -> str:
        """Return what results depend on."""
        return f"{compiler_key()} {network_key(self.sizes)}"

    def put(self, section: str, name: str, record: dict[str, Any]) -> None:
        """Keep a result."""
        self.results.section(section)[name] = {**record, "key": self.key()}
        self.results.save()

    def short(self, networks: Sequence[str]) -> list[str]:
        """Return the networks that are below the aim."""
        known = self.results.section("networks")
        found = [(n, fastest_peer(known[n])) for n in networks if n in known]
        return [n for n, fastest in found if fastest is not None and fastest[1] < aim_of(n)]

    # -- parts ---------------------------------------------------------------------------------------------------------

    def network(self, name: str, contenders: Sequence[str]) -> dict[str, Any]:
        """Time one network by all contenders."""
        folder = self.work / name
        about = self.prepared(name)
        if "error" in about:
            failed = {"error": about["error"], "refused": {}, "prepare_seconds": 0.0, "ns": {}}
            return {"weights": [], "drawn": self.sizes.draw, "contenders": dict.fromkeys(contenders, failed)}
        record: dict[str, Any] = {"weights": about["weights"], "drawn": about["drawn"], "threads": self.plan.threads}
        if "ours" in contenders or "ort-split" in contenders:
            record["compile"] = self.done(name, "ours", quiet=True)
        found = measure(folder, contenders, len(about["weights"]), self.plan, self.work, self.tell)
        record["contenders"] = {key: value.to_json() for key, value in found.items()}
        return record

    def prepared(self, name: str) -> dict[str, Any]:
        """Return what is known of a prepared network; prepare it first if that is missing."""
        found = self.done(name, "network")
        if found["error"] is not None:
            return {"error": f"cannot be prepared: {found['error']}"}
        about: dict[str, Any] = json.loads((self.work / name / "about.json").read_text())
        return about

    def done(self, name: str, what: str, quiet: bool = False) -> dict[str, Any]:
        """Return the record of a unit of preparation, done now if it is missing.

        ``quiet`` has it done now in any case: its seconds are part of the results.
        """
        unit = make_unit(self.work / name, what, self.sizes, _COMPILE_LIMIT)
        found = unit.record()
        if found is None or quiet:
            self.tell(f"  prepare {what}")
            found = unit.run("", environment(self.work, self.plan.threads))
        return found

    def ablation(self, name: str) -> dict[str, Any]:
        """Time the artefacts of one network with parts of the compiler left out, in turns."""
        about = self.prepared(name)
        if "error" in about:
            return {"weights": [], "compile": {}, "contenders": {}}
        whats = {"ours": "ours", **{f"ours:{folder_name(a)}": f"ours-{folder_name(a)}" for a in ABLATIONS}}
        compiles = {contender: self.done(name, what) for contender, what in whats.items()}
        plan = replace(self.plan, rounds=min(self.plan.rounds, _ABLATION_ROUNDS))
        paths = min(len(about["weights"]), _ABLATION_PATHS)
        found = measure(self.work / name, list(whats), paths, plan, self.work, self.tell)
        contenders = {key: value.to_json() for key, value in found.items()}
        return {"weights": about["weights"][:paths], "compile": compiles, "contenders": contenders}

    def roofline(self, name: str) -> dict[str, Any]:
        """Time the kernels of a network one by one."""
        if "error" in (about := self.prepared(name)):
            return {"error": about["error"]}
        folder = self.work / name
        out = folder / "roofline.json"
        options = ["--threads", str(self.plan.threads)]
        env = environment(self.work, self.plan.threads)
        wrong = run_job("speed.roofline", [str(folder), str(out), *options], folder / "roofline.log", env, _COMPILE_LIMIT)
        found: dict[str, Any] = {"error": wrong} if wrong is not None else json.loads(out.read_text())
        return found

    def dispatch(self) -> dict[str, Any]:
        """Time the dispatch-bound case."""
        self.done("mlp", "dispatch")
        out, log = self.work / "dispatch_bound.json", self.work / "dispatch_bound.log"
        wrong = run_job("speed.dispatch_bound", [str(self.work / "mlp"), str(out)], log, environment(self.work, 1), _COMPILE_LIMIT)
        found: dict[str, Any] = {"error": wrong} if wrong is not None else json.loads(out.read_text())
        return found
