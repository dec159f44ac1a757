# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Requests, responses and places without a server: what is read, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import Decision, Path, SourceLine
from dycl_tvm.serve import datatypes, rest
from dycl_tvm.serve.failures import RequestError, Status
from dycl_tvm.serve.grpc_messages import CLASSES
from dycl_tvm.serve.messages import Response, Tensor
from dycl_tvm.serve.parameters import call_of
from dycl_tvm.serve.path_labels import PathLabels
from dycl_tvm.serve.signature import Signature
from dycl_tvm.serve.slots import Slots


def body(**first: Any) -> bytes:
    item = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]} | first
    return json.dumps({"inputs": [{key: value for key, value in item.items() if value is not None}]}).encode()


@pytest.mark.parametrize(
    "content, length, words",
    [
        (b"{", None, "not JSON"),
        (b"\xff\xfe\x00", None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b"[]", None, "must be a JSON object"),
        (b"{}", None, "'inputs' must be a list"),
        (b'{"inputs": [1]}', None, "'inputs' must be a list of objects"),
        (b'{"inputs": [], "id": 7}', None, "the id must be a string"),
        (b'{"inputs": [], "parameters": {"a": []}}', None, "parameters must be"),
        (b'{"inputs": []}x', "14", "1 bytes follow"),
        (b'{"inputs": []}', "15", "Inference-Header-Content-Length"),
        (b'{"inputs": []}', "-1", "Inference-Header-Content-Length"),
        (b'{"inputs": []}', "9" * 30, "Inference-Header-Content-Length"),
        (body(name=None), None, "an input has no name"),
        (body(datatype="FP8"), None, "the datatype 'FP8' is not one of"),
        (body(datatype=["FP32"]), None, "is not one of"),
        (body(shape=[-1]), None, "not negative"),
        (body(shape=[2.0]), None, "integers"),
        (body(shape=[True, 2]), None, "integers"),
        (body(shape="2"), None, "must be a list"),
        (body(shape=[2**62, 2**62], data=[1]), None, "elements, got 1"),
        (body(data=None), None, "neither data nor"),
        (body(data=[1]), None, "has 2 elements, got 1"),
        (body(data=["1", "2"]), None, "must be float or int, got '1'"),
        (body(data=[True, False]), None, "must be float or int, got True"),
        (body(data=[1, 1e39]), None, "too large for FP32"),
        (body(data=[1, 10**400]), None, "too large for FP32"),
        (body(datatype="FP16", data=[1, 65520]), None, "too large for FP16"),
        (body(datatype="BF16", data=[1, 3.4e38]), None, "too large for BF16"),
        (body(datatype="INT8", data=[1, 128]), None, "from -128 to 127"),
        (body(datatype="INT64", data=[1, 1.0]), None, "must be int, got 1.0"),
        (body(datatype="BOOL", data=[1, 0]), None, "must be bool, got 1"),
        (body(shape=[2, 2], data=[[1, 2], [3]]), None, "do not have the shape"),
        (body(shape=[2, 2], data=[[1, 2], 3]), None, "do not have the shape"),
        (body(shape=[2, 2], data=[[1, 2, 3, 4]]), None, "do not have the shape"),
        (body(parameters={"binary_data_size": 8}), None, "both data and"),
        (body(data=None, parameters={"binary_data_size": 8}), None, "0 bytes are left"),
        (body(data=None, parameters={"binary_data_size": True}), None, "binary_data_size is True"),
        (body(parameters={"shared_memory_region": "r"}), None, "does not have the extension"),
    ],
)
def test_what_is_no_request_is_refused(content: bytes, length: str | None, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        rest.decode(content, length)
    assert words in str(caught.value) and caught.value.status is Status.INVALID


def test_an_input_that_is_given_twice_is_refused() -> None:
    item = json.loads(body())["inputs"][0]
    with pytest.raises(RequestError, match="twice"):
        rest.decode(json.dumps({"inputs": [item, item]}).encode(), None)


def test_elements_of_every_type_come_back() -> None:
    values: dict[str, list[Any]] = {
        "BOOL": [True, False], "UINT8": [0, 255], "UINT64": [0, 2**64 - 1], "INT8": [-128, 127], "INT64": [-(2**63), 2**63 - 1],
        "FP16": [0.5, -65504.0], "BF16": [1.0, -3.0], "FP32": [0.1, float("inf")], "FP64": [0.1, 1e308],
    }  # fmt: skip
    for name, items in values.items():
        array = datatypes.from_items("x", name, (2, 1), items)
        np.testing.assert_array_equal(datatypes.from_bytes("x", name, (2, 1), datatypes.to_bytes(name, array)), array)
        again = datatypes.to_items(name, array)
        assert again == ([float(np.float32(v)) for v in items] if name == "FP32" else items), name


def test_bfloat16_is_rounded_to_the_nearest_ties_to_even() -> None:
    numbers = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8), float("nan"), 1e-40]
    import torch

    bits = datatypes.from_items("x", "BF16", (6,), numbers)
    want = torch.tensor(numbers, dtype=torch.float64).to(torch.float32).to(torch.bfloat16)
    np.testing.assert_array_equal(datatypes.as_numbers("BF16", bits), want.float().numpy())


def test_a_byte_of_a_bool_is_0_or_1() -> None:
    with pytest.raises(RequestError, match="is 0 or 1, got 2"):
        datatypes.from_bytes("x", "BOOL", (2,), b"\x01\x02")


def test_outputs_are_bytes_where_they_are_wanted_so() -> None:
    wanted = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
    _, as_bytes = rest.decode(json.dumps({"inputs": [], "outputs": wanted}).encode(), None)
    tensors = [Tensor("a", "INT32", np.array([1, 2], np.int32)), Tensor("b", "BYTES", np.array(["text"], object))]
    content, length = rest.encode(Response("m", "1", tensors, "id"), as_bytes)
    assert length is not None and content[length:] == b"\x01\x00\x00\x00\x02\x00\x00\x00"
    shown = json.loads(content[:length])
    assert shown["id"] == "id" and shown["outputs"][0]["parameters"] == {"binary_data_size": 8} and shown["outputs"][1]["data"] == ["text"]


@pytest.mark.parametrize(
    "given, words",
    [
        ({"sequence_id": 1.5}, "an integer or a string"),
        ({"sequence_id": True}, "an integer or a string"),
        ({"sequence_start": True}, "need a sequence_id"),
        ({"sequence_id": 0, "sequence_end": True}, "need a sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "must be true or false"),
        ({"timeout": -1}, "not negative"),
        ({"timeout": "1"}, "not negative"),
        ({"seed": 1.0}, "not negative"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call_of(given)


def test_the_messages_of_grpc_are_those_of_the_client() -> None:
    service = pytest.importorskip("tritonclient.grpc.service_pb2", reason="pip install tritonclient[grpc]")

    def fields(descriptor: Any) -> dict[str, Any]:
        return {
            field.name: (field.number, field.type, field.is_repeated, field.message_type and fields(field.message_type))
            for field in descriptor.fields
        }

    for name, cls in CLASSES.items():
        assert fields(cls.DESCRIPTOR) == fields(getattr(service, name).DESCRIPTOR), name


def test_results_of_all_structures_have_names() -> None:
    tensor, number = {"leaf": 0, "type": "tensor"}, {"leaf": 1, "type": "int"}
    rows = {"rows": [{"leaf": 0, "type": "tensor"}], "item": {"dict": [["row", {"leaf": 0, "type": "tensor"}]]}}
    record = {"namedtuple": "Box", "fields": ["a", "b"], "items": [tensor, {"const": 1.5}], "attributes": [["c", number]]}
    types = [{"type": "tensor", "dtype": "float32", "shape": [3, 2]}, {"type": "int"}]
    sites = [{"structure": structure, "types": types} for structure in ({"list": [record, {"const": None}]}, rows, {"const": "word"})]
    signature = Signature({"input_names": [], "inputs": [], "sites": sites})
    names = [[(output.port.name, output.port.datatype) for output in site] for site in signature.sites]
    assert names[0] == [("output[0].a", "FP32"), ("output[0].b", "FP64"), ("output[0].c", "INT64")]
    assert names[1] == [("output[*]['row']", "FP32")] and names[2] == [("output", "BYTES")]
    outputs = signature.outputs(0, [np.ones((3, 2), np.float32), 7], ["output[0].c"])
    assert [(tensor.name, tensor.array.tolist()) for tensor in outputs] == [("output[0].c", [7])]


def test_a_network_with_types_that_the_protocol_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match="complex64"):
        Signature({"input_names": ["x"], "inputs": [{"type": "tensor", "dtype": "complex64", "shape": [1]}], "sites": []})


def test_places_are_given_in_the_order_in_which_requests_came() -> None:
    async def scenario() -> list[Any]:
        slots, order = Slots(1), []

        async def take(name: str, until: float | None) -> None:
            try:
                await slots.acquire(until)
            except RequestError as error:
                order.append((name, error.status))
                return
            order.append(name)
            await asyncio.sleep(0.03)
            slots.release()

        now = time.monotonic()
        calls = [
            asyncio.ensure_future(take(name, until))
            for name, until in (("a", None), ("b", now + 0.005), ("c", None), ("d", None), ("e", None))
        ]
        await asyncio.sleep(0.01)
        calls[3].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await slots.acquire(time.monotonic() + 1)  # nothing was lost
        return order

    assert asyncio.run(scenario()) == ["a", ("b", Status.DEADLINE), "c", "e"]


def test_a_place_that_is_given_to_one_who_has_just_left_is_not_lost() -> None:
    async def scenario() -> None:
        slots = Slots(1)
        await slots.acquire(None)
        waiting = asyncio.ensure_future(slots.acquire(None))
        await asyncio.sleep(0)
        slots.release()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await slots.acquire(time.monotonic() + 0.1)

    asyncio.run(scenario())


def test_a_hundred_paths_have_names_of_their_own() -> None:
    class Session:
        path_key, last_path = b"", Path(None, None, ())

    labels, session = PathLabels(), Session()
    seen = []
    for k in [*range(102), 0, 1]:
        line = SourceLine("net.py", 7, "forward", "return y")
        session.path_key = b"%d" % k
        session.last_path = Path(0, line, tuple(Decision(d, bool(k >> d & 1), line) for d in range(7)))
        seen.append(labels.of(session))  # type: ignore[arg-type]  # what of a session is looked at
    assert len(set(seen[:100])) == 100 and seen[100:102] == ["other", "other"] and seen[102:] == seen[:2]
    assert seen[0] == "FFFFFFF net.py:7" and seen[1] == "TFFFFFF net.py:7"
