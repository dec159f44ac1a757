# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Texts of a library: what its network prints, what it warns of, what its user has it tell."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import handmade
import pytest

from dycl_tvm.compile.program import CodeBlock, HostInstr, Leave, Program, Reg, Site
from dycl_tvm.errors import UsageError
from dycl_tvm.options import check_user_metadata
from dycl_tvm.runtime import load
from dycl_tvm.runtime.params import read_params

LONG = "0123456789" * 300
TOLD = {"version": "3", 'äöü "\\': "line\nend ??/", "empty": ""}


def _printing() -> Program:
    """``forward(n)`` prints n, then a long line, and returns n."""
    n, done = Reg(0, "int"), Reg(1, "int")
    prints = [HostInstr("print", done, args, None, text) for args, text in (((n,), "n is {}\n"), ((n,), LONG + "{}\n"))]
    return Program(
        "Prints", handmade.call_structure("int"), ["n"], [n], [CodeBlock("entry", prints, Leave(0, (n,)))],
        [Site({"leaf": 0, "type": "int"}, [handmade.INT])], [], [], ["int", "int"], 64, user_metadata=TOLD,
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return handmade.build(_printing(), tmp_path_factory.mktemp("texts"))


def test_prints_go_where_the_program_wants_them(files: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    module, heard = load(*files), []
    module(1)
    assert capfd.readouterr().out == f"n is 1\n{LONG}1\n"
    module.set_log(lambda level, text: heard.append((level, text)), "print")
    module.new_session()(2)
    assert {level for level, _ in heard} == {"print"}
    assert heard[0] == ("print", "n is 2\n")
    assert "".join(text for _, text in heard) == f"n is 2\n{LONG}2\n"
    assert capfd.readouterr().out == ""
    module.set_log(None)
    module(3)
    assert capfd.readouterr().out == f"n is 3\n{LONG}3\n"
    with pytest.raises(UsageError, match="'print' or 'warning'"):
        module.set_log(print, "all")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="to a str"):
        module.set_log("warning")  # type: ignore[arg-type]


def _python(code: str, files: tuple[Path, Path]) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["in the function", "in another thread"])
def test_a_fork_while_a_text_is_told(files: tuple[Path, Path], where: str) -> None:
    """The child prints; nobody there has the lock of the thread that tells the text in the parent."""
    code = f"""
import os, signal, sys, threading, dycl_tvm
module, inside, go, children = dycl_tvm.load(*sys.argv[1:]), threading.Event(), threading.Event(), []
def fork():
    children.append(os.fork())
    if children[0] == 0:
        signal.alarm(20)
        go.set()
def function(level, text):
    inside.set()
    if {where == "in the function"}:
        children or fork()
    else:
        go.wait(30)
module.set_log(function)
first = threading.Thread(target=module.new_session(), args=(1,)) if {where != "in the function"} else None
if first:
    first.start()
    inside.wait(30)
    fork()
else:
    module(1)
if children[0] == 0:
    other = threading.Thread(target=module.new_session(), args=(2,))
    other.start()
    other.join()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
go.set()
"""
    _python(code, files)


def test_a_thread_that_prints_while_the_interpreter_ends(files: tuple[Path, Path]) -> None:
    code = """
import sys, threading, time, dycl_tvm
module = dycl_tvm.load(*sys.argv[1:])
module.set_log(lambda level, text: time.sleep(0.0001))
def run(session):
    while True: session(1)
for _ in range(3): threading.Thread(target=run, args=(module.new_session(),), daemon=True).start()
time.sleep(0.2)
"""
    _python(code, files)


def test_texts_of_threads_do_not_mix_and_may_run_another_session(files: tuple[Path, Path]) -> None:
    module = load(*files)
    other, texts = module.new_session(), []

    def heard(_: str, text: str) -> None:
        texts.append(text)
        if text.startswith("n is 1"):
            other(7)

    module.set_log(heard)
    sessions = [module.new_session() for _ in range(4)]
    threads = [threading.Thread(target=lambda s=s, k=k: [s(k) for _ in range(20)]) for k, s in enumerate(sessions, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    module.set_log(None)
    lines = "".join(texts).splitlines()
    assert len(lines) == 2 * 2 * 80
    assert all(line.startswith(("n is ", LONG)) and len(line) in (6, 7, len(LONG) + 1, len(LONG) + 2) for line in lines)


def test_fewer_threads_are_a_warning(tmp_path: Path) -> None:
    files = handmade.build(handmade.zoo_program(), tmp_path)
    code = """
import resource, sys, numpy as np, dycl_tvm
module, heard = dycl_tvm.load(*sys.argv[1:], num_threads=1), []
module.set_log(lambda level, text: heard.append(level + ": " + text))
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), -1))  # room for the stacks of few threads
module.set_num_threads(60)
module(np.ones(4, "float32"), 0)
print(heard)
"""
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("['warning: the system refuses more than "), done.stderr
    assert done.stdout.endswith("kernels run on fewer than 60']\n")


def test_user_metadata(files: tuple[Path, Path], tmp_path: Path) -> None:
    module = load(*files)
    assert module.user_metadata == TOLD
    library = module._library
    library.dycl_user_metadata.restype, library.dycl_user_metadata.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    for key, text in TOLD.items():
        assert library.dycl_user_metadata(key.encode()) == text.encode()
    for key in (b"3", b"", b"versio", None):
        assert library.dycl_user_metadata(key) is None
    # it is of the library alone: the params of one build fit the other
    other = handmade.build(replace(_printing(), user_metadata={}), tmp_path)
    assert load(other[0], files[1]).user_metadata == {}
    assert read_params(other[1]).fingerprint == read_params(files[1]).fingerprint


@pytest.mark.parametrize("given", [{"a": 1}, {1: "a"}, {"": "a"}, {"a\0": "b"}, {"a": "b\0"}, {"a": "\ud800"}])
def test_user_metadata_is_text(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="user_metadata"):
        check_user_metadata(given)
    with pytest.raises(UsageError, match="no int"):
        check_user_metadata(3)  # type: ignore[arg-type]
    assert check_user_metadata(None) == {}
    assert check_user_metadata({"a": "b"}) == {"a": "b"}
