"""Comparison of a section's rows with the paper's rows and with a baseline row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bitta.errors import unknown_name_error
from bitta.report.paper_numbers import (
    NO_PAPER,
    PaperMatch,
    PaperTable,
    PaperTables,
    has_other_length,
    match_rows,
    paper_sizes,
    tables_for,
)
from bitta.report.rows import Row, format_range, format_seeds
from bitta.report.sections import Section
from bitta.report.seed_statistics import MIN_PAIRS, holm_correction, signed_rank_p

_MAX_LISTED_DOMAINS = 4


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Test of a row against the baseline over the domains and seeds that both have."""

    median_difference: float
    """Median of the row minus the baseline, in points."""
    p: float
    """Two-sided p-value, corrected for the number of rows."""
    n_pairs: int


@dataclass(frozen=True)
class Comparison:
    """A section, the paper's rows that fit, and tests against the baseline."""

    section: Section
    matched_tables: Sequence[PaperTable]
    """Tables of the paper that have a row for one of ours."""
    paper_matches: Mapping[str, PaperMatch]
    """The paper's rows, by the name of our row."""
    baseline: Row
    """Row that the others are tested against."""
    tests: Mapping[str, PairedTest]
    """Tests by row name. The baseline and rows with fewer than two pairs have none."""
    paper: PaperTables = NO_PAPER
    """All tables of the paper that were given; empty for a report without a paper."""

    def difference_to_paper(self, row: Row) -> float | None:
        """Return our mean minus the paper's in points. Each domain counts once, as in the paper."""
        match = self.paper_matches.get(row.name)
        return None if match is None else row.domain_mean.mean - match.mean

    @property
    def paper_notes(self) -> list[str]:
        """Notes on the paper's tables and on their comparability."""
        has_uneven_domains = any(
            abs(row.domain_mean.mean - row.accuracy.mean) > 0.005 for row in self.section.rows
        )
        if not self.paper_matches:
            single = self.paper.tables if self.paper.is_single else ()
            notes = [f"{table.title}: none of its rows is measured here." for table in single]
            return notes + (["The mean is over all samples."] if has_uneven_domains else [])
        places = ", ".join(table.title for table in self.matched_tables)
        notes = [f"Paper: {places}; difference: ours minus the paper's, in points."]
        if has_other_length(self.section, self.matched_tables):
            ours = _numbers_text(self.section.domain_sizes.values())
            theirs = _numbers_text(paper_sizes(self.section, self.matched_tables))
            notes.append(
                f"NOT COMPARABLE with the paper: {ours} samples of each domain here, "
                f"{theirs} there."
            )
        if has_uneven_domains:
            notes.append(
                "The mean is over all samples. The paper's mean counts each domain once, and so "
                "does the difference."
            )
        return notes

    @property
    def test_notes(self) -> list[str]:
        """Note on the meaning and the limits of p."""
        if not self.tests:
            return []
        n_pairs = [test.n_pairs for test in self.tests.values()]
        rows_text = f"{len(self.tests)} rows" if len(self.tests) > 1 else "1 row"
        note = (
            f"Versus {self.baseline.title}: median difference over {format_range(n_pairs)} pairs "
            "of domain and seed. p: Wilcoxon's signed-rank test, two-sided, with Holm's correction "
            f"for {rows_text}."
        )
        if min(n_pairs) < MIN_PAIRS:
            note += f" With fewer than {MIN_PAIRS} pairs p cannot be below .05."
        if len(self.section.domain_sizes) > 1:
            note += " Domains of one stream are not independent, so p is too small."
        return [note]

    @property
    def collapse_notes(self) -> list[str]:
        """Domains and seeds in which rows collapsed; empty if none did."""
        n_domains = len(self.section.domain_sizes)
        lines = [
            f"  {row.title}: {_describe_domains(row, n_domains)}{_describe_nan_outputs(row)}"
            for row in self.section.rows
            if row.collapsed_domains
        ]
        if not lines:
            return []
        rule = (
            "less than half of the source model's accuracy"
            if self.section.source_row
            else "less than half of the median row's accuracy, or nearly all served labels of a "
            "few classes (there is no row of the source model)"
        )
        return [f"† COLLAPSED: {rule}. The mean includes these runs:", *lines]


def compare(
    section: Section, *, paper: PaperTables = NO_PAPER, against: str | None = None
) -> Comparison:
    """Match our rows to the paper's, and test them against a baseline row.

    `against` names the baseline. Without it, or if the section has no such row, the baseline is
    BiTTA, or the best row if there is no BiTTA.
    """
    tables = tables_for(section, paper)
    matches = match_rows(section, tables)
    matched = [table for table in tables if any(m.table is table for m in matches.values())]
    named = [row for row in section.rows if against is not None and row.matches_name(against)]
    baseline = named[0] if named else default_baseline(section)
    tests = paired_tests(section.rows, baseline)
    return Comparison(section, matched, matches, baseline, tests, paper)


def check_rows(sections: Sequence[Section], names: Sequence[str]) -> None:
    """Raise an error for a name that matches no row."""
    rows = [row for section in sections for row in section.rows]
    for name in names:
        if not any(row.matches_name(name) for row in rows):
            raise unknown_name_error("row", name, dict.fromkeys(row.name for row in rows))


def default_baseline(section: Section) -> Row:
    """Return the row of BiTTA without qualifiers, or the most accurate row if there is none."""
    bitta = [row for row in section.rows if row.title == "BiTTA"]
    return bitta[0] if len(bitta) == 1 else max(section.rows, key=lambda row: row.accuracy.mean)


def paired_tests(rows: Sequence[Row], baseline: Row) -> dict[str, PairedTest]:
    """Test every other row against the baseline. Rows with fewer than two pairs are left out."""
    tests = {}
    for row in rows:
        differences = _paired_differences(row, baseline)
        if row.name != baseline.name and len(differences) > 1:
            p = signed_rank_p(differences)
            tests[row.name] = PairedTest(median(differences), p, len(differences))
    corrected = holm_correction({name: test.p for name, test in tests.items()})
    return {name: replace(test, p=corrected[name]) for name, test in tests.items()}


def _paired_differences(row: Row, baseline: Row) -> list[float]:
    differences = []
    for seed in row.runs:
        if seed in baseline.runs:
            ours = row.runs[seed].accuracy_by_domain
            theirs = baseline.runs[seed].accuracy_by_domain
            differences += [ours[domain] - theirs[domain] for domain in ours if domain in theirs]
    # Remove rounding errors, so that differences of equal counts are equal.
    return [round(difference, 9) for difference in differences]


def _numbers_text(numbers: Iterable[int]) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(numbers)))


def _describe_domains(row: Row, n_domains: int) -> str:
    """List the collapsed domains with their seeds. Domains that most seeds share come first."""
    collapsed = row.collapsed_domains
    seeds_by_domain: dict[str, list[int]] = {}
    for seed, domains in collapsed.items():
        for domain in domains:
            seeds_by_domain.setdefault(domain, []).append(seed)
    names = sorted(seeds_by_domain, key=lambda domain: -len(seeds_by_domain[domain]))
    seeds_differ = len({tuple(domains) for domains in collapsed.values()}) > 1
    if n_domains == 1:
        return f"in the whole stream{_describe_seeds(row, collapsed)}"
    if len(names) <= _MAX_LISTED_DOMAINS:
        if seeds_differ:
            return "; ".join(
                f"in {name}{_describe_seeds(row, seeds_by_domain[name])}" for name in names
            )
        return f"in {', '.join(names)}{_describe_seeds(row, collapsed)}"
    listed = ", ".join(names[:_MAX_LISTED_DOMAINS])
    count = f"{format_range([len(domains) for domains in collapsed.values()])} of {n_domains}"
    condition = ", depending on the seed" if seeds_differ else ""
    return f"in {count} domains{condition} ({listed}, ...){_describe_seeds(row, collapsed)}"


def _describe_nan_outputs(row: Row) -> str:
    """Return a note on the first batch whose predictions are all NaN; empty if there is none."""
    batches = {seed: batch for seed, run in row.runs.items() if (batch := run.first_nan_batch)}
    if not batches:
        return ""
    first = format_range(list(batches.values()))
    return f"; all predictions NaN first in batch {first}{_describe_seeds(row, batches)}"


def _describe_seeds(row: Row, seeds: Collection[int]) -> str:
    if len(row.runs) == 1:
        return ""
    if len(seeds) == len(row.runs):
        return ", all seeds"
    return f", {format_seeds(seeds)} of {len(row.runs)}"
