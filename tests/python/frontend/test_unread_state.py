# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What calls fill and no call reads is left out, and the report says so; whatever reads it shows."""

from __future__ import annotations

import collections
import textwrap
from pathlib import Path

import pytest
import torch
from differential import same
from judge import load, outcome

import dycl_tvm
from dycl_tvm.cli.main import main
from dycl_tvm.errors import UnsupportedError

X = torch.tensor([[1.0, 0.5, 2.0], [-0.5, 1.0, 0.25]])
HEADER = "import collections, copy\nimport torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = INIT
    def forward(self, x):
"""


def net(body: str, init: str = "[]") -> str:
    return NET.replace("INIT", init) + textwrap.indent(body, "        ")


UNREAD = {
    "a list": net("self.log.append(x * 2)\nreturn x + 1"),
    "in a branch": net("y = x + 1\nif y.sum() > 3: self.log.append(y)\nreturn y"),
    "in a loop": net("while x.sum() < 9:\n    x = x + 1\n    self.log.append(x)\nreturn x"),
    "several": net("self.log.extend([x, x + 1])\nreturn x"),
    "a deque": net("self.log.appendleft(x)\nreturn x", "collections.deque()"),
    "a set": net("self.log.add(len(x))\nself.log.add('seen')\nreturn x", "set()"),
    "a sum of lists": net("self.log += [x, len(x)]\nreturn x"),
    "a place in a list": net("self.log.insert(0, x)\nreturn x"),
    "a dict by a number": net("self.log[x.sum().item()] = x\nreturn x", "{}"),
    "a dict by what the data say": net("self.log[int(x.sum())] = x\nself.log.update({'last': x}, first=1)\nreturn x", "{}"),
    "a dict and another one": net("self.log |= {'last': x}\nreturn x", "{}"),
    "objects": net("self.log.append({'x': x, 'n': object()})\nreturn x"),
    "by a library": net("list(map(self.log.append, [x]))\nreturn x"),
    "asked what it is": net("self.log.append(x)\nreturn x, self.log is not None, isinstance(self.log, list), type(self.log) is list"),
    "under two names": net("self.log.append(x)\nreturn x, self.log is self.other", "[]\n        self.other = self.log"),
    "in a list that is read": net("self.log[0].append(x)\nreturn x * len(self.log)", "[[], []]"),
    "lists by name": net("self.log['m'].append(x)\nself.log['n'] += [x, 1]\nreturn x", "collections.defaultdict(list)"),
    "lists by name in a branch": net("if x.sum() > 3: self.log[f'n{len(x)}'].extend([x])\nreturn x", "collections.defaultdict(list)"),
    "dicts by name": net("self.log['m']['k'] = x\nself.log['m'].update(a=x)\nreturn x", "collections.defaultdict(dict)"),
    "a global": "LOG = []\ndef net(x):\n    LOG.append(x)\n    return x + 1\n",
    "of a class": "class Net(nn.Module):\n    log = []\n    def forward(self, x):\n        self.log.append(x)\n        return x\n",
    "by a hook": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log, self.act = [], nn.ReLU()
        self.act.register_forward_hook(lambda module, args, result: self.log.append(result))
    def forward(self, x):
        return self.act(x)
""",
    "actions of a gate": """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = []
    def forward(self, x):
        action = (x.mean() > 0.4).float()
        self.log.append(action)
        return action
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.control = Gate()
    def forward(self, x):
        for _ in range(4):
            if self.control(x) > 0.5: x = x - 0.25
        return x
""",
}
READ = {
    "length": "self.log.append(x)\nreturn x * len(self.log)",
    "truth": "if self.log: x = x + 1\nself.log.append(x)\nreturn x",
    "items": "self.log.append(x)\nreturn sum(self.log)",
    "on a path that no input takes": "self.log.append(x)\nif x.sum() > 1e30: return self.log[0]\nreturn x",
    "under another name": "log = self.log\nlog.append(x)\nreturn x, log",
    "a pattern": "self.log.append(1)\nmatch self.log:\n    case [one]: return x\n    case _: return -x",
    "comparison": "self.log.append(1)\nreturn x, self.log == [1]",
    "membership": "self.log.append(1)\nreturn x, 2 in self.log",
    "text": "self.log.append(1)\nreturn x, f'{self.log}'",
    "a copy": "self.log.append(1)\nreturn x, copy.copy(self.log)",
    "by its name": "self.log.append(1)\nreturn x, len(vars(self)['log'])",
    "a star": "self.log.append(x)\nreturn [*self.log]",
    "PyTorch": "self.log.append(x)\nreturn torch.stack(self.log)",
    "a handler": "self.log.append(x)\ntry: return torch.stack(self.log)\nexcept TypeError: return x",
    "sorting": "self.log.append(1)\nself.log.sort()\nreturn x",
}


#: How a dict is read.
READ_DICT = {
    "length": "return x * len(self.log)",
    "truth": "return x * 2 if self.log else x",
    "membership": "return x, 'a' in self.log",
    "an item": "return x + self.log[1]",
    "an item, or none": "return x, self.log.get('a')",
    "what is made if it is not there": "return x, self.log.setdefault('a', 1)",
    "keys": "return x, [*self.log]",
    "items": "return x, sum(v for k, v in self.log.items())",
    "a copy": "return x, dict(self.log)",
    "a star": "return x, {**self.log}",
    "arguments": "return x, dict(self.log, **self.log)",
    "comparison": "return x, self.log == {}",
    "text": "return x, f'{self.log}'",
    "a pattern": "match self.log:\n    case {'a': 1}: return x\n    case _: return -x",
    "another one": "return x, {'a': 1} | self.log",
    "deletion": "self.log.clear()\nreturn x, self.log.pop('b', 1)",
    "a handler": "try: return x, eval('1', self.log)\nexcept TypeError: return x",
    "a library": "import json\nreturn x, len(json.dumps(self.log, default=str))",
    "by its name": "return x, len(vars(self)['log'])",
}


#: How lists by name are read.
READ_BY_NAME = {
    "length of one": "return x * len(self.log['m'])",
    "number of names": "return x * len(self.log)",
    "an item": "return x + self.log['m'][-1]",
    "under another name": "self.last = self.log['m']\nreturn x * len(self.last)",
    "stored under another name": "own = []\nself.log['n'] = own\nself.log['n'].append(1)\nreturn x * len(own)",
    "a result": "return x, self.log['m']",
    "names": "return x, sorted(self.log)",
    "membership": "return x * 2 if 'n' in self.log else x",
    "one or none": "return x, self.log.get('m')",
    "are they one": "return x, self.log['m'] is self.log['n'], self.log['m'] is self.log['m'], self.log['m'] == self.log['n']",
    "a loop": "for one in self.log.values(): x = x + len(one)\nreturn x",
    "a name of the run": "self.log[int(x.sum())].append(1)\nreturn x",
    "PyTorch": "return torch.stack(self.log['m'])",
    "another kind": "self.log['m'] = 1\nreturn x, self.log['m']",
}


@pytest.mark.parametrize("name", READ_BY_NAME)
@pytest.mark.parametrize("held", ["", ", m=[1]"])
def test_lists_by_name_that_are_read_are_right_or_refused(name: str, held: str) -> None:
    source = net(f"self.log['m'].append(x.sum())\n{READ_BY_NAME[name]}", f"collections.defaultdict(list{held})")
    try:
        graph = dycl_tvm.stage(made(source), (X,))
    except UnsupportedError:
        return
    call, eager = graph.interpret(), made(source)
    for x in (X, -X, X + 3):
        want, got = outcome(lambda x=x: eager(x.clone())), outcome(lambda x=x: call(x.clone()))
        assert type(want) is type(got) if isinstance(want, Exception) else same(want, got)


@pytest.mark.parametrize("name", READ_DICT)
def test_a_dict_that_is_read_is_right_or_refused(name: str) -> None:
    source = net(f"self.n += 1\nself.log[self.n] = x.sum()\n{READ_DICT[name]}", "{}\n        self.n = 0")
    try:
        graph = dycl_tvm.stage(made(source), (X,))
    except UnsupportedError:
        return
    assert not graph.left_out
    call, eager = graph.interpret(), made(source)
    for x in (X, -X, X + 3):
        assert same(outcome(lambda x=x: eager(x.clone())), call(x.clone()))


def made(source: str) -> object:
    module = load(HEADER + source)
    return module.Net().eval() if hasattr(module, "Net") else module.net


@pytest.mark.parametrize("name", UNREAD)
def test_left_out(name: str) -> None:
    program = made(UNREAD[name])
    graph = dycl_tvm.stage(program, (X,))
    assert len(graph.left_out) == 1
    assert "none reads at " in graph.left_out[0]
    assert not graph.state
    call, eager = graph.interpret(), made(UNREAD[name])
    for x in (X, -X, X + 3, X):
        assert same(eager(x.clone()), call(x.clone()))
    log = [m.log for m in program.modules() if hasattr(m, "log")] if isinstance(program, torch.nn.Module) else []
    kinds = (list, dict, set, collections.deque, collections.defaultdict)
    assert all(type(x) in kinds for x in log), "what stands for it stays in the model"


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_not(name: str) -> None:
    with pytest.raises(UnsupportedError, match="left with other contents|known at run time|text of"):
        dycl_tvm.stage(made(net(READ[name])), (X,))


def test_a_window_that_is_read_is_kept() -> None:
    source = net("self.log.append(x)\nreturn sum(self.log), len(self.log)", "collections.deque(maxlen=2)")
    call, eager = dycl_tvm.stage(made(source), (X,)).interpret(), made(source)
    for x in (X, -X, X + 3, X):
        assert same(outcome(lambda x=x: eager(x.clone())), call(x.clone()))


def test_the_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "import warnings\n" + net("self.log.append(x)\nwarnings.warn('slow')\nreturn x + 1")
    artifact = dycl_tvm.build(made(source), (X,))
    artifact.export_library(tmp_path / "net.so")
    assert main(["inspect", str(tmp_path / "net.so")]) == 0
    for text in (str(artifact.report()), capsys.readouterr().out):
        assert "`log`, which calls fill and none reads" in text
        assert "a warning at" in text
