"""A section beside the paper, and its rows beside one of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bitta.errors import unknown_name_error
from bitta.report.names import between, listed_seeds
from bitta.report.paired import FEWEST_PAIRS, Paired, default_against, paired_tests
from bitta.report.reference_numbers import (
    NO_PAPER,
    SAMPLES_PER_CORRUPTION,
    PaperMatch,
    PaperTable,
    PaperTables,
    is_shorter,
    match_rows,
    tables_for,
)
from bitta.report.row import Row
from bitta.report.rows import Section

_SHOWN_DOMAINS = 4


@dataclass(frozen=True)
class Comparison:
    """What stands beside the numbers of a section."""

    section: Section
    tables: Sequence[PaperTable]
    """Of the paper, as far as one of our rows is in it."""
    printed: Mapping[str, PaperMatch]
    """The paper's row, by the name of ours."""
    against: Row
    """Whom the others are tested against."""
    tests: Mapping[str, Paired]
    paper: PaperTables = NO_PAPER
    """All tables of the paper that were given; empty for a report without a paper."""

    def difference(self, row: Row) -> float | None:
        """Ours minus the paper's, in points; each domain counts once, as there."""
        printed = self.printed.get(row.name)
        return None if printed is None else row.domain_mean.mean - printed.mean

    @property
    def paper_notes(self) -> list[str]:
        """Which tables, and whether they are to be compared with."""
        uneven = any(
            abs(row.domain_mean.mean - row.accuracy.mean) > 0.005 for row in self.section.rows
        )
        if not self.printed:
            single = self.paper.tables if self.paper.is_single else ()
            notes = [f"{table.title}: none of its rows is measured here." for table in single]
            return notes + (["Mean: over all samples."] if uneven else [])
        places = ", ".join(table.title for table in self.tables)
        notes = [f"Paper: {places}; difference: ours minus the paper's, in points."]
        if is_shorter(self.section):
            sizes = " or ".join(f"{n:,}" for n in sorted(set(self.section.domains.values())))
            notes.append(
                f"NOT COMPARABLE with the paper: {sizes} samples of each domain here, "
                f"{SAMPLES_PER_CORRUPTION:,} there."
            )
        if uneven:
            notes.append(
                "Mean: over all samples; the paper's counts each domain once, and so does the "
                "difference."
            )
        return notes

    @property
    def test_notes(self) -> list[str]:
        """What p is, and what it is not."""
        if not self.tests:
            return []
        pairs = [test.n for test in self.tests.values()]
        few = f" With fewer than {FEWEST_PAIRS} pairs p cannot be below .05."
        several = len(self.section.domains) > 1
        caution = " Domains of one stream are not independent, so p is optimistic."
        return [
            f"Versus {self.against.title}: median difference over {between(pairs)} pairs of "
            "domain and seed. p: Wilcoxon's signed-rank test, two-sided, with Holm's correction "
            f"for {_rows(len(self.tests))}.{few if min(pairs) < FEWEST_PAIRS else ''}"
            f"{caution if several else ''}"
        ]

    @property
    def collapse_notes(self) -> list[str]:
        """Where and with which seeds; their accuracy stays in the mean."""
        section, lines = self.section, []
        for row in section.rows:
            if found := row.collapsed:
                lines.append(f"  {row.title}: {_told(row, found, section)}{_lost(row)}")
        if not lines:
            return []
        rule = (
            "less than half of the source model's accuracy"
            if section.source
            else "less than half of the median row's accuracy, or a few classes served in place of "
            "all (there is no row of the source)"
        )
        return [f"† COLLAPSED: {rule}, yet part of the mean:", *lines]


def compare(
    section: Section, *, paper: PaperTables = NO_PAPER, against: str | None = None
) -> Comparison:
    """Match our rows to the paper's, and test them against one of them.

    `against` names that row. Without it, or if the section has no such row, it is BiTTA, else the
    best row.
    """
    tables = tables_for(section, paper)
    printed = match_rows(section, tables)
    used = [table for table in tables if any(found.table is table for found in printed.values())]
    named = [row for row in section.rows if against is not None and row.is_called(against)]
    other = named[0] if named else default_against(section)
    return Comparison(section, used, printed, other, paired_tests(section.rows, other), paper)


def check_rows(sections: Sequence[Section], names: Sequence[str]) -> None:
    """Refuse a name that no section has."""
    rows = [row for section in sections for row in section.rows]
    for name in names:
        if not any(row.is_called(name) for row in rows):
            raise unknown_name_error("row", name, dict.fromkeys(row.name for row in rows))


def _rows(n: int) -> str:
    return f"{n} rows" if n > 1 else "1 row"


def _lost(row: Row) -> str:
    """Since when a model whose weights have left their range serves no numbers."""
    found = {seed: batch for seed, run in row.runs.items() if (batch := run.first_lost_batch)}
    if not found:
        return ""
    return f"; no numbers from batch {between(list(found.values()))} on{_seeds(row, found)}"


def _told(row: Row, found: Mapping[int, Sequence[str]], section: Section) -> str:
    """Domains by seed, in a few words; those that most seeds share come first."""
    seeds: dict[str, list[int]] = {}
    for seed, domains in found.items():
        for domain in domains:
            seeds.setdefault(domain, []).append(seed)
    names = sorted(seeds, key=lambda domain: -len(seeds[domain]))
    differ = len({tuple(domains) for domains in found.values()}) > 1
    if len(section.domains) == 1:
        return f"in the whole stream{_seeds(row, found)}"
    if len(names) <= _SHOWN_DOMAINS:
        if differ:
            return "; ".join(f"in {name}{_seeds(row, seeds[name])}" for name in names)
        return f"in {', '.join(names)}{_seeds(row, found)}"
    shown = ", ".join(names[:_SHOWN_DOMAINS])
    several = f"{between([len(domains) for domains in found.values()])} of {len(section.domains)}"
    which = ", depending on the seed" if differ else ""
    return f"in {several} domains{which} ({shown}, ...){_seeds(row, found)}"


def _seeds(row: Row, found: Collection[int]) -> str:
    if len(row.runs) == 1:
        return ""
    if len(found) == len(row.runs):
        return ", all seeds"
    return f", {listed_seeds(found)} of {len(row.runs)}"
