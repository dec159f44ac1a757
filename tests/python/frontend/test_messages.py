# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Warnings and messages of loggers are left out, unless somebody listens who may do anything with them."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

X = [(torch.ones(3),), (-torch.ones(3),)]
LOG = logging.getLogger("dycl_tvm.test_messages")


def talks(x):
    LOG.info("begin %s", x.shape)
    if x.sum() > 0:
        LOG.warning("positive")
        warnings.warn("a positive sum", UserWarning)
        return x + 1
    logging.debug("negative")
    return x - 1


def test_left_out(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = check(talks, X, paths=2)
    caplog.clear()
    graph.interpret()(*X[0])
    assert not caplog.records


class Counts(logging.Handler):
    def emit(self, record):
        """Count nothing, but who knows."""


def test_a_handler_of_the_users_is_refused():
    handler = Counts()
    LOG.addHandler(handler)
    try:
        with pytest.raises(UnsupportedError, match="the logger has a Counts"):
            stage(talks, X[0])
    finally:
        LOG.removeHandler(handler)


def test_warnings_that_are_errors_are_refused():
    with warnings.catch_warnings(), pytest.raises(UnsupportedError, match="makes it an error"):
        warnings.simplefilter("error")
        stage(talks, X[0])


def test_warnings_that_the_program_records_are_refused():
    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn("one")
        return x + len(seen)

    with pytest.raises(UnsupportedError):
        stage(f, X[0])


class Asks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = logging.getLogger("test_messages.asks")
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        logging.getLogger("test_messages.of_the_forward").info("a step")
        self.train(self.training)
        if self.log.isEnabledFor(logging.DEBUG):
            self.log.debug("%s", x)
        return self.inner(x) if x.sum() > 0 else x


def test_loggers_that_the_forward_asks_for_and_that_a_module_holds():
    check(Asks().eval(), [(torch.ones(3, 2),), (-torch.ones(3, 2),)], paths=2)
