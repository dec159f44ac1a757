# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recursive programs in which what is returned, kept or changed may be one thing or another: right, or refused."""

from __future__ import annotations


def returns_what_it_is_given(x):
    def f(y):
        return y if y.sum() > 4 else f(y * 2 + 1)

    y = x * 1
    r = f(y)
    r.add_(1)
    return y, r


def is_it_the_one_given(x):
    def f(y):
        if y.sum() > 4:
            return y
        z = y * 2 + 1
        r = f(z)
        return r + 10 if r is z else r

    return f(x)


def returns_a_view_of_what_it_is_given(x):
    def f(y, z):
        return z[:2] if y.sum() > 4 else f(y * 2 + 1, z)

    y = x * 1
    r = f(x, y)
    r.add_(1)
    return y


def keeps_what_it_is_given(x):
    kept = {"h": x}

    def f(y):
        if y.sum() > 4:
            kept["h"] = y
            return y * 2
        z = y * 2 + 1
        r = f(z)
        z.add_(1)
        return r

    return f(x), kept["h"]


def changes_what_it_is_given(x):
    def f(y):
        y.add_(1)
        if y.sum() > 4:
            return y * 1
        z = y * 1
        return f(z) + z

    return f(x * 1)


def changes_the_list_it_is_given(x):
    def f(h):
        h[0] = h[0] * 2 + 1
        if h[0].sum() > 4:
            return h[1]
        return f([h[0], h[1] + 1]) + h[0]

    return f([x, x])


def returns_the_list_it_is_given(x):
    def f(h):
        return h if h[0].sum() > 4 else f([h[0] * 2 + 1, h[1] + 1])

    h = [x, x]
    r = f(h)
    r[0] = r[0] + 1
    return r, h


def two_results_in_one_memory(x):
    def f(y):
        if y.sum() > 4:
            z = y * 1
            return z, z[:2]
        a, b = f(y * 2 + 1)
        return a, b

    a, b = f(x)
    a.add_(1)
    return a, b


def list_grows(x):
    out = []

    def f(y):
        out.append(y)
        if y.sum() > 4:
            return
        f(y * 2 + 1)

    f(x)
    return out


def none_or_a_tensor(x):
    def f(y):
        if y.sum() > 9:
            return None
        return y if y.sum() > 4 else f(y * 2 + 1)

    r = f(x)
    return x if r is None else r


def caught_by_the_caller(x):
    def f(y, n):
        if y.sum() > 9:
            raise ValueError("too big")
        if y.sum() > 4:
            return y
        try:
            return f(y * 3 + 1, n + 1)
        except ValueError:
            return y - 1

    return f(x, 0)


def iterator_advanced(x):
    numbers = iter(range(1, 30))

    def f(y):
        return y if y.sum() > 4 else f(y * 2 + 1) * next(numbers)

    return f(x), list(numbers)


def one_more_function_each_time(x):
    def f(y, k):
        return k(y) if y.sum() > 4 else f(y * 2 + 1, lambda v: k(v) + y)

    return f(x, lambda v: v)


def one_of_two_older_ones(x):
    w, v = x * 2, x + 1

    def f(y):
        if y.sum() > 9:
            return w
        return v if y.sum() > 4 else f(y * 2 + 1)

    r = f(x)
    w.add_(1)
    return w, v, r


def changes_one_of_two_older_ones(x):
    w, v = x * 2, x + 1

    def f(y):
        if y.sum() > 9:
            return w
        return v if y.sum() > 4 else f(y * 2 + 1)

    r = f(x)
    r.add_(1)
    return w, v, r


class Holder:
    def __init__(self, held):
        self.held = held


def list_handed_over_in_an_attribute(x):
    holder = Holder([x])

    def f(y):
        if y.sum() > 4:
            return y
        mine = [y]
        holder.held = mine
        r = f(y * 2 + 1)
        mine[0] = r
        return holder.held[0]

    return f(x), holder.held[0]


def tensor_handed_over_in_an_attribute(x):
    holder = Holder(x * 1)

    def f(y):
        if y.sum() > 4:
            return y
        mine = y * 1
        holder.held = mine
        r = f(y * 2 + 1)
        mine.add_(1)
        return holder.held + r

    return f(x), holder.held


def is_it_the_one_handed_over(x):
    holder = Holder(x * 1)

    def f(y):
        if y.sum() > 4:
            return y
        mine = y * 1
        holder.held = mine
        r = f(y * 2 + 1)
        return r + 1 if holder.held is mine else r

    return f(x)


def attribute_left_alone_on_a_path(x):
    holder = Holder(x * 1)
    first = holder.held

    def f(y):
        if y.sum() > 4:
            return y
        if y[0] > 1:
            holder.held = y * 1
        return f(y * 2 + 1)

    r = f(x)
    first.add_(1)
    return holder.held + r


def one_after_the_other(x):
    kept = [x, x + 1]

    def f(y):
        if y.sum() > 4:
            return y
        z = f(y + 1.1) - y
        if z.sum() > 3:
            kept[0] = y + kept[0]
            return z
        return f(z.abs() + y.abs() + 0.3) * 0.5

    r = f(x)
    s = f(r * 0.1)
    r.add_(1)
    return r, s, kept


RIGHT_OR_REFUSED = (
    returns_what_it_is_given, is_it_the_one_given, returns_a_view_of_what_it_is_given, keeps_what_it_is_given, changes_what_it_is_given,
    changes_the_list_it_is_given, returns_the_list_it_is_given, two_results_in_one_memory, list_grows, none_or_a_tensor,
    caught_by_the_caller, iterator_advanced, one_more_function_each_time, one_of_two_older_ones, changes_one_of_two_older_ones,
    list_handed_over_in_an_attribute, tensor_handed_over_in_an_attribute, is_it_the_one_handed_over, attribute_left_alone_on_a_path,
    one_after_the_other,
)  # fmt: skip
