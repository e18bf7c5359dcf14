"""The order that each table of the paper shows, looked for in ours."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter

from bitta.report.reference_numbers import PaperTable
from reproduction.claims.claim import Finding, Statement, seeds_of
from reproduction.claims.results import Results
from reproduction.claims.tables import Measured, measured, paper_table, paper_tables

NEAR = 1.0
"""Points: what we call as good as."""
HANDICAPS: Mapping[str, tuple[str, ...]] = {
    "tab:tinyimagenetc/cifar10-c": ("mean",),
    "tab:tinyimagenetc/cifar100-c": ("mean",),
    "tab:pacs_vlcs": ("mean", "mixed-100"),
    "tab:add_baselines": ("cifar10-c", "cifar100-c"),
}
"""Columns of which there are experiments with the handicaps of the published code."""

Order = Callable[[Mapping[str, float], float], tuple[str, bool]]
"""Given the other rows and BiTTA's: in words, and whether it is as it should be."""


def table_statements() -> list[Statement]:
    """One for each table, and another where rows can have their handicaps."""
    made = []
    for table in map(paper_table, paper_tables()):
        gist, order = _ORDERS.get(table.id, _BEST)
        statement = Statement(
            id=table.id,
            place=f"{table.place}, {_SUBJECTS[table.id]}",
            gist=gist,
            paper=printed_order(table)[0],
            experiments=table.experiments,
            part="",
            check=partial(_look, table, order),
        )
        made.append(statement)
        if table.id in HANDICAPS:
            made.append(
                replace(
                    statement,
                    id=f"{table.id}/handicaps",
                    gist=f"{gist} All as the published code runs them.",
                    check=partial(_look, table, order, handicaps=HANDICAPS[table.id]),
                )
            )
    return made


def printed_order(table: PaperTable) -> tuple[str, bool]:
    """What the paper's own numbers say."""
    of, told, right = Measured(table), [], True
    _, order = _ORDERS.get(table.id, _BEST)
    for column in of.columns:
        printed = {row.name: of.printed(row, column) for row in table.rows}
        values = {name: value for name, value in printed.items() if value is not None}
        if values:
            others = {name: values[name] for name in _others(table)}
            words, ordered = order(others, values[of.bitta])
            told.append(_headed(of, column, words))
            right &= ordered
    return "; ".join(told), right


def domains_led(of: Measured) -> tuple[int, int] | None:
    """In how many domains BiTTA is best, in the paper and here; None where a row is missing."""
    rows, others = of.ours("mean") if of.domains else {}, _all_others(of.table)
    if not {of.bitta, *others} <= set(rows):
        return None
    here = sum(
        rows[of.bitta].by_domain[domain].mean
        > max(rows[name].by_domain[domain].mean for name in others)
        for domain in of.domains
    )
    return _n_led(of), here


def leads_everywhere(table_id: str, results: Results) -> Finding | None:
    """In each domain BiTTA is above whatever else was run; one that is not decides it."""
    of = measured(paper_table(table_id), results)
    rows = of.ours("mean")
    others = {name: rows[name] for name in _others(of.table) if name in rows}
    if of.bitta not in rows or not others:
        return None
    bitta, behind = rows[of.bitta], []
    for domain in of.domains:
        best, most = max(
            ((name, row.by_domain[domain].mean) for name, row in others.items()),
            key=itemgetter(1),
        )
        if (lead := bitta.by_domain[domain].mean - most) <= 0:
            behind.append(f"{domain} {lead:+.2f} to {best}")
    n = len(of.domains)
    told = f"{n - len(behind)} of {n}{': ' if behind else ''}{', '.join(behind)}"
    return Finding(
        f"{told} ({seeds_of([bitta, *others.values()])})",
        not behind,
        len(others) == len(_others(of.table)),
    )


def printed_lead(table_id: str) -> str:
    """In how many domains BiTTA is best in the paper's own table."""
    of = Measured(paper_table(table_id))
    return f"{_n_led(of)} of {len(of.domains)}"


def _n_led(of: Measured) -> int:
    values = {row.name: row.values for row in of.table.rows}
    return sum(
        values[of.bitta][place] > max(values[name][place] for name in _all_others(of.table))
        for place in range(len(of.domains))
    )


def _look(
    table: PaperTable, order: Order, results: Results, *, handicaps: tuple[str, ...] = ()
) -> Finding | None:
    """In each column; with handicaps, in those columns alone."""
    of = measured(table, results)
    told, right, whole = [], True, True
    for column in handicaps or of.columns:
        rows = of.ours(column, handicaps=bool(handicaps))
        others = {name: rows[name] for name in _others(table) if name in rows}
        whole &= of.bitta in rows and len(others) == len(_others(table))
        if of.bitta in rows and others:
            values = {name: of.spread(row).mean for name, row in others.items()}
            words, ordered = order(values, of.spread(rows[of.bitta]).mean)
            seeds = seeds_of([rows[of.bitta], *others.values()])
            told.append(_headed(of, column, f"{words} ({seeds})"))
            right &= ordered
    return Finding("; ".join(told), right, whole) if told else None


def _leads(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    best = max(others, key=lambda name: others[name])
    return f"{bitta - others[best]:+.2f} over {best}", bitta > others[best]


def _is_near(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    told = ", ".join(f"{name}: {value - bitta:+.2f}" for name, value in others.items())
    return told, all(abs(value - bitta) <= NEAR for value in others.values())


def _is_between(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    faster = sum(value < bitta for value in others.values())
    slow = ("CoTTA*", "SimATTA*")
    right = all((value > bitta) == (name in slow) for name, value in others.items())
    return f"{bitta:.3g} s, {faster} of {len(others)} others faster", right


def _needs_most(others: Mapping[str, float], bitta: float) -> tuple[str, bool]:
    savers = {name: others[name] for name in ("+MECTA", "+GA") if name in others}
    told = ", ".join(
        f"{name} {value:,.0f} MB" for name, value in {"BiTTA": bitta, **savers}.items()
    )
    falling = list(savers.values()) == sorted(savers.values(), reverse=True)
    return told, bitta > max(others.values()) and falling


_BEST: tuple[str, Order] = ("BiTTA is above all other rows.", _leads)
_ORDERS: Mapping[str, tuple[str, Order]] = {
    "tab:wall_clock_time": (
        "BiTTA takes longer than the simple methods and less time than CoTTA* and SimATTA*.",
        _is_between,
    ),
    "tab:gpu_memory": (
        "BiTTA needs the most memory; MECTA saves some of it, gradient accumulation more.",
        _needs_most,
    ),
    "tab:app_epoch": (
        f"One or two steps a batch do as well as three (ours: within {NEAR:g} point).",
        _is_near,
    ),
    "tab:app_augment": ("MC-dropout is above the other estimates of the policy.", _leads),
    "tab:app_original_pacs": (
        "BiTTA is above all methods without answers; SimATTA with labels is a claim apart.",
        _leads,
    ),
}
_SUBJECTS: Mapping[str, str] = {
    "tab:tinyimagenetc/cifar10-c": "CIFAR-10-C",
    "tab:tinyimagenetc/cifar100-c": "CIFAR-100-C",
    "tab:tinyimagenetc/tiny-imagenet-c": "Tiny-ImageNet-C",
    "tab:pacs_vlcs": "PACS",
    "tab:wall_clock_time": "time",
    "tab:gpu_memory": "memory",
    "tab:app_epoch": "steps per batch",
    "tab:app_augment": "policies",
    "tab:additional_datasets": "five more sets",
    "tab:app_noniid/non-iid": "labels in runs",
    "tab:app_noniid/batch-size-1": "one sample at a time",
    "tab:add_baselines": "recent methods",
    "tab:add_baselines_owttt": "OWTTT's source model",
    "tab:app_resnet50/resnet50": "ResNet-50",
    "tab:app_resnet50/vit": "ViT",
    "tab:app_original/cifar10-c": "without answers, with labels, CIFAR-10-C",
    "tab:app_original/cifar100-c": "without answers, with labels, CIFAR-100-C",
    "tab:app_original/tiny-imagenet-c": "without answers, with labels, Tiny-ImageNet-C",
    "tab:app_original_pacs": "without answers, with labels, PACS",
    "tab:app_enhanced_corruption": "tuned beforehand",
}


def _all_others(table: PaperTable) -> list[str]:
    """All rows but BiTTA's."""
    bitta = table.row("bitta", "verdict")
    return [row.name for row in table.rows if row is not bitta]


def _others(table: PaperTable) -> list[str]:
    """Those it is said to be above; in Table 13 the paper has SimATTA with labels above it."""
    with_labels = [row.name for row in table.rows if row.label == "F"]
    exempt = with_labels if table.id == "tab:app_original_pacs" else []
    return [name for name in _all_others(table) if name not in exempt]


def _headed(of: Measured, column: str, words: str) -> str:
    return f"{column}: {words}" if len(of.columns) > 1 else words
