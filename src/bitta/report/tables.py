"""Results side by side."""

from collections.abc import Mapping, Sequence

from bitta.results import RunResult

_QUARTERS = ["1st", "2nd", "3rd", "4th quarter"]


def summary_rows(results: Mapping[str, RunResult]) -> list[list[str]]:
    """A header and a row per method: accuracy per part and mean, calibration, questions, time."""
    several = len({step.domain for result in results.values() for step in result.steps}) > 1
    first = next(iter(results.values()))
    parts = list(first.accuracy_by_domain) if several else _QUARTERS[: len(first.steps)]
    header = ["method", *parts, "mean", "ECE", "questions", "answers", '"correct"', "s/batch"]
    return [header, *(_row(name, result, by_domain=several) for name, result in results.items())]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _row(name: str, result: RunResult, *, by_domain: bool) -> list[str]:
    quarters = result.accuracy_by_part(min(len(_QUARTERS), len(result.steps)))
    parts = list(result.accuracy_by_domain.values()) if by_domain else quarters
    return [
        name,
        *(f"{part:.1f}" for part in parts),
        f"{result.accuracy:.1f}",
        f"{result.reliability.ece:.1f}",
        str(result.total("n_asked")),
        str(result.total("n_answered")),
        str(result.total("n_answered_correct")),
        f"{result.seconds_per_batch:.3f}",
    ]
