"""Exports of answers to files of other tools, and imports from exported JSON lines."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from bitta.errors import InputError, unknown_name_error
from bitta.records import FeedbackRecord
from bitta.server.store.records import ExportedAnswer, NewAnswer

MEDIA_TYPES = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "labelstudio": "application/json",
}
COLUMNS = tuple(field.name for field in fields(FeedbackRecord))
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet would run as a formula."""
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_ANSWER_FIELDS = [field.name for field in fields(NewAnswer) if field.name != "lease"]
_REQUIRED_FIELDS = [field.name for field in fields(NewAnswer) if field.default is MISSING]
_STATE_FIELDS = [field.name for field in fields(ExportedAnswer) if field.name != "answer"]


def export_records(
    export_format: str,
    records: Iterable[FeedbackRecord],
    *,
    annotator_names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield the text of a `jsonl`, `csv` or `labelstudio` file in small pieces.

    `annotator_names` are names by annotator id. The Label Studio format uses them.
    """
    if export_format not in MEDIA_TYPES:
        raise unknown_name_error("export format", export_format, MEDIA_TYPES)
    if export_format == "labelstudio":
        return _labelstudio_file(records, annotator_names)
    return _csv_file(records) if export_format == "csv" else _jsonl_file(records)


def parse_exported_answer(line: str) -> ExportedAnswer:
    """Read a line of a `jsonl` export. Fields of the prediction are ignored."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"it is {type(values).__name__}; give one object per line")
    if missing := [name for name in _REQUIRED_FIELDS if name not in values]:
        raise InputError(f"it has no {missing[0]}; give {', '.join(_REQUIRED_FIELDS)}")
    answer = NewAnswer(**{name: values[name] for name in _ANSWER_FIELDS if name in values})
    state = {name: values[name] for name in _STATE_FIELDS if name in values}
    return ExportedAnswer(answer, **state)


def _jsonl_file(records: Iterable[FeedbackRecord]) -> Iterator[str]:
    for record in records:
        yield json.dumps(asdict(record), ensure_ascii=False) + "\n"


def _csv_file(records: Iterable[FeedbackRecord]) -> Iterator[str]:
    yield _csv_line(COLUMNS)
    for record in records:
        yield _csv_line([_csv_cell(value) for value in asdict(record).values()])


def _csv_line(cells: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES):
        return "'" + value
    return value


def _labelstudio_file(
    records: Iterable[FeedbackRecord], annotator_names: Mapping[str, str]
) -> Iterator[str]:
    """Yield one task per prediction. The format cannot express undone or replaced answers."""
    by_prediction = attrgetter("prediction_id")
    standing = sorted((record for record in records if record.standing), key=by_prediction)
    separator = "[\n"
    for _, group in groupby(standing, key=by_prediction):
        task = _labelstudio_task(sorted(group, key=attrgetter("seq")), annotator_names)
        yield separator + json.dumps(task, ensure_ascii=False)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def _labelstudio_task(
    records: list[FeedbackRecord], annotator_names: Mapping[str, str]
) -> dict[str, Any]:
    first = records[0]
    return {
        "data": {
            "image": f"/v1/predictions/{first.prediction_id}/image",
            "prediction_id": first.prediction_id,
            "input_sha256": first.input_sha256,
            "predicted_label": first.predicted_label,
        },
        # Label Studio keeps only the result of an annotation, and a skip has no result.
        "meta": {"answers": [_answer_details(record, annotator_names) for record in records]},
        "annotations": [_annotation(record, annotator_names) for record in records],
        "predictions": [
            {
                "model_version": first.model_version,
                "score": first.confidence,
                "result": [_choice("label", first.predicted_label)],
            }
        ],
    }


def _annotation(record: FeedbackRecord, annotator_names: Mapping[str, str]) -> dict[str, Any]:
    is_skip = record.verdict == "skip"
    lead_time = None if record.lead_time_ms is None else record.lead_time_ms / 1000
    details = {"meta": _answer_details(record, annotator_names)}
    annotation = {
        "result": [] if is_skip else [_choice("verdict", record.verdict) | details],
        "was_cancelled": is_skip,
        "lead_time": lead_time,
        "unique_id": record.id,
    }
    # Label Studio refuses files that name a person other than by an email address.
    name = annotator_names.get(record.annotator_id, record.annotator_id)
    if _EMAIL.fullmatch(name):
        annotation["completed_by"] = {"email": name}
    return annotation


def _answer_details(record: FeedbackRecord, annotator_names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "feedback_id": record.id,
        "verdict": record.verdict,
        "annotator_id": record.annotator_id,
        "annotator_name": annotator_names.get(record.annotator_id),
        "annotator_kind": record.annotator_kind,
        "comment": record.comment,
    }


def _choice(name: str, value: str) -> dict[str, Any]:
    return {
        "from_name": name,
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [value]},
    }
