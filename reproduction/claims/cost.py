"""Verdicts against full labels: at equal cost, and question for question."""

from functools import partial

from bitta.report.row import Row
from reproduction.claims.claim import Finding, seeds_of
from reproduction.claims.results import Results
from reproduction.claims.tables import Measured, measured, paper_table

_SETS = ("cifar10-c", "cifar100-c", "tiny-imagenet-c")
_GPT_4O = 0.4
"""How often its labels are wrong in our runs, which take the paper's number."""
_TABLES = (
    "tab:app_original/cifar10-c", "tab:app_original/cifar100-c",
    "tab:app_original/tiny-imagenet-c", "tab:app_original_pacs",
)  # fmt: skip
"""Those that have SimATTA with as many labels as BiTTA has verdicts."""


def most_at_equal_cost(claimed: float, results: Results) -> Finding | None:
    """The largest lead over SimATTA with full labels, of its accuracy; in bits it decides."""
    told, most, used = [], [], []
    for kind in _SETS:
        for equal in ("bits", "seconds"):
            bitta, simatta, _ = _rows(results, kind, equal)
            if bitta is None or simatta is None:
                continue
            ours, theirs = bitta.domain_mean.mean, simatta.domain_mean.mean
            more = 100 * (ours - theirs) / theirs
            told.append(f"{kind} in {equal}: {more:+.1f} % ({ours - theirs:+.1f} points)")
            most += [more] if equal == "bits" else []
            used += [bitta, simatta]
    if not most:
        return None
    reached, whole = max(most) >= claimed, len(most) == len(_SETS)
    return Finding(
        f"{'; '.join(told)} ({seeds_of(used)})", reached if reached or whole else None, whole
    )


def beats_at_equal_cost(results: Results) -> Finding | None:
    """BiTTA is above SimATTA with the labels that its verdicts pay for, in bits."""
    rows = {kind: _rows(results, kind, "bits")[:2] for kind in _SETS}
    return _all_above(rows)


def true_labels_beat_wrong_ones(results: Results) -> Finding | None:
    """SimATTA with true labels is above SimATTA with labels as wrong as GPT-4o's."""
    rows = {kind: _rows(results, kind, "bits")[1:] for kind in _SETS}
    return _all_above(rows)


def verdicts_beat_wrong_labels(results: Results) -> Finding | None:
    """BiTTA is above SimATTA with labels as wrong as GPT-4o's, as many as verdicts pay for."""
    rows = {kind: _rows(results, kind, "bits")[::2] for kind in _SETS}
    return _all_above(rows)


def verdicts_beat_labels(results: Results) -> Finding | None:
    """BiTTA with verdicts is above SimATTA with as many labels."""
    rows: dict[str, tuple[Row | None, Row | None]] = {}
    for of in (measured(paper_table(table_id), results) for table_id in _TABLES):
        for column in of.columns:
            found = of.ours(column)
            rows[_stream(of, column)] = found.get("BiTTA"), found.get("SimATTA")
    return _all_above(rows)


def printed_labels() -> str:
    """The same in the paper."""
    told = []
    for of in (Measured(paper_table(table_id)) for table_id in _TABLES):
        bitta, simatta = of.table.row("bitta", "verdict"), of.table.row("simatta", "full")
        for column in of.columns:
            place = of.table.columns.index(column)
            told.append(f"{_stream(of, column)} {bitta.values[place] - simatta.values[place]:+.2f}")
    return ", ".join(told)


def _all_above(rows: dict[str, tuple[Row | None, Row | None]]) -> Finding | None:
    leads, used = {}, []
    for name, (first, second) in rows.items():
        if first is not None and second is not None:
            leads[name] = first.domain_mean.mean - second.domain_mean.mean
            used += [first, second]
    if not leads:
        return None
    told = ", ".join(f"{name} {lead:+.2f}" for name, lead in leads.items())
    whole = len(leads) == len(rows)
    return Finding(f"{told} ({seeds_of(used)})", min(leads.values()) > 0, whole)


def _rows(results: Results, kind: str, equal: str) -> tuple[Row | None, Row | None, Row | None]:
    """BiTTA, SimATTA with an annotator's labels, SimATTA with GPT-4o's errors."""
    at = partial(results.rows, "equal-cost", kind=kind, feedback__equal=equal)
    bitta, simatta = at("bitta"), at("simatta")
    wrong = [row for row in simatta if row.varying["feedback.error"] == _GPT_4O]
    right = [row for row in simatta if row not in wrong]
    first, second, third = (rows[0] if rows else None for rows in (bitta, right, wrong))
    return first, second, third


def _stream(of: Measured, column: str) -> str:
    return f"{of.table.place} {column}" if len(of.columns) > 1 else of.table.place
