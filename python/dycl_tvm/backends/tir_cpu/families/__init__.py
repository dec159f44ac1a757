# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernel families: each file makes the kernels of one algorithm, for any shape that it says it takes.

A family of convolutions or of products is a module-level object with

``name``
    of its plans;
``plans(work, machine, accuracy)``
    the ways it can compute a workload, best estimate first, [] if it does not take it;
``kernel(work, plan, machine, epilogue)``
    a ``PrimFunc`` (input(s), packed weights, epilogue operands, output), ready for code generation;
``packed_shape(work, plan, machine)`` and ``pack(work, plan, machine)``
    the array of the packed weights, and a ``PrimFunc`` (plain weights, packed weights) that the build runs once.

Kernels are any function of the module that returns such a ``PrimFunc``; the other families document their own.
"""
