"""Open Inference Protocol, version 2: requests from bytes to arrays, and responses back."""

from bitta.server.protocol.images import decode_image, fit_image, read_images
from bitta.server.protocol.requests import (
    InferRequest,
    RequestedOutput,
    RequestInput,
    parse_header_length,
    parse_request,
)
from bitta.server.protocol.responses import (
    INPUT_NAME,
    JSON_LENGTH_HEADER,
    ModelSpec,
    ModelStatistics,
    StatisticDuration,
    TensorSpec,
    classifier_spec,
    encode_response,
    model_config,
    model_metadata,
    model_statistics,
    prediction_outputs,
    repository_index,
    server_metadata,
)
from bitta.server.protocol.tensors import ProtocolError, error_body

__all__ = [
    "INPUT_NAME",
    "JSON_LENGTH_HEADER",
    "InferRequest",
    "ModelSpec",
    "ModelStatistics",
    "ProtocolError",
    "RequestInput",
    "RequestedOutput",
    "StatisticDuration",
    "TensorSpec",
    "classifier_spec",
    "decode_image",
    "encode_response",
    "error_body",
    "fit_image",
    "model_config",
    "model_metadata",
    "model_statistics",
    "parse_header_length",
    "parse_request",
    "prediction_outputs",
    "read_images",
    "repository_index",
    "server_metadata",
]
