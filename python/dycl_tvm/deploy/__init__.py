# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Artefacts on other machines: over TVM's RPC, and as a folder that is copied to a board."""

from __future__ import annotations

from dycl_tvm.deploy.bundle import bundle
from dycl_tvm.deploy.cases import Case, read_cases, record_cases
from dycl_tvm.deploy.remote import RemoteModule, connect
from dycl_tvm.deploy.server import build_server

__all__ = ["Case", "RemoteModule", "build_server", "bundle", "connect", "read_cases", "record_cases"]
