import array, collections, contextlib, contextvars, copy, dataclasses, functools, itertools, math, operator, queue, re, types
import numpy as np
import torch
from torch import nn

N = 0
TABLE = {"n": 0, "t": torch.zeros(2, 3)}
VAR = contextvars.ContextVar("VAR", default=0)
MODULE = types.ModuleType("other")
MODULE.N = 0


class Slots:
    __slots__ = ("n", "t")

    def __init__(self):
        self.n, self.t = 0, torch.zeros(2, 3)


class Base:
    shared = [0]
    made = 0


class Counter(Base):
    def __init__(self):
        self.n = 0
        self._level = 0

    def __call__(self):
        self.n += 1
        return self.n

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value + 1

    def __iadd__(self, other):
        self.n += other
        return self

    def __enter__(self):
        self.n += 1
        return self

    def __exit__(self, *error):
        self.n += 10
        return False

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.n += 1
        return i

    def __eq__(self, other):
        self.n += 1
        return True

    def __hash__(self):
        return 7


@dataclasses.dataclass
class Data:
    n: int = 0
    items: list = dataclasses.field(default_factory=lambda: [0])


def bump():
    global N
    N += 1
    return N


def remember(value, seen=[0]):
    seen[0] += value
    return seen[0]


CALLS = [0]


@functools.lru_cache(None)
def cached(k):
    CALLS[0] += 1
    return k + CALLS[0]


@contextlib.contextmanager
def entered(log):
    log.append(1)
    try:
        yield log
    finally:
        log.append(2)


@functools.singledispatch
def dispatched(x, log):
    log.append("object")


@dispatched.register
def _(x: int, log):
    log.append("int")


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, z, act):
        if z.sum() > 1:
            self.calls += 1
            act()
            return z * 0.5
        return z


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        with torch.no_grad():
            self.lin.weight.copy_(torch.eye(3) * 0.5)
            self.lin.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        self.lins = nn.ModuleList([nn.Tanh(), nn.ReLU()])
        self.sub = Sub()
        self.register_buffer("buf", torch.zeros(2, 3))
        self.n = 0
        self.t = torch.zeros(2, 3)
        self.items = [0, torch.zeros(2, 3)]
        self.table = {"n": 0}
        self.slots = Slots()
        self.counter = Counter()
        self.space = types.SimpleNamespace(n=0)
        self.data = Data()
        self.array = np.zeros(2)
        self.ids = itertools.count(1)
        self.cycle = itertools.cycle([1, 2, 3])
        self.queue = collections.deque([1, 2, 3], maxlen=3)
        self.rows = list(self.buf.unbind(0))
        self.partial = functools.partial(remember, seen=[0])

    def forward(self, x):
        z = x + 0
        if z.sum() > 1 and z[1, 1] < 3:
            self.t = self.buf
        return ((self.t is self.buf), z)
# wrong: call 1: eager (True, tensor([[-1.0000, 0.5000, 1.0000], [-2.0000, 0.0000, 0.5000]])), staged (False, tensor([[-1.0000, 0.5000, 1.0000], [-2.0000, 0.0000, 0.5000]]))
