"""Claims about the order of the methods in each table of the paper."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter

from bitta.report.paper_numbers import PaperTable
from reproduction.claims.claim import Claim, Finding, seeds_text
from reproduction.claims.results import ResultFolders
from reproduction.claims.tables import TableComparison, compare_table, paper_table, paper_tables

SIMILAR = 1.0
"""Largest difference in points between accuracies that count as similar."""
HANDICAPPED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "tab:tinyimagenetc/cifar10-c": ("mean",),
    "tab:tinyimagenetc/cifar100-c": ("mean",),
    "tab:pacs_vlcs": ("mean", "mixed-100"),
    "tab:add_baselines": ("cifar10-c", "cifar100-c"),
}
"""Columns for which there are experiments with the handicaps of the published code."""

OrderCheck = Callable[[Mapping[str, float], float], tuple[str, bool]]
"""Takes the other rows' numbers and BiTTA's. Returns a summary, and True if the claim holds."""


def order_claims() -> list[Claim]:
    """Return a claim for each table, and a second one if rows were run with handicaps."""
    claims = []
    for table in map(paper_table, paper_tables()):
        text, order = _ORDERS.get(table.id, _BITTA_IS_BEST)
        claim = Claim(
            id=table.id,
            location=f"{table.title}, {_SUBJECTS[table.id]}",
            text=text,
            paper=order_in_paper(table)[0],
            experiments=table.experiments,
            runs="",
            check=partial(_check_order, table, order),
        )
        claims.append(claim)
        if table.id in HANDICAPPED_COLUMNS:
            columns = HANDICAPPED_COLUMNS[table.id]
            claims.append(
                replace(
                    claim,
                    id=f"{table.id}/handicaps",
                    text=text.removesuffix(".") + _WITH_HANDICAPS,
                    check=partial(_check_order, table, order, handicapped_columns=columns),
                )
            )
    return claims


def order_in_paper(table: PaperTable) -> tuple[str, bool]:
    """Summarise the order of the paper's own numbers. Return True if the claim holds for them."""
    comparison, summaries, holds = TableComparison(table), [], True
    _, order = _ORDERS.get(table.id, _BITTA_IS_BEST)
    for column in comparison.columns:
        printed = {row.name: comparison.paper_value(row, column) for row in table.rows}
        values = {name: value for name, value in printed.items() if value is not None}
        if values:
            others = {name: values[name] for name in _rivals(table)}
            summary, is_ordered = order(others, values[comparison.bitta])
            summaries.append(_with_column(comparison, column, summary))
            holds &= is_ordered
    return "; ".join(summaries), holds


def count_best_domains(comparison: TableComparison) -> tuple[int, int] | None:
    """Count the domains in which BiTTA is best: in the paper, and here.

    Return None if one of our rows is missing.
    """
    rows = comparison.our_rows("mean") if comparison.domains else {}
    others = _rows_except_bitta(comparison.table)
    if not {comparison.bitta, *others} <= set(rows):
        return None
    n_ours = sum(
        rows[comparison.bitta].accuracy_by_domain[domain].mean
        > max(rows[name].accuracy_by_domain[domain].mean for name in others)
        for domain in comparison.domains
    )
    return _n_best_domains_in_paper(comparison), n_ours


def check_best_in_all_domains(table_id: str, results: ResultFolders) -> Finding | None:
    """Check that BiTTA is above the other rows in each domain. One exception refutes it."""
    comparison = compare_table(paper_table(table_id), results)
    rows, rivals = comparison.our_rows("mean"), _rivals(comparison.table)
    others = {name: rows[name] for name in rivals if name in rows}
    if comparison.bitta not in rows or not others:
        return None
    bitta, exceptions = rows[comparison.bitta], []
    for domain in comparison.domains:
        best, accuracy = max(
            ((name, row.accuracy_by_domain[domain].mean) for name, row in others.items()),
            key=itemgetter(1),
        )
        if (lead := bitta.accuracy_by_domain[domain].mean - accuracy) <= 0:
            exceptions.append(f"{domain} {lead:+.2f} over {best}")
    n = len(comparison.domains)
    listed = f": {', '.join(exceptions)}" if exceptions else ""
    return Finding(
        f"{n - len(exceptions)} of {n}{listed} ({seeds_text([bitta, *others.values()])})",
        not exceptions,
        len(others) == len(rivals),
    )


def best_domains_in_paper(table_id: str) -> str:
    """Return the number of domains in which BiTTA is best in the paper: "13 of 15"."""
    comparison = TableComparison(paper_table(table_id))
    return f"{_n_best_domains_in_paper(comparison)} of {len(comparison.domains)}"


def _n_best_domains_in_paper(comparison: TableComparison) -> int:
    values = {row.name: row.values for row in comparison.table.rows}
    others = _rows_except_bitta(comparison.table)
    return sum(
        values[comparison.bitta][index] > max(values[name][index] for name in others)
        for index in range(len(comparison.domains))
    )


def _check_order(
    table: PaperTable,
    order: OrderCheck,
    results: ResultFolders,
    *,
    handicapped_columns: tuple[str, ...] = (),
) -> Finding | None:
    """Check the order in each column, or in the handicapped columns alone."""
    comparison, rivals = compare_table(table, results), _rivals(table)
    summaries, holds, is_complete = [], True, True
    for column in handicapped_columns or comparison.columns:
        rows = comparison.our_rows(column, with_handicaps=bool(handicapped_columns))
        others = {name: rows[name] for name in rivals if name in rows}
        is_complete &= comparison.bitta in rows and len(others) == len(rivals)
        if comparison.bitta in rows and others:
            values = {name: comparison.our_value(row).mean for name, row in others.items()}
            bitta = comparison.our_value(rows[comparison.bitta]).mean
            summary, is_ordered = order(values, bitta)
            seeds = seeds_text([rows[comparison.bitta], *others.values()])
            summaries.append(_with_column(comparison, column, f"{summary} ({seeds})"))
            holds &= is_ordered
    return Finding("; ".join(summaries), holds, is_complete) if summaries else None


def _order_bitta_best(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    best = max(others, key=lambda name: others[name])
    return f"{bitta - others[best]:+.2f} over {best}", bitta > others[best]


def _order_similar(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    summary = ", ".join(f"{name}: {value - bitta:+.2f}" for name, value in others.items())
    return summary, all(abs(value - bitta) <= SIMILAR for value in others.values())


def _order_of_times(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    n_faster = sum(value < bitta for value in others.values())
    slow_methods = ("CoTTA*", "SimATTA*")
    holds = all((value > bitta) == (name in slow_methods) for name, value in others.items())
    return f"{bitta:.3g} s; {n_faster} of {len(others)} others are faster", holds


def _order_of_memory(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    variants = {name: others[name] for name in ("+MECTA", "+GA") if name in others}
    summary = ", ".join(
        f"{name} {value:,.0f} MB" for name, value in {"BiTTA": bitta, **variants}.items()
    )
    is_falling = list(variants.values()) == sorted(variants.values(), reverse=True)
    return summary, bitta > max(others.values()) and is_falling


_WITH_HANDICAPS = " if the methods with answers have the handicaps of the published code."
_BITTA_IS_BEST: tuple[str, OrderCheck] = ("BiTTA is above all other rows.", _order_bitta_best)
_ORDERS: Mapping[str, tuple[str, OrderCheck]] = {
    "tab:wall_clock_time": (
        "BiTTA takes less time than CoTTA* and SimATTA*, and more time than the other methods.",
        _order_of_times,
    ),
    "tab:gpu_memory": (
        "BiTTA needs the most memory. MECTA saves some of it. Gradient accumulation saves more.",
        _order_of_memory,
    ),
    "tab:app_epoch": (
        f"One or two updates per batch are as good as three (our criterion: the accuracy differs "
        f"by at most {SIMILAR:g} point).",
        _order_similar,
    ),
    "tab:app_augment": (
        "BiTTA is better with MC-dropout than with other estimates of the policy.",
        _order_bitta_best,
    ),
    "tab:app_original_pacs": (
        "BiTTA is above all methods without answers. (The comparison with SimATTA with full "
        "labels is another claim.)",
        _order_bitta_best,
    ),
}
"""The claim and its check, for tables that are not about the best accuracy of all rows."""
_SUBJECTS: Mapping[str, str] = {
    "tab:tinyimagenetc/cifar10-c": "CIFAR-10-C",
    "tab:tinyimagenetc/cifar100-c": "CIFAR-100-C",
    "tab:tinyimagenetc/tiny-imagenet-c": "Tiny-ImageNet-C",
    "tab:pacs_vlcs": "PACS",
    "tab:wall_clock_time": "time",
    "tab:gpu_memory": "memory",
    "tab:app_epoch": "updates per batch",
    "tab:app_augment": "policies",
    "tab:additional_datasets": "five more data sets",
    "tab:app_noniid/non-iid": "temporally correlated labels",
    "tab:app_noniid/batch-size-1": "batches of one sample",
    "tab:add_baselines": "recent methods",
    "tab:add_baselines_owttt": "OWTTT's source model",
    "tab:app_resnet50/resnet50": "ResNet-50",
    "tab:app_resnet50/vit": "ViT",
    "tab:app_original/cifar10-c": "without answers, with labels, CIFAR-10-C",
    "tab:app_original/cifar100-c": "without answers, with labels, CIFAR-100-C",
    "tab:app_original/tiny-imagenet-c": "without answers, with labels, Tiny-ImageNet-C",
    "tab:app_original_pacs": "without answers, with labels, PACS",
    "tab:app_enhanced_corruption": "fine-tuned before the stream",
}


def _rows_except_bitta(table: PaperTable) -> list[str]:
    bitta = table.row("bitta", "verdict")
    return [row.name for row in table.rows if row is not bitta]


def _rivals(table: PaperTable) -> list[str]:
    """Return the rows that BiTTA is claimed to be above.

    In Table 13 of the paper SimATTA with full labels is above BiTTA.
    """
    with_labels = [row.name for row in table.rows if row.label == "F"]
    exempt = with_labels if table.id == "tab:app_original_pacs" else []
    return [name for name in _rows_except_bitta(table) if name not in exempt]


def _with_column(comparison: TableComparison, column: str, summary: str) -> str:
    return f"{column}: {summary}" if len(comparison.columns) > 1 else summary
