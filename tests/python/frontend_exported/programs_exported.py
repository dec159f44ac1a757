# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models with the control flow operators of torch.export, each with its example inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from functorch.experimental.control_flow import map as map_elements
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.strict_mode import strict_mode
from torch.nn.attention.flex_attention import flex_attention

PROGRAMS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {}


def program(cls: Any) -> Any:
    PROGRAMS[cls.__name__] = lambda: (cls().eval(), cls.example())
    return cls


@program
class CapturedInCond(nn.Module):
    """Weights and an outer value are captured by the branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(2, 4),)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max()
        return torch.cond(x.sum() > 0, lambda x: self.a(x) * scale, lambda x: self.b(x) - scale, (x,))


@program
class NestedCond(nn.Module):
    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(5),)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def positive(x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cond(x.max() > 1, lambda x: (x + 1, x * 2), lambda x: (x.cos(), x.sin()), (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: (x - 1, x.exp()), (x,))


@program
class Aliased(nn.Module):
    """A view of what the branches take is changed before and after them, and so is their result."""

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(4, 3),)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        row = y[1]
        row.mul_(2)
        z = torch.cond(x[0, 0] > 0, lambda a: a + a[1].sum(), lambda a: a * a.mean(), (y,))
        row.add_(10)
        z.view(-1)[2] = 7.0
        return y, z


@program
class WhileWithNumber(nn.Module):
    """The loop carries a tensor and a number; its bound is a host scalar."""

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.tensor([1.5, -0.5, 2.0]), torch.tensor(4))

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        def going(i: Tensor, x: Tensor) -> Tensor:
            return (i < n) & (x.norm() < 30)

        return while_loop(going, lambda i, x: (i + 1, x * 1.5 + i), (torch.zeros((), dtype=torch.int64), x))


@program
class CondInWhile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(1, 3),)

    def forward(self, x: Tensor) -> Tensor:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.cond(x.sum() > 0, lambda x: self.step(x), lambda x: x + 0.75, (x,))

        return while_loop(lambda i, x: i < 12, body, (torch.zeros((), dtype=torch.int64), x))[1]


@program
class WhileInWhile(nn.Module):
    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.rand(3) * 4,)

    def forward(self, x: Tensor) -> Tensor:
        def inner(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return i - 1, y + i

        def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, while_loop(lambda j, y: j > 0, inner, (i.clone(), y * 0.5))[1]

        return while_loop(lambda i, y: y.sum() < 20, body, (torch.ones((), dtype=torch.int64), x))[1]


class _Scan(nn.Module):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, h: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.cell(x, h)
            return h, h.relu()

        return scan(step, h, xs)

    @classmethod
    def example(cls) -> tuple[Any, ...]:
        return torch.randn(2, 4), torch.randn(cls.steps, 2, 3)


@program
class ShortScan(_Scan):
    steps = 3


@program
class LongScan(_Scan):
    steps = 20


@program
class ReverseScan(nn.Module):
    @staticmethod
    def example() -> tuple[Any, ...]:
        return torch.zeros(2), torch.randn(2, 11)

    def forward(self, init: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda c, x: (c * 0.5 + x, (c + x).sin()), init, xs, dim=1, reverse=True)


@program
class LongMap(nn.Module):
    """More elements than are unrolled, a branch for each, a captured tensor."""

    @staticmethod
    def example() -> tuple[Any, ...]:
        return torch.randn(13, 3), torch.randn(3)

    def forward(self, xs: Tensor, y: Tensor) -> Tensor:
        return map_elements(lambda x, y: torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x * y, (x, y)), xs, y)


@program
class Prefix(nn.Module):
    @staticmethod
    def example() -> tuple[Any, ...]:
        return torch.rand(7, 2), torch.rand(7, 2)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        def combine(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return x[0] * y[0], x[1] * y[0] + y[1]

        return associative_scan(combine, (a, b), 0, combine_mode="generic")


@program
class HostScalars(nn.Module):
    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.tensor([0.5, 2.0, 1.0]),)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        k = (x.sum() * 2).to(torch.int64).item()
        f = x.max().item()
        torch._check(k >= 0)
        torch._check(k < 100)
        return x * k + f, k + 1, f * 2


@program
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(2, 3),)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layer(x).relu()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            x = x @ x.T
        return x.sin()


@program
class FlexAttention(nn.Module):
    """Attention with scores and mask in the user's code: a learned bias by head, causal, grouped heads."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 9))

    @staticmethod
    def example() -> tuple[Any, ...]:
        return torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.where(i + 4 >= j, s + self.bias[h, j], -float("inf"))

        y = flex_attention(q, k, v, score, enable_gqa=True)
        return torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: -y, (y,))


@program
class Containers(nn.Module):
    """Nested structures in and out, keyword names, None."""

    @staticmethod
    def example() -> tuple[Any, ...]:
        return ({"a": torch.randn(2), "b": [torch.randn(3), torch.randn(1)]}, None, 3)

    def forward(self, x: dict[str, Any], mask: Tensor | None, k: int) -> dict[str, Any]:
        return {"sum": x["a"] * k, "rest": (x["b"][0] + x["b"][1], None, [x["a"].sum() > 0])}


class Counter(nn.Module):
    """Keeps a count and a running sum in buffers, which two names share."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        self.total.copy_(torch.cond(x.sum() > 0, lambda t, x: t + x, lambda t, x: t - x, (self.total, x)))
        return self.total * 1, self.calls + 0


@program
class Wrapped(nn.Module):
    """Graphs that are called, not branched to: checkpointing, strict mode, hints, and casts by autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    @staticmethod
    def example() -> tuple[Any, ...]:
        return (torch.randn(2, 3),)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.utils.checkpoint.checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=False)
        y = strict_mode(lambda y: (y + 1,), (y,))[0]
        y = hints_wrapper(lambda y: y * 2, (y,), {}, hints={"kind": "test"})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ x.T
        return y, z.float()
