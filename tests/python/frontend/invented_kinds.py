# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kinds of state that no code of the front end names: how one is made, changed and read, as the text of a program."""

from __future__ import annotations

import sys

#: Functions of a module that is installed like a library.
LIBRARY = """
import threading

def make_counter():
    n = 0
    def bump():
        nonlocal n
        n += 1
        return n
    def get():
        return n
    return bump, get

bump_closure, get_closure = make_counter()

N = 0
def bump_global():
    global N
    N += 1
def get_global():
    return N

class Kept:
    n = 0
    @classmethod
    def bump(cls):
        cls.n += 1
    def get(self):
        return self.n

def bump_default(by=1, box=[0]):
    box[0] += by
    return box[0]
def get_default():
    return bump_default(0)

REGISTRY = {}
def register(name):
    REGISTRY[name] = REGISTRY.get(name, 0) + 1
def registered():
    return REGISTRY.get("a", 0)

FINISHED = [0]
def _finishing():
    try:
        yield 1
    finally:
        pass
def bump_finished():
    for k in _finishing():
        FINISHED[0] += k
def finished():
    return FINISHED[0]

def _count():
    n = 0
    while True:
        n += 1
        yield n
_counting = _count()
def bump_generator():
    return next(_counting)

_local = threading.local()
_local.n = 0
def bump_local():
    _local.n += 1
def get_local():
    return _local.n

def memo(f, known={}):
    def run(x):
        if "a" not in known:
            known["a"] = f(x)
        return known["a"]
    return run

class Slotted:
    __slots__ = ("n",)
    def __init__(self):
        self.n = 0
    def bump(self):
        self.n += 1

class Guarded:
    def __init__(self):
        self.__n = [0]
    def __iadd__(self, by):
        self.__n[0] += by
        return self
    def __int__(self):
        return self.__n[0]

def bump_function():
    bump_function.n += 1
bump_function.n = 0
"""

#: Of each kind: the object, the statement that changes it, and the number that is read of it. ``KEPT`` stands for the object.
KINDS: dict[str, tuple[str, str, str]] = {
    "c_plain": ("invented.Plain()", "KEPT.bump()", "KEPT.get()"),
    "c_reduced": ("invented.Reduced()", "KEPT.bump()", "KEPT.get()"),
    "c_reduced_to_less": ("invented.Less()", "KEPT.bump()", "KEPT.get()"),
    "c_member": ("invented.Member()", "KEPT.n += 1", "KEPT.n"),
    "c_member_by_method": ("invented.Member()", "KEPT.bump()", "KEPT.n"),
    "c_property": ("invented.GetSet()", "KEPT.n += 1", "KEPT.n"),
    "c_property_that_counts": ("invented.GetSet()", "KEPT.next", "KEPT.n"),
    "c_operator": ("invented.Adding()", "KEPT += 1", "KEPT.get()"),
    "c_static": ("invented.OfStatic()", "KEPT.bump()", "KEPT.get()"),
    "c_module": ("invented", "KEPT.bump()", "KEPT.get()"),
    "c_subclass": ("Sub()", "KEPT.bump()", "KEPT.get()"),
    "c_bound_method": ("invented.Plain().bump", "KEPT()", "KEPT.__self__.get()"),
    "ctypes_structure": ("Pair()", "KEPT.n += 1", "KEPT.n"),
    "ctypes_array": ("(ctypes.c_int * 2)()", "KEPT[0] += 1", "KEPT[0]"),
    "ctypes_number": ("ctypes.c_int(0)", "KEPT.value += 1", "KEPT.value"),
    "ctypes_memset": ("(ctypes.c_ubyte * 2)()", "ctypes.memset(ctypes.addressof(KEPT), KEPT[0] + 1, 1)", "KEPT[0]"),
    "array": ("array.array('i', [0])", "KEPT[0] += 1", "KEPT[0]"),
    "array_append": ("array.array('i', [0])", "KEPT.append(1)", "len(KEPT)"),
    "mmap": ("mmap.mmap(-1, 16)", "KEPT[0] += 1", "KEPT[0]"),
    "mmap_position": ("mmap.mmap(-1, 16)", "KEPT.seek(1, 1)", "KEPT.tell()"),
    "string_io": ("io.StringIO()", "KEPT.write('a')", "len(KEPT.getvalue())"),
    "bytes_io": ("io.BytesIO()", "KEPT.write(b'a')", "KEPT.tell()"),
    "bytes_io_buffer": ("io.BytesIO(bytes(4))", "KEPT.getbuffer()[0] += 1", "KEPT.getvalue()[0]"),
    "random": ("random.Random(0)", "KEPT.seed(KEPT.getstate()[1][0] % 7)", "KEPT.getstate()[1][0] % 100"),
    "random_numbers": ("random.Random(0)", "KEPT.random()", "int(KEPT.random() * 100)"),
    "memoryview": ("memoryview(bytearray(4))", "KEPT[0] += 1", "KEPT[0]"),
    "memoryview_of_other": ("bytearray(4)", "memoryview(KEPT)[0] = KEPT[0] + 1", "KEPT[0]"),
    "packed": ("bytearray(8)", "struct.pack_into('i', KEPT, 0, struct.unpack_from('i', KEPT)[0] + 1)", "struct.unpack_from('i', KEPT)[0]"),
    "decimal": ("decimal.Context()", "KEPT.prec += 1", "KEPT.prec"),
    "decimal_flags": ("decimal.Context(prec=2)", "KEPT.divide(decimal.Decimal(1), 3)", "int(KEPT.flags[decimal.Inexact])"),
    "decimal_current": ("decimal", "KEPT.getcontext().prec += 1", "KEPT.getcontext().prec"),
    "deque": ("collections.deque([0], 3)", "KEPT.append(1)", "len(KEPT)"),
    "counter": ("collections.Counter()", "KEPT.update('a')", "KEPT['a']"),
    "ordered": ("collections.OrderedDict(a=1, b=2)", "KEPT.move_to_end(next(iter(KEPT)))", "KEPT[next(iter(KEPT))]"),
    "namespace": ("types.SimpleNamespace(n=0)", "KEPT.n += 1", "KEPT.n"),
    "count": ("itertools.count(1)", "next(KEPT)", "int(repr(KEPT)[6:-1])"),
    "array_numpy": ("np.zeros(2)", "KEPT[0] += 1", "int(KEPT[0])"),
    "generator_numpy": ("np.random.RandomState(0)", "KEPT.rand()", "KEPT.get_state()[2] % 100"),
    "generator_torch": ("torch.Generator()", "KEPT.manual_seed(KEPT.initial_seed() % 50 + 1)", "KEPT.initial_seed() % 100"),
    "weak_dict": ("weakref.WeakKeyDictionary()", "KEPT[C] = KEPT.get(C, 0) + 1", "KEPT.get(C, 0)"),
    "hash": ("hashlib.md5()", "KEPT.update(b'a')", "KEPT.digest()[0]"),
    "compress": ("zlib.compressobj()", "KEPT.compress(b'a' * 50)", "len(KEPT.copy().flush())"),
    "lock": ("threading.Semaphore(1000)", "KEPT.acquire()", "KEPT._value"),
    "event": ("threading.Event()", "KEPT.set()", "int(KEPT.is_set())"),
    "list": ("[0]", "KEPT[0] += 1", "KEPT[0]"),
    "bytes": ("bytearray(2)", "KEPT[0] += 1", "KEPT[0]"),
    "tensor": ("torch.zeros(3)", "KEPT.add_(1)", "KEPT * 2"),
    "context": ("VARIABLE", "KEPT.set(KEPT.get() + 1)", "KEPT.get()"),
    "setting": ("torch", "KEPT.use_deterministic_algorithms(True)", "int(KEPT.are_deterministic_algorithms_enabled())"),
    "memory_of_array": ("np.zeros(3)", "torch.from_numpy(KEPT).add_(1)", "int(KEPT[0])"),
    "memory_of_array_as_tensor": ("np.zeros(3)", "torch.as_tensor(KEPT).add_(1)", "int(KEPT[0])"),
    "memory_of_tensor": ("torch.zeros(3)", "KEPT.numpy()[0] += 1", "KEPT.sum().item()"),
    "memory_of_view": ("np.zeros(3)", "KEPT[1:].fill(KEPT[2] + 1)", "int(KEPT[2])"),
    "memory_of_iterator": ("np.zeros(3)", "for v in np.nditer(KEPT, op_flags=['readwrite']): v[...] = v + 1", "int(KEPT[0])"),
    "item_of_array": ("np.array([[0], None], dtype=object)", "KEPT[0].append(1)", "len(KEPT[0])"),
    "elements_by_python": ("torch.zeros(3)", "KEPT.apply_(lambda v: v + 1)", "KEPT.sum().item()"),
    "requires_grad": ("torch.zeros(3)", "KEPT.requires_grad_(not KEPT.requires_grad)", "int(KEPT.requires_grad)"),
    "gradient_hook": ("torch.zeros(3, requires_grad=True)", "KEPT.register_hook(lambda g: g)", "len(KEPT._backward_hooks or {})"),
    "setting_as_attribute": ("torch.backends.cudnn", "KEPT.benchmark = not KEPT.benchmark", "int(KEPT.benchmark)"),
    "setting_of_process": ("sys", "KEPT.setrecursionlimit(KEPT.getrecursionlimit() + 1)", "KEPT.getrecursionlimit()"),
    "keyword_default": ("keyword", "KEPT.__kwdefaults__['n'] += 1", "KEPT()"),
    **(
        {"note_of_error": ("ValueError(0)", "KEPT.add_note('a')", "len(getattr(KEPT, '__notes__', []))")}
        if sys.version_info >= (3, 11)
        else {}
    ),
    "cache": ("functools.cache(len)", "KEPT('a')", "KEPT.cache_info().currsize"),
    "member_of_enum": ("Member.A", "KEPT.n = getattr(KEPT, 'n', 0) + 1", "getattr(KEPT, 'n', 0)"),
    "library_closure": ("library", "KEPT.bump_closure()", "KEPT.get_closure()"),
    "library_made": ("library.make_counter()", "KEPT[0]()", "KEPT[1]()"),
    "library_global": ("library", "KEPT.bump_global()", "KEPT.get_global()"),
    "library_global_stored": ("library", "KEPT.N += 1", "KEPT.get_global()"),
    "library_class": ("library.Kept()", "KEPT.bump()", "KEPT.get()"),
    "library_default": ("library", "KEPT.bump_default()", "KEPT.get_default()"),
    "library_registry": ("library", "KEPT.register('a')", "KEPT.registered()"),
    "library_finishing": ("library", "KEPT.bump_finished()", "KEPT.finished()"),
    "library_generator": ("library", "KEPT.bump_generator()", "KEPT.bump_generator()"),
    "library_local": ("library", "KEPT.bump_local()", "KEPT.get_local()"),
    "library_memo": ("library.memo(lambda x: x + 1, {})", "KEPT(1)", "KEPT(5)"),
    "library_slots": ("library.Slotted()", "KEPT.bump()", "KEPT.n"),
    "library_operator": ("library.Guarded()", "KEPT += 1", "int(KEPT)"),
    "library_function": ("library.bump_function", "KEPT()", "KEPT.n"),
}

#: Kinds that are right in every structure where their code runs rewritten, and in some where it runs natively.
RIGHT = frozenset(
    ["namespace", "event", "library_closure", "library_made", "library_global", "library_global_stored", "library_class", "library_default"]
    + ["library_slots", "library_function"]
)

#: Where the state is changed, and where it is read.
PLACES: dict[str, str] = {
    "straight": """
CHANGE
n = READ
""",
    "if": """
if x.sum() > 0:
    CHANGE
n = READ
""",
    "both": """
if x.sum() > 0:
    CHANGE
    CHANGE
    y = x * 2
else:
    y = x + READ
n = READ
""",
    "loop": """
while y.sum() < 4:
    y = y + 1
    CHANGE
n = READ
""",
    "return": """
if x.sum() > 2:
    CHANGE
    return y, READ
if x[0, 0] > 0.3:
    CHANGE
n = READ
""",
    "peel": """
last = None
while y.sum() < 4:
    y = y + 1 if last is None else y + last
    last = y * 0 + 1
    CHANGE
n = READ
""",
    "fork": """
more = None
if x.sum() > 0:
    CHANGE
    more = 3
n = READ
if more is not None:
    y = y * more
    CHANGE
""",
    "break": """
for row in (x, x + 1, x - 1):
    if row.sum() > 3:
        break
    CHANGE
n = READ
""",
    "helper": """
def step(z):
    nonlocal kept
    if z.sum() > 0:
        CHANGE
        return z * 2
    return z
y = step(step(y) - 1)
n = READ
""",
}

#: A kind of state for each kind of place, and how the code of libraries runs then.
OF_PLACES = {
    "Attribute": ("namespace", "rewritten"),
    "Bytes": ("bytes", "rewritten"),
    "Cell": ("library_closure", "native"),
    "ClassBody": ("library_class", "native"),
    "Contents": ("list", "rewritten"),
    "Context": ("context", "rewritten"),
    "Hidden": ("memoryview", "rewritten"),
    "Settings": ("setting", "rewritten"),
    "Storage": ("tensor", "rewritten"),
    "Suspended": ("library_finishing", "rewritten"),
}

MODEL = """
import array, collections, contextvars, copy, ctypes, decimal, enum, functools, hashlib, io, itertools, mmap, random
import struct, sys, threading, types, weakref, zlib
import numpy as np
import torch
from torch import nn

class C: ...
class Member(enum.Enum):
    A = 1
def keyword(*, n=0):
    return n
VARIABLE = contextvars.ContextVar("variable", default=0)
class Pair(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int)]
class Sub(invented.Plain): ...

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = MADE if HELD else None

    def forward(self, x):
        kept = self.kept if HELD else MADE
        y = x
        PLACE
        return y, n
"""
