# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors that are made of lists of numbers and tensors: ``torch.tensor``, ``torch.FloatTensor`` and its like."""

from __future__ import annotations

import torch
from differential import check

X = [(torch.tensor(v),) for v in ([-3.4, 1.0, 2.0], [0.5, 0.2, 0.1], [7.6, 1.0, 1.0], [0.3, 0.3, 0.3])]


def test_classes_of_types():
    def f(x):
        first = torch.FloatTensor([[x[0], x[1].item()], [1, 2.5]])
        largest = torch.IntTensor([[x.argmax()], [3]])
        part = torch.LongTensor([x[2].item(), 1])
        total = torch.Tensor([x.sum(), 2])
        precise = torch.DoubleTensor((x[0], 1))
        truths = torch.BoolTensor([x[0] > 1, False])
        return first, largest, part, total, precise, truths

    check(f, X)
    check(lambda x: x + torch.FloatTensor([1, 2, 3]) + torch.Tensor(3).zero_() + torch.FloatTensor(x.shape).fill_(1), X)


def test_segments_that_are_merged():
    def f(x):
        found, begin, end = [], x[0], x[0] + 0.5
        for start in x[1:]:
            if start - end <= 0.3:
                end = start + 0.5
            else:
                found.append([begin, end])
                begin, end = start, start + 0.5
        return torch.FloatTensor([*found, [begin, end]])

    check(f, [*X, (torch.tensor([0.0, 3.0, 3.2]),)], paths=3)


def test_a_tensor_of_floats_is_no_integer():
    def f(x):
        if x[0] > 5:
            return torch.tensor([x[0]], dtype=torch.long)
        if x[0] > 0.4:
            return torch.BoolTensor([x[0]])
        return torch.tensor([x[0].item()], dtype=torch.long)  # a number is cut off

    check(f, X, paths=2)


def test_new_of_the_shape_of_what_a_mask_picks():
    def corners(boxes):
        boxes = boxes[boxes[:, 0] > 0.3]
        made = boxes.new(boxes.shape)
        made[:, :2] = boxes[:, :2] - boxes[:, 2:] / 2
        made[:, 2:] = boxes[:, :2] + boxes[:, 2:] / 2
        return made, boxes.new([1, 2]), boxes.new(2, 3).zero_()

    check(corners, [(x[0].view(3, 1) + torch.arange(4.0),) for x in X])
