"""Results side by side."""

from collections.abc import Collection, Mapping, Sequence

from bitta.results import RunResult

_QUARTERS = ["1st", "2nd", "3rd", "4th quarter"]
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def summary_rows(results: Mapping[str, RunResult]) -> list[list[str]]:
    """A header and a row per method: accuracy per part and mean, calibration, questions, time.

    Results from before the Brier score was measured have no column of it.
    """
    several = len({step.domain for result in results.values() for step in result.steps}) > 1
    first = next(iter(results.values()))
    parts = list(first.accuracy_by_domain) if several else _QUARTERS[: len(first.steps)]
    scored = any(result.brier is not None for result in results.values())
    measures = ["mean", "ECE", *(["Brier"] if scored else [])]
    header = ["method", *parts, *measures, "questions", "answers", '"correct"', "s/batch"]
    rows = (
        _row(name, result, by_domain=several, scored=scored) for name, result in results.items()
    )
    return [header, *rows]


def agreement_line(result: RunResult) -> str:
    """How often the policy agreed with what was served; empty where it was not computed."""
    agreement = result.agreement
    if agreement.rate is None:
        return ""
    parts = {"where it does": agreement.accuracy_agreeing, "else": agreement.accuracy_disagreeing}
    right = [
        f"{percent:.1f} % right {where}" for where, percent in parts.items() if percent is not None
    ]
    return f"policy: agrees on {agreement.rate:.1f} %, {', '.join(right)}"


def collapse_line(result: RunResult) -> str:
    """A warning, empty where there is nothing to warn of."""
    if lost := result.first_lost_batch:
        return (
            f"from batch {lost} of {len(result.steps)} on the model serves no numbers: its weights "
            "have left their range; try a smaller method.lr."
        )
    domains = result.looks_collapsed
    if not domains:
        return ""
    return (
        f"this run looks collapsed in {', '.join(domains)}: the labels served there are nearly "
        "all of a few classes."
    )


def text_table(
    rows: Sequence[Sequence[str]], *, left: int = 1, bold: Collection[tuple[int, int]] = ()
) -> str:
    """Columns aligned, the first `left` of them to the left; `bold` are (row, column)."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for place, row in enumerate(rows):
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padded = cell.rjust(width) if column >= left else cell.ljust(width)
            cells.append(f"{_BOLD}{padded}{_PLAIN}" if (place, column) in bold else padded)
        lines.append("  ".join(cells).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _row(name: str, result: RunResult, *, by_domain: bool, scored: bool) -> list[str]:
    quarters = result.accuracy_by_part(min(len(_QUARTERS), len(result.steps)))
    parts = list(result.accuracy_by_domain.values()) if by_domain else quarters
    ece = "-" if result.ece is None else f"{result.ece:.1f}"
    brier = "-" if result.brier is None else f"{result.brier:.3f}"
    return [
        name,
        *(f"{part:.1f}" for part in parts),
        f"{result.accuracy:.1f}",
        ece,
        *([brier] if scored else []),
        str(result.total("n_asked")),
        str(result.total("n_answered")),
        str(result.total("n_answered_correct")),
        f"{result.seconds_per_batch:.3f}",
    ]
