"""Rows that stopped telling classes apart, marked once when results are read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from bitta.metrics import find_low_accuracy_domains
from bitta.report.names import between
from bitta.report.row import Row


def marked(rows: Sequence[Row], source: Row | None) -> tuple[Row, ...]:
    """Rows with the domains, by seed, in which they have less than half of the source's accuracy.

    Without a source: less than half of that of the median row, or far fewer classes served than
    there are.
    """
    if source is not None:
        return tuple(replace(row, collapsed=behind(row, source)) for row in rows)
    usual = _medians(rows)
    found = [
        {
            seed: [*find_low_accuracy_domains(run.accuracy_by_domain, usual), *run.looks_collapsed]
            for seed, run in row.runs.items()
        }
        for row in rows
    ]
    return tuple(replace(row, collapsed=_some(of)) for row, of in zip(rows, found, strict=True))


def behind(row: Row, source: Row) -> dict[int, tuple[str, ...]]:
    """By seed, domains with less than half of the source's accuracy; only where there are some."""
    return _some(
        {seed: run.collapsed(source.runs.get(seed, source.first)) for seed, run in row.runs.items()}
    )


def fallen(row: Row) -> str:
    """Where and with which seeds a row has collapsed: "collapsed in 9 to 10 of 15 domains"."""
    most = between([len(domains) for domains in row.collapsed.values()])
    seeds = ", ".join(map(str, row.collapsed))
    of = f" with seed {seeds}" if len(row.collapsed) < len(row.runs) else ""
    return f"collapsed in {most} of {len(row.by_domain)} domains{of}"


def _medians(rows: Sequence[Row]) -> dict[str, float]:
    """Percent right in each domain."""
    domains = dict.fromkeys(domain for row in rows for domain in row.by_domain)
    return {
        domain: median(row.by_domain[domain].mean for row in rows if domain in row.by_domain)
        for domain in domains
    }


def _some(found: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, ...]]:
    return {seed: tuple(dict.fromkeys(domains)) for seed, domains in found.items() if domains}
