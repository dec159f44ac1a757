# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Priorities of sessions: what docs/runtime.md says under "CPUs and priorities"."""

from __future__ import annotations

import copy
import pickle
import subprocess
from pathlib import Path

import handmade
import numpy as np
import pytest

import dycl_tvm
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.types import TensorType

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, made = tmp_path_factory.mktemp("priorities"), []
    for name in ("one", "two"):
        program = handmade.straight_program("k_twice", "k_twice", type_=TensorType((1000,), "float32"))
        program.name = name  # libraries with the same metadata would be one
        made += map(str, handmade.build(program, folder, name=name))
    return made


def test_who_leaves_the_threads_to_whom(files: list[str], tmp_path: Path) -> None:
    units, program = toolchain.runtime_sources().host_units(), tmp_path / "program"
    main = REPOSITORY / "tests" / "cpp" / "priority_main.cc"
    every = ["-std=c++17", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags()]
    toolchain.find_compiler().run([*every, str(main), *map(str, units), "-o", str(program), "-ldl", "-lpthread"], main.name)
    done = subprocess.run([str(program), *files], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("all as written\n", 0), done.stderr


def test_copies_have_the_priority_of_the_original(files: list[str]) -> None:
    module = dycl_tvm.load(files[0], files[1])
    module.set_priority("high")
    for other in (copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert other._priority == "high"
        np.testing.assert_array_equal(other(np.ones(1000, "float32")), np.full(1000, 4, "float32"))
    assert module.new_session()._priority == "normal"


@pytest.mark.parametrize("priority", ["LOW", 1, None, -1])
def test_what_is_no_priority(files: list[str], priority: object) -> None:
    with pytest.raises(UsageError, match="a priority is 'low', 'normal' or 'high', not"):
        dycl_tvm.load(files[0], files[1]).set_priority(priority)  # type: ignore[arg-type]
