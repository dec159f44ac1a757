# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Arrays of NumPy that tensors known at run time become: indexed, gone over, compared and turned into numbers and tensors."""

from __future__ import annotations

import numpy as np
import pytest
from test_hunted import X, check_refused, check_right, model_of

from dycl_tvm.frontend.python import stage
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.control import check_control

_HEADER = "import numpy as np\ndef net(x):\n    v = x[0].clone()\n    a = v.numpy()\n    "
RIGHT = {
    "items": "y = 0.0\nfor t in x[1].detach().cpu().numpy():\n    y = y + float(t) * 2\nreturn x * y",
    "items that are compared": "y = 0.0\nfor t in a:\n    if t > 0.5:\n        y += float(t)\n    elif t <= -1: break\nreturn x * y",
    "an array without dimensions": "best = v.argmax().cpu().numpy()\nreturn x * 2 if best == 1 else x",
    "comparisons in the type of the array": "return x * 2 if v.fill_(0.2).numpy()[1] > 0.2 else x",
    "a place in a list, a dict and a tensor": "i = v.argmax().numpy()\nreturn x * [1.0, 2.0, 3.0][i] + v[i] + {0: 1, 1: 5, 2: 7}[int(i)]",
    "a key": "n = (v > 0).sum().reshape(1).numpy()[0]\nreturn x * {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}[n]",
    "a list": "return x * sum(a.tolist())",
    "trips": "for k in range((v > 0).sum().numpy()):\n    x = x + 1\nreturn x",
    "numbers": "return x * int((v * 3).numpy()[1]) + a[1:2].item() + a[-1].item() + x.numpy()[1, 2].item()",
    "a tensor again, in the same memory": "y = torch.from_numpy(a[1:])\nif x.sum() > 0:\n    y.mul_(3)\nreturn v, y",
    "a tensor of its own": "y = torch.tensor(a)\nz = torch.as_tensor(a)\nv.add_(1)\nreturn y, z",
    "the tensor is changed later": "b = a.copy()\nv.add_(1)\nreturn x * float(a[0]) + float(b[0])",
    "classes": "k = isinstance(a, np.ndarray), type(a) is np.ndarray, isinstance(a[0], np.float32), isinstance(a[0], float)\nreturn x, k",
    "what does not depend on the elements": "return x * len(a) * a.shape[0] * a.ndim * a.size, str(a.dtype)",
    "numbers that an operator does not take": "try:\n    return x - True\nexcept RuntimeError:\n    pass\n"
    "try:\n    return x.long() ** -1\nexcept RuntimeError as e:\n    return x * len(str(e))",
    "sums": "s = 0\nfor t in a:\n    s += t * 2 - 0.5\nreturn x * 2 if s > 1 else x",
    "whole numbers": "k = (v * 3).long().numpy()\nreturn x * 3 if k[0] == 1 or (k[2] != 0 and k[1] + 2 < k[0]) else x * k[1].item()",
    "rows": "s = 0.0\nfor r in x.numpy():\n    if r[0] > 0.5: s += r.tolist()[1]\n    for t in r[1:]: s += float(t)\nreturn x * s",
    "other types": "return x * 2 if a.astype(np.int64)[0] > 0 else x - float(a.astype(np.float64)[1])",
    "the memory of a tensor that one path replaces": "if x.sum() > 0:\n    v = v + 1\nv.add_(1)\nreturn float(a[0]), v",
    "a tensor that is changed while the array is read": "k = 0\nwhile a[0] < 3 and k < 4:\n    v += 1\n    k += 1\nreturn v, k",
    "what is read in one line": "return float(v.numpy()[0] + 1), float(sum(x[1].numpy())), float(x[0].numpy()[int(x[0, 0]) % 2])",
    "the largest": "best, at = -1e9, -1\nfor i, t in enumerate(a):\n    if float(t) > best: best, at = float(t), i\nreturn x * best, at",
    "functions of NumPy on constants": "w = np.linspace(0, 1, 4)\nif x.sum() > 0:\n    np.copyto(w, np.ones(4))\n"
    "else:\n    np.add(w, 1, out=w)\n"
    "np.fill_diagonal(w.reshape(2, 2), np.clip(3.0, 0, 2))\nreturn x * w[1] + np.interp(1.5, [0, 2], [0, w[3]]) + float(np.log2(8))",
    "a function of the program's that NumPy calls": "n = []\ng = np.frompyfunc(lambda k: n.append(k) or k, 1, 1)\n"
    "if x.sum() > 0: g(np.ones(2))\nreturn x * len(n)",
    "arrays made of tensors": "w = torch.linspace(0.1, 1, 5)\nc = np.array(w ** 2)\nw += 1\nm = np.asarray(x)\nd = np.array(v)\nv.add_(1)\n"
    "return x * (float(c[1]) + float(d[0])) + np.stack([w, w * 2])[1, 2] + np.sort([w[1], 3.0])[0] + float(m[0, 1])"
    " + (w.sum() + 1).numpy().item()",
    "what an array's methods write to": "w = np.ones(3)\nif x.sum() > 0: w.cumsum(0, None, w)\nelse: w[1:].clip(2, 3, out=w[:2])\n"
    "return x * w[1] + w.max().item() + w.reshape(3, 1).sum()",
    "results": "if x.sum() > 0:\n    return a, {'n': a[0]}, a.astype(np.int64), x\n"
    "v.add_(1)\nreturn v.numpy(), [np.arange(3.0)[::-1], np.float32(2)]",
    "what lies in rows": "b, c = np.ascontiguousarray(x.t()), np.ascontiguousarray(v.sum())\nx.add_(1)\nreturn float(b[0, 1]), c.shape, c",
    "one side only": "b = a\nif x.sum() > 0:\n    b = a[1:]\n    y = float(b[0])\nelse:\n    y = 2.0\nreturn x * y",
}
REFUSED = {
    "a function of NumPy": ("return x * int(np.argmax(a))", "argmax"),
    "a universal function": ("return x * float(np.exp(a)[0])", "exp"),
    "a number": ("return x + np.floor(x.sum().item())", "floor"),
    "a method": ("return x * float(a.sum())", "`sum` of an array"),
    "an attribute that is asked for": ("return x if hasattr(a, 'nothing') else x * 2", "`nothing` of an array"),
    "a handler of what NumPy may raise": ("try:\n    return x * float(-a[0])\nexcept TypeError:\n    return x", "__neg__() of a number"),
    "a remainder": ("return x * 2 if a[0] % 1 > 0 else x", "__mod__() of a number"),
    "a type that is mixed": ("return x * 2 if v.long().numpy()[0] > 0.5 else x", "the operator > of a number"),
    "another type": ("return x * 2 if v.long().numpy()[0] > a[0] else x", "the operator > of a number"),
    "a number that the type does not hold": ("return x * 2 if v.to(torch.int8).numpy()[0] < 300 else x", "the operator < of a number"),
    "a mask": ("return x * float(a[a > 0][0])", "an index that is no number"),
    "a change": ("a[0] = 1\nreturn v", "a change in place of an array"),
    "a change by an operator": ("a += 1\nreturn v", "`+=` of an array"),
    "a hash": ("return x if a[0] in {1.0: 2} else x * 2", "__hash__() of a number"),
    "a text": ("return x * len(f'{a[0]:.1f}')", "__format__() of a number"),
    "a tensor that is sorted": ("return np.sort(x)", "sort"),
    "a tensor that is searched": ("return np.where(x)", "where"),
    "a tensor that is stacked": ("return np.stack(x)", "stack"),
    "the text of a tensor that str() makes": ("return x * 2 if str((v > 0).sum()) == '2' else x", "text of a tensor"),
    "the text of a tensor that % makes": ("return x * 2 if '%s' % (v > 0).sum() == '2' else x", "text of a tensor"),
    "an array of texts as a result": ("return x, np.array(['a'])", "a ndarray is returned"),
}


def _program(body: str) -> str:
    return _HEADER + body.replace("\n", "\n    ") + "\n"


#: What computes with Python's numbers in the type of an array: NumPy 1 looks at the values to find a type, so it is refused there.
_OF_NUMPY_2 = (
    *("items that are compared", "an array without dimensions", "sums", "whole numbers", "rows", "other types"),
    *("a tensor that is changed while the array is read", "what is read in one line"),
)
_NUMPY_1 = np.__version__.startswith("1.")


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    source = _program(RIGHT[name])
    if _NUMPY_1 and name in _OF_NUMPY_2:
        check_refused(source, "the operator")
        return
    check_right(source)
    args = (X.clone(),)
    check_control(model_of(source), stage(model_of(source), args), args, {}, budget=Budget(0.1))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, why = REFUSED[name]
    check_refused(_program(body), "the operator" if _NUMPY_1 and name == "a mask" else why)
