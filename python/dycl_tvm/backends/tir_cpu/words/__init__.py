# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The words of kernels: the machine they are for, the workloads they compute, the loops and instructions they are written in.

Families are written in them; a word knows no family.
"""
