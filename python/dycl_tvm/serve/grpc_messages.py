# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The messages of the protocol's gRPC service, as classes of protobuf.

They are in a pool of their own: a process may have other classes of the same names, as NVIDIA's client brings them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE = "inference", "GRPCInferenceService"

#: Of each message its fields: name, number, type. Before a type ``*`` is any number of them, ``|`` one of those so marked; ``map`` is
#: parameters by name.
_MESSAGES: dict[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live 1 bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready 1 bool",
    "ModelReadyRequest": "name 1 string, version 2 string",
    "ModelReadyResponse": "ready 1 bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name 1 string, version 2 string, extensions 3 *string",
    "ModelMetadataRequest": "name 1 string, version 2 string",
    "ModelMetadataResponse": "name 1 string, versions 2 *string, platform 3 string, inputs 4 *.TensorMetadata, outputs 5 *.TensorMetadata",
    "ModelMetadataResponse.TensorMetadata": "name 1 string, datatype 2 string, shape 3 *int64",
    "InferParameter": "bool_param 1 |bool, int64_param 2 |int64, string_param 3 |string, double_param 4 |double, uint64_param 5 |uint64",
    "InferTensorContents": (
        "bool_contents 1 *bool, int_contents 2 *int32, int64_contents 3 *int64, uint_contents 4 *uint32, "
        "uint64_contents 5 *uint64, fp32_contents 6 *float, fp64_contents 7 *double, bytes_contents 8 *bytes"
    ),
    "ModelInferRequest": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 map, inputs 5 *.InferInputTensor, "
        "outputs 6 *.InferRequestedOutputTensor, raw_input_contents 7 *bytes"
    ),
    "ModelInferRequest.InferInputTensor": (
        "name 1 string, datatype 2 string, shape 3 *int64, parameters 4 map, contents 5 InferTensorContents"
    ),
    "ModelInferRequest.InferRequestedOutputTensor": "name 1 string, parameters 2 map",
    "ModelInferResponse": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 map, outputs 5 *.InferOutputTensor, "
        "raw_output_contents 6 *bytes"
    ),
    "ModelInferResponse.InferOutputTensor": (
        "name 1 string, datatype 2 string, shape 3 *int64, parameters 4 map, contents 5 InferTensorContents"
    ),
    "ModelStreamInferResponse": "error_message 1 string, infer_response 2 ModelInferResponse",
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_ONE_OF = "parameter_choice"


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="dycl_tvm/open_inference.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for name, fields in _MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        message = made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=inner)
        for text in filter(None, fields.split(", ")):
            _add_field(message, name, text)
    return file


def _add_field(message: Any, scope: str, text: str) -> None:
    name, number, kind = text.split(" ")
    field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_REPEATED if kind[0] == "*" else _FIELD.LABEL_OPTIONAL)
    if kind[0] == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONE_OF)
        field.oneof_index = 0
    kind = kind.lstrip("*|")
    if kind == "map":
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _add_field(entry, scope, "key 1 string")
        _add_field(entry, scope, "value 2 InferParameter")
        field.label, field.type, field.type_name = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{scope}.ParametersEntry"
    elif kind[0].islower():
        field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if kind[0] == ".":
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{scope}{kind}"


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    found = {}
    for name in _MESSAGES:
        if "." not in name:
            cls = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            cls.__module__, cls.__qualname__ = __name__, name  # Ray pickles messages, by the names of their classes
            found[name] = cls
    return found


CLASSES = _classes()
globals().update(CLASSES)
ModelInferRequest, ModelInferResponse = CLASSES["ModelInferRequest"], CLASSES["ModelInferResponse"]
#: The calls of the protocol's service; NAMERequest goes in, NAMEResponse comes back.
METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
#: A call of Triton's: a stream of requests goes in, one of responses comes back.
STREAM = "ModelStreamInfer"
