"""Checks of claims about figures and ablations: which of two settings or methods is better."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from bitta.report.rows import Row
from reproduction.claims.claim import Finding, seeds_text
from reproduction.claims.orders import SIMILAR
from reproduction.claims.results import ResultFolders
from reproduction.claims.tables import TableComparison, compare_table, paper_table

FAR_BELOW = 2.0
"""Points of accuracy that count as far below."""
CONFIDENCE_CHANGE = 10.0
"""Points of confidence that count as a change."""
ALLOWED_DIP = 0.5
"""Points by which a rising curve may fall from one value of a setting to the next."""
COLLAPSED_MARK = " ‡"
"""Mark of a row that collapsed in some domain with some seed."""
_DATASETS = ("cifar10-c", "cifar100-c", "tiny-imagenet-c")
_ERROR_RATE_OF_GPT_4O = 0.4
"""The paper's number, which our runs use."""
_TABLES_WITH_LABELS = (
    "tab:app_original/cifar10-c", "tab:app_original/cifar100-c",
    "tab:app_original/tiny-imagenet-c", "tab:app_original_pacs",
)  # fmt: skip
"""Tables that have SimATTA with as many labels as BiTTA has binary answers."""
_Pair = tuple[Row | None, Row | None]


# One setting with several values.


def check_best_value(folder: str, key: str, best: Any, results: ResultFolders) -> Finding | None:
    """Check that one value of a setting is better than each of the others."""
    rows = results.rows_by_setting(folder, key)
    if best not in rows or len(rows) < 2:
        return None
    others = [row.domain_mean.mean for value, row in rows.items() if value != best]
    return Finding(_accuracies_text(rows), rows[best].domain_mean.mean > max(others))


def check_rising(folder: str, key: str, method: str, results: ResultFolders) -> Finding | None:
    """Check that accuracy rises with a setting. Small dips are allowed."""
    rows = results.rows_by_setting(folder, key, method)
    if len(rows) < 2:
        return None
    values = [row.domain_mean.mean for row in rows.values()]
    largest_dip = max(before - after for before, after in pairwise(values))
    holds = values[-1] > values[0] and largest_dip <= ALLOWED_DIP
    return Finding(_accuracies_text(rows), holds)


def check_robust(
    folder: str,
    key: str,
    within: float,
    results: ResultFolders,
    *,
    min_value: float = 0,
    **settings: Any,
) -> Finding | None:
    """Check that all values of a setting, from `min_value` up, differ by at most `within` points.

    `settings` chooses rows as in ResultFolders.rows. The summary shows lower values as well.
    """
    rows = results.rows_by_setting(folder, key, **settings)
    values = [row.domain_mean.mean for value, row in rows.items() if value >= min_value]
    if len(values) < 2:
        return None
    return Finding(_accuracies_text(rows), max(values) - min(values) <= within)


def check_far_below(
    folder: str, key: str, low: Any, high: Any, points: float, results: ResultFolders
) -> Finding | None:
    """Check that the value `low` of a setting is worse than `high` by more than some points."""
    rows = results.rows_by_setting(folder, key)
    if not {low, high} <= set(rows):
        return None
    lost = rows[high].domain_mean.mean - rows[low].domain_mean.mean
    return Finding(_accuracies_text({value: rows[value] for value in (low, high)}), lost > points)


# BiTTA and SimATTA.


def check_above_simatta(folder: str, key: str, results: ResultFolders) -> Finding | None:
    """Check that BiTTA is above SimATTA* at every value of a setting that both have."""
    bitta, simatta = (results.rows_by_setting(folder, key, m) for m in ("bitta", "simatta"))
    shared = [value for value in bitta if value in simatta]
    if not shared:
        return None
    leads = {v: bitta[v].domain_mean.mean - simatta[v].domain_mean.mean for v in shared}
    collapsed = {
        value
        for value in shared
        if bitta[value].collapsed_domains or simatta[value].collapsed_domains
    }
    summary = ", ".join(
        f"{value}: {lead:+.2f}{COLLAPSED_MARK if value in collapsed else ''}"
        for value, lead in leads.items()
    )
    rows = [rows[value] for rows in (bitta, simatta) for value in shared]
    return Finding(f"BiTTA - SimATTA* at {summary} ({seeds_text(rows)})", min(leads.values()) > 0)


def check_loses_less(folder: str, key: str, results: ResultFolders) -> Finding | None:
    """Check that BiTTA loses less than SimATTA* from the lowest to the highest value."""
    changes, ends = {}, []
    for method, name in (("bitta", "BiTTA"), ("simatta", "SimATTA*")):
        rows = list(results.rows_by_setting(folder, key, method).values())
        if len(rows) < 2:
            return None
        changes[name] = rows[-1].domain_mean.mean - rows[0].domain_mean.mean
        ends += [rows[0], rows[-1]]
    summary = ", ".join(f"{name} {points:+.2f}" for name, points in changes.items())
    return Finding(f"{summary} ({seeds_text(ends)})", changes["BiTTA"] > changes["SimATTA*"])


def check_largest_lead_at_equal_cost(claimed: float, results: ResultFolders) -> Finding | None:
    """Check BiTTA's largest lead over SimATTA with full labels, in percent of its accuracy.

    The lead at equal cost in bits decides. The summary shows the lead in seconds as well.
    """
    summaries, leads, rows = [], [], []
    for dataset in _DATASETS:
        for unit in ("bits", "seconds"):
            bitta, simatta, _ = _rows_at_equal_cost(results, dataset, unit)
            if bitta is None or simatta is None:
                continue
            ours, theirs = bitta.domain_mean.mean, simatta.domain_mean.mean
            percent = 100 * (ours - theirs) / theirs
            summaries.append(f"{dataset} in {unit}: {percent:+.1f} % ({ours - theirs:+.1f} points)")
            leads += [percent] if unit == "bits" else []
            rows += [bitta, simatta]
    if not leads:
        return None
    is_reached, is_complete = max(leads) >= claimed, len(leads) == len(_DATASETS)
    return Finding(
        f"{'; '.join(summaries)} ({seeds_text(rows)})",
        is_reached if is_reached or is_complete else None,
        is_complete,
    )


def check_above_simatta_at_equal_cost(results: ResultFolders) -> Finding | None:
    """Check that BiTTA is above SimATTA with the labels that cost as many bits."""
    rows = {dataset: _rows_at_equal_cost(results, dataset)[:2] for dataset in _DATASETS}
    return _check_first_above_second(rows)


def check_true_labels_above_wrong(results: ResultFolders) -> Finding | None:
    """Check that SimATTA is better with true labels than with GPT-4o's error rate."""
    rows = {dataset: _rows_at_equal_cost(results, dataset)[1:] for dataset in _DATASETS}
    return _check_first_above_second(rows)


def check_answers_above_wrong_labels(results: ResultFolders) -> Finding | None:
    """Check that BiTTA is above SimATTA with GPT-4o's error rate, at equal cost in bits."""
    rows = {dataset: _rows_at_equal_cost(results, dataset)[::2] for dataset in _DATASETS}
    return _check_first_above_second(rows)


def check_answers_above_labels(results: ResultFolders) -> Finding | None:
    """Check that BiTTA with binary answers is above SimATTA with as many labels."""
    rows: dict[str, _Pair] = {}
    for table_id in _TABLES_WITH_LABELS:
        comparison = compare_table(paper_table(table_id), results)
        for column in comparison.columns:
            found = comparison.our_rows(column)
            rows[_stream_name(comparison, column)] = found.get("BiTTA"), found.get("SimATTA")
    return _check_first_above_second(rows)


def paper_leads_over_labels() -> str:
    """Return BiTTA's leads over SimATTA with labels in the paper's tables."""
    leads = []
    for comparison in (TableComparison(paper_table(table_id)) for table_id in _TABLES_WITH_LABELS):
        table = comparison.table
        for column in comparison.columns:
            bitta = table.value("bitta", "verdict", column)
            simatta = table.value("simatta", "full", column)
            leads.append(f"{_stream_name(comparison, column)} {bitta - simatta:+.2f}")
    return ", ".join(leads)


def _check_first_above_second(rows: Mapping[str, _Pair]) -> Finding | None:
    leads, compared = {}, []
    for name, (first, second) in rows.items():
        if first is not None and second is not None:
            leads[name] = first.domain_mean.mean - second.domain_mean.mean
            compared += [first, second]
    if not leads:
        return None
    summary = ", ".join(f"{name} {lead:+.2f}" for name, lead in leads.items())
    holds = min(leads.values()) > 0
    return Finding(f"{summary} ({seeds_text(compared)})", holds, len(leads) == len(rows))


def _rows_at_equal_cost(
    results: ResultFolders, dataset: str, unit: str = "bits"
) -> tuple[Row | None, Row | None, Row | None]:
    """Return BiTTA, SimATTA with true labels, and SimATTA with GPT-4o's error rate."""
    rows_of = partial(results.rows, "equal-cost", kind=dataset, feedback__equal=unit)
    simatta = rows_of("simatta")
    wrong = [
        row for row in simatta if row.effective_settings["feedback.error"] == _ERROR_RATE_OF_GPT_4O
    ]
    right = [row for row in simatta if row not in wrong]
    first, second, third = (rows[0] if rows else None for rows in (rows_of("bitta"), right, wrong))
    return first, second, third


def _stream_name(comparison: TableComparison, column: str) -> str:
    title = comparison.table.title
    return f"{title} {column}" if len(comparison.columns) > 1 else title


# The parts of BiTTA.


def component_rows(results: ResultFolders) -> dict[str, Row]:
    """Return the rows of BFA only, ABA only and both parts, as far as they were run."""
    by_parts = {
        (row.effective_settings["method.alpha"] > 0, row.effective_settings["method.beta"] > 0): row
        for row in results.rows("components", "bitta")
    }
    names = {(True, False): "BFA only", (False, True): "ABA only", (True, True): "both"}
    return {name: by_parts[parts] for parts, name in names.items() if parts in by_parts}


def check_both_parts_are_best(results: ResultFolders) -> Finding | None:
    """Check that BFA only < ABA only < both, and that both are best in every corruption."""
    rows = component_rows(results)
    if len(rows) < 3:
        return None
    bfa, aba, both = rows.values()
    is_ordered = bfa.domain_mean.mean < aba.domain_mean.mean < both.domain_mean.mean
    n_best = sum(
        both.accuracy_by_domain[domain].mean
        > max(bfa.accuracy_by_domain[domain].mean, aba.accuracy_by_domain[domain].mean)
        for domain in both.accuracy_by_domain
    )
    n = len(both.accuracy_by_domain)
    summary = f"{_accuracies_text(rows)}; both are best in {n_best} of {n} corruptions"
    return Finding(summary, is_ordered and n_best == n)


def check_agreement_beats_thresholds(results: ResultFolders) -> Finding | None:
    """Check that agreement is better than each fixed threshold of confidence."""
    agreement, fixed = _agreement_and_thresholds(results)
    if agreement is None or not fixed:
        return None
    best = max(row.domain_mean.mean for row in fixed.values())
    summary = _accuracies_text({"agreement": agreement, **fixed})
    return Finding(summary, agreement.domain_mean.mean > best)


def check_thresholds_vary_more(results: ResultFolders) -> Finding | None:
    """Check that seeds differ more with each fixed threshold than with agreement."""
    agreement, fixed = _agreement_and_thresholds(results)
    if agreement is None:
        return None
    rows = {"agreement": agreement, **fixed}
    deviations = {name: row.domain_mean.deviation for name, row in rows.items()}
    known = {name: value for name, value in deviations.items() if value is not None}
    if len(known) < 2 or "agreement" not in known:
        return None
    summary = ", ".join(f"{name}: {value:.2f}" for name, value in known.items())
    of_agreement = known.pop("agreement")
    holds = min(known.values()) > of_agreement
    return Finding(f"{summary} ({seeds_text(list(rows.values()))})", holds)


def check_accumulation_accuracy(results: ResultFolders) -> Finding | None:
    """Check that gradient accumulation is as accurate as the whole batch."""
    rows = compare_table(paper_table("tab:gpu_memory"), results).our_rows("cifar10-c")
    found = {name: rows[name] for name in ("BiTTA", "+GA", "+MECTA") if name in rows}
    if not {"BiTTA", "+GA"} <= set(found):
        return None
    lost = found["BiTTA"].domain_mean.mean - found["+GA"].domain_mean.mean
    return Finding(_accuracies_text(found), lost <= SIMILAR)


def paper_augmentation() -> str:
    """Return the paper's accuracies with augmentation and with MC-dropout as the policy."""
    table = paper_table("tab:app_augment")
    augmented = table.value("bitta", "verdict", "mean", policy="augmentation")
    return f"{augmented:.2f} against {table.value('bitta', 'verdict', 'mean'):.2f}"


def _agreement_and_thresholds(results: ResultFolders) -> tuple[Row | None, dict[Any, Row]]:
    agreement = results.rows("thresholds", "bitta", method__agreement="policy")
    fixed = results.rows_by_setting("thresholds", "method.threshold", method__agreement="threshold")
    return (agreement[0] if agreement else None), fixed


# Confidence and agreement.


def check_confidence_changes(results: ResultFolders) -> Finding | None:
    """Check that BiTTA's mean confidence differs between corruptions.

    The policy's confidence decides, because the paper measures a sample's confidence by it. The
    summary shows the confidence of the served predictions as well.
    """
    rows = [
        row
        for row in results.rows("confidence", "bitta")
        if _confidences(row, "policy_confidence", "n_measured")
    ]
    if not rows:
        return None
    summaries, changes = [], []
    for row in rows:
        policy = _confidences(row, "policy_confidence", "n_measured")
        served = _confidences(row, "confidence", "n")
        kind = row.settings["stream"]["kind"]
        summaries.append(f"{kind}: policy {_range(policy)}, served predictions {_range(served)}")
        changes.append(max(policy) - min(policy) >= CONFIDENCE_CHANGE)
    return Finding(f"{'; '.join(summaries)} ({seeds_text(rows)})", all(changes))


def check_agreeing_is_more_accurate(folder: str, results: ResultFolders) -> Finding | None:
    """Check that samples on which policy and model agree are right more often, in each domain."""
    rows = results.rows(folder, "bitta")
    accuracies = _accuracies_by_agreement(rows[0]) if rows else {}
    if not accuracies:
        return None
    agreeing, others = (fmean(values) for values in zip(*accuracies.values(), strict=True))
    n_better, n = sum(agree > differ for agree, differ in accuracies.values()), len(accuracies)
    return Finding(
        f"{agreeing:.1f} % on agreeing samples, {others:.1f} % on the others; higher in {n_better} "
        f"of {n} corruptions ({seeds_text(rows[:1])})",
        n_better == n,
    )


def check_agreeing_varies_less(folder: str, results: ResultFolders) -> Finding | None:
    """Check that accuracy on agreeing samples deviates less over domains than on the others."""
    rows = results.rows(folder, "bitta")
    accuracies = _accuracies_by_agreement(rows[0]) if rows else {}
    if len(accuracies) < 2:
        return None
    agreeing, others = zip(*accuracies.values(), strict=True)
    summary = "; ".join(
        f"{name} {min(values):.1f} to {max(values):.1f} % (deviation {stdev(values):.1f})"
        for name, values in (("agreeing samples", agreeing), ("others", others))
    )
    return Finding(f"{summary} ({seeds_text(rows[:1])})", stdev(agreeing) < stdev(others))


def check_dropout_calibration(results: ResultFolders) -> Finding | None:
    """Check that MC-dropout has a lower calibration error than the deterministic confidence."""
    rows = results.rows_by_setting("calibration", "method.policy")
    errors = {name: ece.mean / 100 for name, row in rows.items() if (ece := row.policy_ece)}
    if len(errors) < 2:
        return None
    summary = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
    holds = errors["dropout"] < errors["softmax"]
    return Finding(f"{summary} ({seeds_text(list(rows.values()))})", holds)


def _range(percents: Sequence[float]) -> str:
    return f"{min(percents):.1f} to {max(percents):.1f} %"


def _confidences(row: Row, confidence: str, count: str) -> list[float]:
    """Return the mean confidence of each domain in percent, over all seeds.

    `confidence` and `count` name fields of a step: a sum, and its number of samples. Return an
    empty list if a step has samples but no confidence.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for step in (step for run in row.runs.values() for step in run.steps):
        if getattr(step, count) and getattr(step, confidence) is None:
            return []
        sums[step.domain] += getattr(step, confidence) or 0.0
        counts[step.domain] += getattr(step, count)
    return [100 * sums[domain] / n for domain, n in counts.items() if n]


def _accuracies_by_agreement(row: Row) -> dict[str, tuple[float, float]]:
    """Return accuracies on agreeing and on other samples by domain, averaged over seeds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in row.runs.values():
        for domain in run.accuracy_by_domain:
            steps = [step for step in run.steps if step.domain == domain]
            agreement = replace(run, steps=steps).agreement
            agreeing, others = agreement.accuracy_agreeing, agreement.accuracy_disagreeing
            if agreeing is not None and others is not None:
                found.setdefault(domain, []).append((agreeing, others))
    return {
        domain: (fmean(agreeing for agreeing, _ in pairs), fmean(others for _, others in pairs))
        for domain, pairs in found.items()
    }


def _accuracies_text(rows: Mapping[Any, Row]) -> str:
    summary = ", ".join(
        f"{value}: {row.domain_mean.mean:.2f}{COLLAPSED_MARK if row.collapsed_domains else ''}"
        for value, row in rows.items()
    )
    return f"{summary} ({seeds_text(list(rows.values()))})"
