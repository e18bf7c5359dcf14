"""Stored answers as files of other tools, written piece by piece."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from bitta.errors import unknown_name_error
from bitta.records import FeedbackRecord

MEDIA_TYPES = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "labelstudio": "application/json",
}
COLUMNS = tuple(field.name for field in fields(FeedbackRecord))
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a cell."""
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def export(
    form: str,
    records: Iterable[FeedbackRecord],
    *,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Write records as `jsonl`, `csv` or `labelstudio`; each piece ends a line.

    `names`: of annotators by their ids, as `ApiKeys.names` gives them; Label Studio asks for them.
    """
    if form not in MEDIA_TYPES:
        raise unknown_name_error("export format", form, MEDIA_TYPES)
    if form == "labelstudio":
        return _labelstudio(records, names)
    return _csv(records) if form == "csv" else _jsonl(records)


def _jsonl(records: Iterable[FeedbackRecord]) -> Iterator[str]:
    for record in records:
        yield json.dumps(_plain(record), ensure_ascii=False) + "\n"


def _csv(records: Iterable[FeedbackRecord]) -> Iterator[str]:
    yield _line(COLUMNS)
    for record in records:
        yield _line([_cell(value) for value in _plain(record).values()])


def _labelstudio(records: Iterable[FeedbackRecord], names: Mapping[str, str]) -> Iterator[str]:
    """Tasks with a choice each; answers that were undone or replaced have no place there."""
    standing = sorted((one for one in records if one.standing), key=attrgetter("prediction_id"))
    mark = "[\n"
    for _, group in groupby(standing, key=attrgetter("prediction_id")):
        task = _task(sorted(group, key=attrgetter("seq")), names)
        yield mark + json.dumps(task, ensure_ascii=False)
        mark = ",\n"
    yield "[]\n" if mark == "[\n" else "\n]\n"


def _plain(record: FeedbackRecord) -> dict[str, Any]:
    values = asdict(record)
    return {name: values[name] for name in COLUMNS}


def _line(cells: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value


def _task(group: list[FeedbackRecord], names: Mapping[str, str]) -> dict[str, Any]:
    about = group[0]
    return {
        "data": {
            "image": f"/v1/predictions/{about.prediction_id}/image",
            "prediction_id": about.prediction_id,
            "input_sha256": about.input_sha256,
            "predicted_label": about.predicted_label,
        },
        # Of an annotation no more than its result is kept, and a skip has none.
        "meta": {"answers": [_answer(record, names) for record in group]},
        "annotations": [_annotation(record, names) for record in group],
        "predictions": [
            {
                "model_version": about.model_version,
                "score": about.confidence,
                "result": [_choice("label", about.predicted_label)],
            }
        ],
    }


def _annotation(record: FeedbackRecord, names: Mapping[str, str]) -> dict[str, Any]:
    skipped = record.verdict == "skip"
    lead = record.lead_time_ms
    verdict = _choice("verdict", record.verdict) | {"meta": _answer(record, names)}
    annotation = {
        "result": [] if skipped else [verdict],
        "was_cancelled": skipped,
        "lead_time": None if lead is None else lead / 1000,
        "unique_id": record.id,
    }
    # Label Studio refuses a file that names a person in any other way than by address.
    name = names.get(record.annotator_id, record.annotator_id)
    if _ADDRESS.fullmatch(name):
        annotation["completed_by"] = {"email": name}
    return annotation


def _answer(record: FeedbackRecord, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "feedback_id": record.id,
        "verdict": record.verdict,
        "annotator_id": record.annotator_id,
        "annotator_name": names.get(record.annotator_id),
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
