# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernel families: each file makes the kernels of one algorithm, for any shape that it says it takes.

A family of convolutions or of products is a module-level object ``FAMILY`` (:class:`family.Family`). Kernels are any function of the
module that returns a ``PrimFunc``; the other families document their own.
"""
