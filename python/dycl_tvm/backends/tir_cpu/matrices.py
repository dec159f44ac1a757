# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Factorisations of matrices, one of a batch after the other: what LAPACK's unblocked routines do, element by element.

The order of rows (partial pivoting) and the signs (Householder reflections) are LAPACK's, so that factors are those of PyTorch. All loops
begin at 0 (see :mod:`.loops`); what is not in the triangle at hand is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.machine import Machine

#: Rounds of rotations over all pairs of columns; they converge quadratically, after four or five.
_ROUNDS = 12


class Matrices:
    """Kernels over ``count`` matrices of m x n elements of ``dtype``."""

    def __init__(self, count: int, m: int, n: int, dtype: str, machine: Machine) -> None:
        self.count, self.m, self.n, self.dtype, self.machine = count, m, n, dtype, machine

    def _each(self, work: float, matrix: Callable[..., None]) -> Callable[..., None]:
        """Return the body of a kernel that calls ``matrix(*buffers, b)`` for each of the batch; ``work`` are the operations of one."""

        def body(*buffers: Any) -> None:
            with parallel(self.count, self.machine, self.count * work * 1e-9) as b:
                matrix(*buffers, b)

        return body

    def _copy(self, b: Any, source: Any, target: Any, m: int, n: int, dtype: str) -> None:
        with T.serial(0, m) as i, T.serial(0, n) as j:
            store(target, [b, i, j], source[b, i, j].astype(dtype))

    def lu(self) -> Any:
        """(a, lu, pivots, info): factors with partial pivoting, rows counted from 1, the first pivot that is 0."""
        m, n, dtype, k_max = self.m, self.n, self.dtype, min(self.m, self.n)

        def matrix(a: Any, lu: Any, pivots: Any, info: Any, b: Any) -> None:
            best, held, at = T.alloc_buffer((1,), dtype), T.alloc_buffer((1,), dtype), T.alloc_buffer((1,), "int32")
            self._copy(b, a, lu, m, n, dtype)
            store(info, [b], tirx.const(0, "int32"))
            with T.serial(0, k_max) as k:
                store(best, [0], tirx.abs(lu[b, k, k]))
                store(at, [0], k)
                with T.serial(0, m) as i:
                    with T.If(tirx.And(i > k, tirx.abs(lu[b, i, k]) > best[0])), T.Then():
                        store(best, [0], tirx.abs(lu[b, i, k]))
                        store(at, [0], i)
                store(pivots, [b, k], at[0] + 1)
                with T.serial(0, n) as j:
                    store(held, [0], lu[b, k, j])
                    store(lu, [b, k, j], lu[b, at[0], j])
                    store(lu, [b, at[0], j], held[0])
                with T.If(tirx.And(lu[b, k, k] == tirx.const(0, dtype), info[b] == 0)), T.Then():
                    store(info, [b], k + 1)
                with T.serial(0, m) as i:
                    with T.If(i > k), T.Then():
                        with T.If(lu[b, k, k] != tirx.const(0, dtype)), T.Then():
                            store(lu, [b, i, k], lu[b, i, k] / lu[b, k, k])
                        with T.serial(0, n) as j:
                            with T.If(j > k), T.Then():
                                store(lu, [b, i, j], lu[b, i, j] - lu[b, i, k] * lu[b, k, j])

        body = self._each(m * n * k_max, matrix)
        shape = (self.count, m, n)
        return prim_func(
            [("a", shape, dtype), ("lu", shape, dtype), ("pivots", (self.count, k_max), "int32"), ("info", (self.count,), "int32")], body
        )

    def triangular(self, columns: int, upper: bool, unit: bool) -> Any:
        """(a, b, x) with a x = b, where a counts on one side of its diagonal only."""
        n, dtype = self.n, self.dtype

        def matrix(a: Any, right: Any, x: Any, b: Any) -> None:
            self._copy(b, right, x, n, columns, dtype)
            with T.serial(0, n) as step:
                i = n - 1 - step if upper else step
                with T.serial(0, n) as j:
                    with T.If(j > i if upper else j < i), T.Then():
                        with T.serial(0, columns) as c:
                            store(x, [b, i, c], x[b, i, c] - a[b, i, j] * x[b, j, c])
                if not unit:
                    with T.serial(0, columns) as c:
                        store(x, [b, i, c], x[b, i, c] / a[b, i, i])

        body = self._each(n * n * columns, matrix)
        return prim_func(
            [("a", (self.count, n, n), dtype), ("b", (self.count, n, columns), dtype), ("x", (self.count, n, columns), dtype)], body
        )

    def cholesky(self) -> Any:
        """(a, l, info): the lower factor of what stands below the diagonal, and the first minor that is not positive."""
        n, dtype = self.n, self.dtype

        def matrix(a: Any, lower: Any, info: Any, b: Any) -> None:
            rest = T.alloc_buffer((1,), dtype)
            store(info, [b], tirx.const(0, "int32"))
            with T.serial(0, n) as j, T.serial(0, n) as i:
                store(lower, [b, i, j], tirx.const(0, dtype))
                with T.If(i >= j), T.Then():
                    store(rest, [0], a[b, i, j])
                    with T.serial(0, n) as k:
                        with T.If(k < j), T.Then():
                            store(rest, [0], rest[0] - lower[b, i, k] * lower[b, j, k])
                    with T.If(i == j):
                        with T.Then():
                            with T.If(tirx.And(tirx.Not(rest[0] > tirx.const(0, dtype)), info[b] == 0)), T.Then():
                                store(info, [b], j + 1)
                            store(lower, [b, i, j], tirx.sqrt(rest[0]))
                        with T.Else():
                            store(lower, [b, i, j], rest[0] / lower[b, j, j])

        body = self._each(n**3 / 3, matrix)
        shape = (self.count, n, n)
        return prim_func([("a", shape, dtype), ("l", shape, dtype), ("info", (self.count,), "int32")], body)

    def reflections(self) -> Any:
        """(a, r, tau): the factor R above the diagonal, below it the vectors of the reflections that make it."""
        m, n, dtype, k_max = self.m, self.n, self.dtype, min(self.m, self.n)
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

        def matrix(a: Any, r: Any, tau: Any, b: Any) -> None:
            norm, head, total = (T.alloc_buffer((1,), dtype) for _ in range(3))
            self._copy(b, a, r, m, n, dtype)
            with T.serial(0, k_max) as k:
                store(norm, [0], zero)
                with T.serial(0, m) as i:
                    with T.If(i > k), T.Then():
                        store(norm, [0], norm[0] + r[b, i, k] * r[b, i, k])
                store(tau, [b, k], zero)
                with T.If(norm[0] != zero), T.Then():
                    store(norm, [0], tirx.sqrt(norm[0] + r[b, k, k] * r[b, k, k]))
                    store(head, [0], tirx.Select(r[b, k, k] < zero, norm[0], zero - norm[0]))
                    store(tau, [b, k], (head[0] - r[b, k, k]) / head[0])
                    store(norm, [0], one / (r[b, k, k] - head[0]))
                    with T.serial(0, m) as i:
                        with T.If(i > k), T.Then():
                            store(r, [b, i, k], r[b, i, k] * norm[0])
                    store(r, [b, k, k], head[0])
                    self._reflect(b, r, r, tau, total, k, m, n, lambda j: j > k)

        body = self._each(2 * m * n * k_max, matrix)
        shape = (self.count, m, n)
        return prim_func([("a", shape, dtype), ("r", shape, dtype), ("tau", (self.count, k_max), dtype)], body)

    def _reflect(self, b: Any, vectors: Any, x: Any, tau: Any, total: Any, k: Any, m: int, n: int, chosen: Callable[[Any], Any]) -> None:
        """Emit the k-th reflection of the columns of x that are chosen."""
        with T.serial(0, n) as j:
            with T.If(chosen(j)), T.Then():
                store(total, [0], x[b, k, j])
                with T.serial(0, m) as i:
                    with T.If(i > k), T.Then():
                        store(total, [0], total[0] + vectors[b, i, k] * x[b, i, j])
                store(total, [0], total[0] * tau[b, k])
                store(x, [b, k, j], x[b, k, j] - total[0])
                with T.serial(0, m) as i:
                    with T.If(i > k), T.Then():
                        store(x, [b, i, j], x[b, i, j] - vectors[b, i, k] * total[0])

    def orthogonal(self, reflections: int) -> Any:
        """(a, tau, q): the product of the reflections whose vectors stand below the diagonal of a."""
        m, n, dtype = self.m, self.n, self.dtype

        def matrix(a: Any, tau: Any, q: Any, b: Any) -> None:
            total = T.alloc_buffer((1,), dtype)
            with T.serial(0, m) as i, T.serial(0, n) as j:
                store(q, [b, i, j], tirx.Select(i == j, tirx.const(1, dtype), tirx.const(0, dtype)))
            with T.serial(0, reflections) as step:
                self._reflect(b, a, q, tau, total, reflections - 1 - step, m, n, lambda j: j >= 0)

        body = self._each(2 * m * n * reflections, matrix)
        shape = (self.count, m, n)
        return prim_func([("a", shape, dtype), ("tau", (self.count, reflections), dtype), ("q", shape, dtype)], body)

    def rotations(self) -> Any:
        """(a, u, v): orthogonal columns u = a v with an orthogonal v, by one-sided Jacobi rotations in float64."""
        m, n, dtype, wide = self.m, self.n, self.dtype, "float64"
        zero, one, small = (tirx.const(x, wide) for x in (0.0, 1.0, 1e-16))

        def matrix(a: Any, u: Any, v: Any, b: Any) -> None:
            sums, turn, held = T.alloc_buffer((3,), wide), T.alloc_buffer((3,), wide), T.alloc_buffer((1,), wide)
            self._copy(b, a, u, m, n, wide)
            with T.serial(0, n) as i, T.serial(0, n) as j:
                store(v, [b, i, j], tirx.Select(i == j, one, zero))

            def rotate(x: Any, rows: int, p: Any, q: Any) -> None:
                with T.serial(0, rows) as i:
                    store(held, [0], x[b, i, p])
                    store(x, [b, i, p], turn[1] * held[0] - turn[2] * x[b, i, q])
                    store(x, [b, i, q], turn[2] * held[0] + turn[1] * x[b, i, q])

            with T.serial(0, _ROUNDS), T.serial(0, n) as p, T.serial(0, n) as q:
                with T.If(q > p), T.Then():
                    for s in range(3):
                        store(sums, [s], zero)
                    with T.serial(0, m) as i:
                        store(sums, [0], sums[0] + u[b, i, p] * u[b, i, p])
                        store(sums, [1], sums[1] + u[b, i, q] * u[b, i, q])
                        store(sums, [2], sums[2] + u[b, i, p] * u[b, i, q])
                    with T.If(tirx.abs(sums[2]) > small * tirx.sqrt(sums[0] * sums[1])), T.Then():
                        store(turn, [0], (sums[1] - sums[0]) / (sums[2] + sums[2]))
                        sign = tirx.Select(turn[0] < zero, zero - one, one)
                        store(turn, [0], sign / (tirx.abs(turn[0]) + tirx.sqrt(turn[0] * turn[0] + one)))
                        store(turn, [1], one / tirx.sqrt(turn[0] * turn[0] + one))
                        store(turn, [2], turn[1] * turn[0])
                        rotate(u, m, p, q)
                        rotate(v, n, p, q)

        body = self._each(6 * _ROUNDS * n * n * m, matrix)
        return prim_func([("a", (self.count, m, n), dtype), ("u", (self.count, m, n), wide), ("v", (self.count, n, n), wide)], body)
