# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Targets: every form in which users name a machine, resolved to one :class:`ResolvedTarget`.

Accepted are TVM's old option strings (``"cuda -arch=sm_72"``, which TVM itself no longer parses), kinds (``"llvm"``),
tags (``"nvidia/jetson-tx2"``), JSON strings, dicts, ``tvm.target.Target`` objects, ``"native"``, ``"portable"``, and several CPUs.
"""

from __future__ import annotations

import difflib
import json
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import tvm
import tvm_ffi

from dycl_tvm.cpu_features import CPU_FEATURES
from dycl_tvm.errors import TargetError
from dycl_tvm.runtime.trailer import cpu_flags

#: What ``build(target=...)`` takes.
TargetLike = Union[str, Mapping[str, Any], "tvm.target.Target"]
#: One, or several CPUs that one library is for.
TargetsLike = Union[TargetLike, Sequence[TargetLike]]

#: What ``"portable"`` has code for, the least first: all CPUs with AVX2, and those with AVX-512 and VNNI.
_PORTABLE = {"x86_64": ("x86-64-v3", "cascadelake")}

#: CPUs of the boards whose integrated GPU has that architecture: no other machine has one, so the host is known.
_TEGRA_HOSTS = {
    "sm_53": "cortex-a57",
    "sm_62": "cortex-a57",
    "sm_72": "carmel",
    "sm_87": "cortex-a78",
}
#: Tags whose host in TVM is that of another board.
_CORRECTED_HOSTS = {"nvidia/jetson-orin-nano": "cortex-a78"}

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "i686": "i386"}
#: Architectures that libraries are made for.
_CROSS_MACHINES = ("x86_64", "aarch64")
#: Options of TVM before 0.20 that have another name now.
_RENAMED_OPTIONS = {"target": "mtriple", "march": "arch"}


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with everything that was left implicit filled in.

    Attributes
    ----------
    target : tvm.target.Target
        What the kernels are compiled for; its ``host`` is set for device targets.
    host : tvm.target.Target
        The CPU that runs the dispatcher (``target`` itself for CPU targets).
    spec : str
        The target as the user wrote it.
    kind : str
        ``llvm``, ``cuda``, ...
    triple : str
        LLVM triple of the host, such as ``aarch64-linux-gnu``.
    mcpu : str
        LLVM name of the host's CPU; empty for the baseline of the architecture.
    arch : str
        GPU architecture (``sm_72``); empty for CPU targets.
    glibc : str
        The newest glibc that the library may need (``2.31``), where the target says it.
    better : tuple of tvm.target.Target
        CPUs for which the library has code of their own besides, the best last.
    """

    target: tvm.target.Target
    host: tvm.target.Target
    spec: str
    kind: str
    triple: str
    mcpu: str
    arch: str
    glibc: str = ""
    better: tuple[tvm.target.Target, ...] = ()

    @property
    def machine(self) -> str:
        """Architecture of the host: ``x86_64``, ``aarch64``, ..."""
        return _machine(self.triple)

    @property
    def is_native(self) -> bool:
        """Whether the host has the architecture and system of the machine that builds."""
        return self.machine == native_machine() and ("linux" in self.triple) == (platform.system() == "Linux")

    def __str__(self) -> str:
        parts = [self.kind]
        parts += [f"arch={self.arch}"] if self.arch else []
        parts += [f"host={self.triple}"]
        parts += [f"mcpu={','.join([self.mcpu, *(str(t.attrs['mcpu']) for t in self.better)])}"] if self.mcpu else []
        return " ".join(parts)


def resolve_targets(target: TargetsLike, host: TargetLike | None = None) -> ResolvedTarget:
    """Resolve a target, or several CPUs, in any of the accepted forms.

    Parameters
    ----------
    target : str, dict, tvm.target.Target, or a sequence of these
        As :func:`resolve_target` has them. Several are CPUs of x86-64 for which one library has code, the least first, and it takes the
        last that the CPU runs; as text they are a list in JSON. ``"portable"`` is ``"llvm -mcpu=x86-64-v3"`` and
        ``"llvm -mcpu=cascadelake"`` for x86-64, and ``"llvm"`` for others.
    host : same, optional
        As :func:`resolve_target` has it.

    Raises
    ------
    TargetError
        If a target is unknown or incomplete, or several are no CPUs of one kind of machine.
    """
    if isinstance(target, str) and target.split(None, 1)[:1] == ["portable"]:
        return _portable(target, target.strip()[len("portable") :], host)
    if isinstance(target, str) and target.lstrip().startswith("["):
        return replace(resolve_targets(_json(target), host), spec=target)
    if isinstance(target, (str, Mapping, tvm.target.Target)):
        return resolve_target(target, host)
    if not isinstance(target, Sequence) or not target:
        raise TargetError(f"a target is a string, a dict, a tvm.target.Target, or a list of CPUs, got {target!r}")
    resolved = [resolve_target(t, host) for t in target]
    first, *others = resolved
    for other in others:
        if {first.kind, other.kind} != {"llvm"} or (other.triple, other.glibc) != (first.triple, first.glibc):
            raise TargetError(
                f"one library has code for several CPUs of one kind of machine; {other.spec!r} is none such beside {first.spec!r}"
            )
    if unnamed := [r.spec for r in resolved if others and not r.mcpu]:
        raise TargetError(f"a library tells its CPUs by their names, and the target {unnamed[0]!r} has none; write its -mcpu=...")
    return replace(first, spec=str(target), better=tuple(other.target for other in others))


def _portable(spec: str, options: str, host: TargetLike | None) -> ResolvedTarget:
    """Resolve ``"portable"`` with options, such as the system's, that hold for all of its CPUs."""
    plain = resolve_target(f"llvm{options}", host)
    cpus = _PORTABLE.get(plain.machine)
    if cpus is None:
        return replace(plain, spec=spec)
    if re.search(r"\s--?mcpu\b", options):
        raise TargetError(f"'portable' says which CPUs there is code for, {' and '.join(cpus)}; leave out -mcpu, or give a list of targets")
    return replace(resolve_targets([f"llvm -mcpu={cpu}{options}" for cpu in cpus], host), spec=spec)


def resolve_target(target: TargetLike, host: TargetLike | None = None) -> ResolvedTarget:
    """Resolve a target in any of the accepted forms.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        Plain ``"llvm"`` on x86-64 means CPUs with AVX2 and FMA (``x86-64-v3``), unless this machine itself is older;
        ``"llvm -mcpu=x86-64"`` is every one. Others: ``"native"`` (this CPU), ``"llvm -mcpu=skylake-avx512"``, ``"cuda -arch=sm_72"``,
        ``"nvidia/jetson-agx-xavier"``, ``{"kind": "llvm", "mcpu": "haswell"}``. ``glibc`` may be added to any, as in
        ``"llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a57 -glibc=2.27"``: the version on the machine that will run the library.
    host : same, optional
        CPU that runs the dispatcher of a device target. Left out: the one the target names; that of the board for
        the GPU architectures which only exist on Jetson boards; this machine otherwise.

    Raises
    ------
    TargetError
        If the target is unknown or incomplete; the message lists near matches.
    """
    spec = target if isinstance(target, str) else str(target)
    (target, glibc), (host, host_glibc) = _split_glibc(target), _split_glibc(host)
    assert target is not None
    resolved = _create(target)
    host_target = _create(host) if host is not None else resolved.host
    kind = str(resolved.kind.name)
    if kind == "llvm":
        if host is not None and host_target is not None and _triple(host_target) != _triple(resolved):
            raise TargetError(
                f"target {spec!r} is a CPU and so its own host, but host {host!r} is another machine; leave host out or name one of them"
            )
        # A target that is its own host must not carry a host: TVM would split every kernel in two.
        host_target = resolved = tvm.target.Target(_with_baseline(_without_host(resolved)))
        arch = ""
    else:
        arch = str(resolved.attrs.get("arch", "")) if kind == "cuda" else ""
        if host_target is None:
            host_target = _board_host(_TEGRA_HOSTS[arch]) if arch in _TEGRA_HOSTS else tvm.target.Target("llvm")
        if host_target.kind.name != "llvm":
            raise TargetError(f"the host of a target must be a CPU ('llvm ...'), got {str(host_target.kind.name)!r}")
        resolved = tvm.target.Target(resolved, host_target)
    mcpu, triple = str(host_target.attrs.get("mcpu", "")), _triple(host_target)
    _check_cpu(mcpu, triple)
    _check_features([str(f) for f in host_target.attrs.get("mattr", [])], triple)
    glibc = glibc or host_glibc
    if glibc and triple.startswith("aarch64") and int(glibc.partition(".")[2]) < 17:
        raise TargetError(f"there is no glibc {glibc} for aarch64, which began with 2.17")
    return ResolvedTarget(resolved, host_target, spec, kind, triple, mcpu, arch, glibc)


def check_buildable(resolved: ResolvedTarget) -> None:
    """Refuse targets for which no artefact can be made yet.

    Raises
    ------
    TargetError
        For GPUs other than NVIDIA's, and for CPUs for which there is no cross tool-chain.
    """
    if resolved.kind not in ("llvm", "cuda"):
        raise TargetError(
            f"target {resolved.spec!r} ({resolved}) is understood, but code for {resolved.kind} devices cannot be generated yet; "
            'build for a CPU (target="llvm") or for an NVIDIA GPU (target="cuda -arch=sm_72")'
        )
    if "linux" not in resolved.triple or resolved.machine not in _CROSS_MACHINES:
        raise TargetError(
            f"target {resolved.spec!r} ({resolved}) is understood, but libraries can be made for Linux on "
            f"{' and '.join(_CROSS_MACHINES)} only yet"
        )


def native_machine() -> str:
    """Return the architecture of this machine, by its name in LLVM triples."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def known_tags() -> list[str]:
    """Return the target tags that TVM knows, sorted."""
    return sorted(str(t) for t in tvm.target.list_tags())


def _split_glibc(target: TargetLike | None) -> tuple[TargetLike | None, str]:
    """Take ``glibc`` out of a target: a property of the system, of which TVM's targets know nothing."""
    if isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            target = json.loads(target)
        except json.JSONDecodeError:
            return target, ""  # the error comes from where targets are read
    glibc = ""
    if isinstance(target, str):
        if found := re.search(r"\s--?glibc[= ]\s*(\S+)", target):
            glibc, target = found[1], target[: found.start()] + target[found.end() :]
    elif isinstance(target, Mapping):
        nested, inner = _split_glibc(target.get("host"))
        glibc = str(target.get("glibc", inner))
        target = {key: nested if key == "host" else value for key, value in target.items() if key != "glibc"}
    if glibc and not re.fullmatch(r"2\.\d+", glibc):
        raise TargetError(f"glibc is a version such as 2.27, got {glibc!r}")
    return target, glibc


def _create(target: TargetLike) -> tvm.target.Target:
    if isinstance(target, tvm.target.Target):
        return target
    if isinstance(target, Mapping):
        return _from_dict(dict(target))
    if isinstance(target, str):
        return _from_string(target.strip())
    raise TargetError(f"a target is a string, a dict or a tvm.target.Target, got a {type(target).__name__}")


def _from_string(text: str) -> tvm.target.Target:
    if not text:
        raise TargetError('an empty target; say for example "llvm", "native" or "nvidia/jetson-tx2"')
    if text.startswith("{"):
        return _from_dict(_json(text))
    try:
        head, *options = shlex.split(text)
    except ValueError as err:
        raise TargetError(f"target {text!r} cannot be split into options: {err}") from err
    if head == "portable":
        raise TargetError("'portable' is several CPUs, and so a target by itself: no host, and none of a list")
    if head == "native":
        given = _parse_options("llvm", options, text)
        if given.get("mcpu", "native") != "native":
            raise TargetError(f"target {text!r}: 'native' is this CPU, and -mcpu={given['mcpu']} is another; say 'llvm' for it")
        return _from_dict({**given, "kind": "llvm", "mcpu": "native"})
    if head in set(known_tags()):
        overrides = _parse_options(str(tvm.target.Target(head).kind.name), options, text)
        return _from_dict({"tag": head, **overrides})
    if head not in _kinds():
        near = _near(head, [*known_tags(), *_kinds(), "native", "portable"])
        raise TargetError(f"unknown target {head!r}{near}; kinds are {', '.join(sorted(_kinds()))}, tags look like 'nvidia/jetson-tx2'")
    return _from_dict({"kind": head, **_parse_options(head, options, text)})


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        raise TargetError(f"target {text!r} starts like JSON but is not: {err}") from err


def _parse_options(kind: str, options: list[str], text: str) -> dict[str, Any]:
    """Parse ``-key=value``, ``--key=value``, ``-key value`` and bare flags by the schema of the kind."""
    schema = _schema(kind)
    found: dict[str, Any] = {}
    queue = list(options)
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            raise TargetError(f"target {text!r}: expected an option such as -mcpu=..., got {word!r}")
        key, equals, value = word.lstrip("-").partition("=")
        if key not in schema:
            key = _RENAMED_OPTIONS.get(key, key)
        if key not in schema:
            raise TargetError(f"target {text!r}: {kind} has no option {key!r}{_near(key, schema)}; it has {', '.join(sorted(schema))}")
        if not equals:
            is_flag = schema[key] == "bool" and (not queue or queue[0].startswith("-"))
            if not is_flag and (not queue or queue[0].startswith("-")):
                raise TargetError(f"target {text!r}: option -{key} needs a value (-{key}=...)")
            value = "1" if is_flag else queue.pop(0)
        found[key] = _convert(schema[key], key, value, text)
    return found


def _convert(type_name: str, key: str, value: str, text: str) -> Any:
    if key == "host":
        return _from_string(value)
    if type_name.startswith("Array"):
        return [v for v in value.split(",") if v]
    if type_name == "int":
        try:
            return int(value, 0)
        except ValueError:
            raise TargetError(f"target {text!r}: option -{key} is an integer, got {value!r}") from None
    if type_name == "bool":
        words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        if value.lower() not in words:
            raise TargetError(f"target {text!r}: option -{key} is a bool, got {value!r}")
        return words[value.lower()]
    return value


def _from_dict(config: dict[str, Any]) -> tvm.target.Target:
    if "host" in config and not isinstance(config["host"], tvm.target.Target):
        config["host"] = _create(config["host"])
    tag = config.get("tag")
    if tag is not None and tag not in set(known_tags()):
        raise TargetError(f"unknown target tag {tag!r}{_near(str(tag), known_tags())}")
    kind = config.get("kind") or (str(tvm.target.Target(tag).kind.name) if tag else None)
    if kind is None:
        raise TargetError(f"a target dict needs a 'kind' or a 'tag', got the keys {sorted(config)}")
    if kind not in _kinds():
        raise TargetError(f"unknown target kind {kind!r}{_near(str(kind), _kinds())}; kinds are {', '.join(sorted(_kinds()))}")
    if config.get("mcpu") == "native":
        config = _on_this_cpu(config)
    if kind == "cuda" and tag is None and not config.get("arch"):
        # TVM would quietly take sm_50 on a machine without a GPU.
        raise TargetError('a cuda target needs the GPU\'s architecture: "cuda -arch=sm_72", or a tag such as "nvidia/jetson-agx-xavier"')
    unknown = [k for k in config if k not in _schema(kind) and not k.startswith("feature.")]
    if unknown:
        raise TargetError(f"target kind {kind!r} has no option {unknown[0]!r}{_near(unknown[0], _schema(kind))}")
    try:
        made = tvm.target.Target(tag) if tag and len(config) == 1 else tvm.target.Target(config)
        if tag in _CORRECTED_HOSTS and "host" not in config:
            made = tvm.target.Target(made, _board_host(_CORRECTED_HOSTS[tag]))
        return made
    except (ValueError, TypeError, RuntimeError) as err:
        raise TargetError(f"TVM does not accept the target {config}: {err}") from err


def _on_this_cpu(config: dict[str, Any]) -> dict[str, Any]:
    """Return a target for this CPU with what the user says of its features, which come last and so hold."""
    machine = _machine(str(config.get("mtriple") or _system_triple()))
    if machine != native_machine():
        raise TargetError(f"'native' is this CPU, of {native_machine()}, and {config['mtriple']} is another machine: name its CPU")
    cpu = _native_cpu()
    features = [*cpu.pop("mattr", []), *config.get("mattr", [])]
    return {**config, **cpu, **({"mattr": features} if features else {})}


def _native_cpu() -> dict[str, Any]:
    """Return this CPU: LLVM's name for its model, and what Linux says of it that the name does not.

    LLVM knows the models of its day, and a virtual machine may hide features of the CPU, or show another model's number.
    """
    config: dict[str, Any] = {"kind": "llvm", "mcpu": str(tvm_ffi.get_global_func("target.llvm_get_system_cpu")())}
    here, known = cpu_flags(), CPU_FEATURES.get(native_machine(), {})

    def named() -> set[str]:
        return {str(f) for f in tvm_ffi.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(config))}

    if shown := [f"+{feature}" for feature in known.keys() - named() if known[feature] in here]:
        config["mattr"] = sorted(shown)
    # LLVM switches on with a feature what it needs, and off what needs it
    if hidden := [f"-{feature}" for feature in known.keys() & named() if known[feature] not in here]:
        config["mattr"] = [*config.get("mattr", []), *sorted(hidden)]
    return config


def _board_host(mcpu: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "mattr": ["+neon"]})


def _without_host(target: tvm.target.Target) -> dict[str, Any]:
    config = {str(k): v for k, v in target.attrs.items()}
    config["kind"] = str(target.kind.name)
    config["keys"] = list(target.keys)
    if target.tag:
        config["tag"] = str(target.tag)
    return config


def _with_baseline(config: dict[str, Any]) -> dict[str, Any]:
    """Say what plain ``llvm`` means: LLVM's own default is x86-64 of 2003, several times slower than what runs everywhere today."""
    # TVM enters the triple of this system into every plain target.
    plain = not config.get("mcpu") and not config.get("mattr") and config.get("mtriple") in (None, "", _system_triple())
    if plain and native_machine() == "x86_64" and {"avx2", "fma", "bmi2", "f16c"} <= cpu_flags():
        return {**config, "mcpu": "x86-64-v3"}
    return config


def hint(target: str) -> str:
    """Return what a target leaves unused of this CPU, if it is the one for all CPUs with AVX2; otherwise nothing."""
    if not target.endswith(" mcpu=x86-64-v3") or "avx512f" not in cpu_flags():
        return ""
    return 'AVX2; this CPU has AVX-512 too, which is up to twice as fast: target="portable" has code for both, "native" for such CPUs only'


def _triple(target: tvm.target.Target) -> str:
    given = target.attrs.get("mtriple")
    return str(given) if given else _system_triple()


def _system_triple() -> str:
    return str(tvm_ffi.get_global_func("target.llvm_get_system_triple")())


def _machine(triple: str) -> str:
    name = triple.split("-", 1)[0].lower()
    return _MACHINES.get(name, name)


def _check_cpu(mcpu: str, triple: str) -> None:
    if not mcpu:
        return
    if not tvm_ffi.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        names = tvm_ffi.get_global_func("target.llvm_get_cpu_archlist")(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
        raise TargetError(f"LLVM knows no CPU {mcpu!r} of {_machine(triple)}{_near(mcpu, [str(n) for n in names])}")


def _check_features(features: Sequence[str], triple: str) -> None:
    """Refuse what LLVM would leave out with no more than a line on the terminal, or take for its contrary: a name without a sign."""
    names = tvm_ffi.get_global_func("target.llvm_get_cpu_features")
    for feature in features:
        sign, name = feature[:1], feature[1:]
        if sign not in ("+", "-"):
            raise TargetError(f"-mattr is a list of features, each with + or - before it; {feature!r} has none")
        if name not in map(str, names(tvm.target.Target({"kind": "llvm", "mtriple": triple, "mattr": [f"+{name}"]}))):
            raise TargetError(f"LLVM knows no feature {name!r} of {_machine(triple)}")


def _kinds() -> set[str]:
    return {str(k) for k in tvm.target.Target.list_kinds()}


def _schema(kind: str) -> dict[str, str]:
    options = tvm_ffi.get_global_func("target.ListTargetKindOptionsFromName")(kind)
    return {str(k): str(v) for k, v in options.items()}


def _near(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    found = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    found += [n for n in names if word and word in n and n not in found][: 3 - len(found)]
    return f" (did you mean {' or '.join(repr(f) for f in found)}?)" if found else ""
