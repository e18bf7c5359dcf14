"""The Open Inference Protocol, version 2, over HTTP: from bodies to values and back."""

from bitta.server.v2.errors import V2Error, error_body
from bitta.server.v2.limits import DEFAULT_LIMITS, Limits
from bitta.server.v2.metadata import (
    INPUT,
    ModelSpec,
    Statistics,
    TensorSpec,
    Took,
    classifier,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from bitta.server.v2.pictures import as_images, decode, fit
from bitta.server.v2.request import (
    InferRequest,
    RequestedOutput,
    RequestInput,
    parse,
    read_header_length,
)
from bitta.server.v2.response import JSON_LENGTH, answer_outputs, encode

__all__ = [
    "DEFAULT_LIMITS",
    "INPUT",
    "JSON_LENGTH",
    "InferRequest",
    "Limits",
    "ModelSpec",
    "RequestInput",
    "RequestedOutput",
    "Statistics",
    "TensorSpec",
    "Took",
    "V2Error",
    "answer_outputs",
    "as_images",
    "classifier",
    "decode",
    "encode",
    "error_body",
    "fit",
    "model_config",
    "model_metadata",
    "model_statistics",
    "parse",
    "read_header_length",
    "repository_index",
    "server_metadata",
]
