# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A host that was compiled with the header of a version released before goes on running (docs/runtime.md, "What may change").

``tests/abi/<version>/`` has the header of each release with this interface version, as it was, and what its libraries exported. After a
release add its folder; never change one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import handmade
import pytest

from dycl_tvm.codegen import toolchain

REPOSITORY = Path(__file__).parents[3]
RECORDED = sorted((REPOSITORY / "tests" / "abi").iterdir())
NOW = toolchain.runtime_sources().source / "include" / "dycl" / "dycl.h"


class Header:
    """The declarations of a header, without comments and with single spaces."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r"/\*.*?\*/|^#.*?$", " ", path.read_text(), flags=re.S | re.M)
        text = re.sub(r"union \{(.*?)\}", lambda m: f"union({m[1].replace(';', ',')})", " ".join(text.split()))
        self.structs = {
            name: [m.strip() for m in body.split(";") if m.strip()] for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text)
        }
        self.enums = {name: [e.strip() for e in body.split(",")] for name, body in re.findall(r"enum (\w+) \{(.*?)\};", text)}
        self.functions = set(re.findall(r"DYCL_API (.*?;)", text))
        self.types = set(re.findall(r"typedef [^{};]*;", text))


def _grows(members: list[str]) -> bool:
    return members[0] == "size_t struct_size"


def _breaks(old: Header, new: Header) -> list[str]:
    """What a host that was compiled with the old header would find otherwise."""
    found = []
    for name, members in old.structs.items():
        now = new.structs.get(name, [])
        same = now[: len(members)] == members if _grows(members) else now == members
        if not same:
            found.append(name)
    found += [name for name, entries in old.enums.items() if new.enums.get(name, [])[: len(entries)] != entries]
    return found + sorted(old.functions - new.functions) + sorted(old.types - new.types)


@pytest.fixture(params=RECORDED, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def test_the_header_only_grows(recorded: Path) -> None:
    old = Header(recorded / "dycl" / "dycl.h")
    assert len(old.structs["DyclApi"]) > 20
    assert {name for name, members in old.structs.items() if not _grows(members)} == {"DyclValue", "DyclPathEntry", "DyclExtent"}
    assert _breaks(old, Header(NOW)) == []


@pytest.mark.parametrize(
    "before, after, found",
    [
        ("int32_t copy_params;", "int64_t copy_params;", "DyclModelOptions"),
        ("uint32_t num_state;", "uint32_t num_state; uint32_t more;", None),
        ("int64_t step;", "int64_t step; int64_t more;", "DyclExtent"),
        ("double v_float;", "float v_float;", "DyclValue"),
        ("void (*cancel)(DyclSession*);", "", "DyclApi"),
        ("DYCL_ERROR_USAGE = 5", "DYCL_ERROR_USAGE = 55", "DyclStatus"),
        ("DYCL_BOOL = 3", "DYCL_BOOL = 3, DYCL_TEXT = 4", None),
        ("void dycl_cancel(DyclSession* session);", "int dycl_cancel(DyclSession* session);", "void dycl_cancel"),
        ("typedef struct DyclModel DyclModel;", "typedef void DyclModel;", "typedef struct DyclModel"),
    ],
)
def test_what_would_break_an_old_host_is_found(before: str, after: str, found: str | None, tmp_path: Path) -> None:
    text = NOW.read_text()
    assert before in text
    (tmp_path / "dycl.h").write_text(text.replace(before, after))
    breaks = _breaks(Header(NOW), Header(tmp_path / "dycl.h"))
    assert [b for b in breaks if found is not None and b.startswith(found)] == breaks
    assert bool(breaks) == (found is not None)


def _layout(header: Path, members: dict[str, list[str]], folder: Path) -> list[str]:
    """Where a C compiler puts the members, in bytes, and how large the structures are."""
    lines = []
    for struct, names in members.items():
        lines += [f'printf("{struct} %zu\\n", offsetof({struct}, {name}));' for name in names]
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));' if names[0] != "struct_size" else "")
    source, program = folder / "layout.c", folder / "layout"
    source.write_text("#include <dycl/dycl.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run(["gcc", f"-I{header}", *toolchain.include_flags(), str(source), "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_members_lie_where_they_were(recorded: Path, tmp_path: Path) -> None:
    """Also where a type changes that another header declares."""
    members = {}
    for struct, declared in Header(recorded / "dycl" / "dycl.h").structs.items():
        members[struct] = [re.sub(r".*\(\*(\w+)\).*|.*\b(\w+)$", lambda m: m[1] or m[2], member) for member in declared]
    old = _layout(recorded, members, tmp_path)
    assert len(old) > 50
    assert _layout(NOW.parent.parent, members, tmp_path) == old


def test_an_old_host_runs_a_library_of_today(recorded: Path, tmp_path: Path) -> None:
    library, params = handmade.build(handmade.zoo_program(), tmp_path)
    known = (recorded / "exports.txt").read_text().split()
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True).stdout
    # that variable was for libraries of one process among themselves, and kept one of them in memory for good
    between_libraries = {"dycl_process_pool_v1"}
    assert sorted(set(known) - between_libraries - {line.split()[-1] for line in listing.splitlines()}) == []
    host, source = tmp_path / "host", REPOSITORY / "tests" / "cpp" / "old_host_main.c"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{recorded}", *toolchain.include_flags()]
    subprocess.run(["gcc", *flags, str(source), "-o", str(host), "-ldl"], check=True)
    done = subprocess.run([host, library, params], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("the old host runs\n", 0), done.stderr
