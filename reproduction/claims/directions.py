"""What the paper says about figures and ablations: which way a thing goes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from bitta.report.row import Row
from reproduction.claims.claim import Finding, seeds_of
from reproduction.claims.numbers import components, stated_numbers
from reproduction.claims.orders import NEAR
from reproduction.claims.results import Results
from reproduction.claims.tables import measured, paper_table

FAR = 2.0
"""Points that we call far below."""
MOVES = 10.0
"""Points of confidence that we call a change."""
FELL = " ‡"
"""Behind what collapsed in some domain with some seed."""
SLACK = 0.5
"""Points that a rising curve may fall from one point to the next."""


def above_all(folder: str, key: str, best: Any, results: Results) -> Finding | None:
    """One value of a setting is better than each of the others."""
    rows = results.sweep(folder, key)
    if best not in rows or len(rows) < 2:
        return None
    others = [row.domain_mean.mean for value, row in rows.items() if value != best]
    return Finding(_series(rows), rows[best].domain_mean.mean > max(others))


def above_at_each(folder: str, key: str, results: Results) -> Finding | None:
    """BiTTA is above SimATTA* at every value of a setting."""
    bitta, simatta = (results.sweep(folder, key, method) for method in ("bitta", "simatta"))
    both = [value for value in bitta if value in simatta]
    if not both:
        return None
    leads = {v: bitta[v].domain_mean.mean - simatta[v].domain_mean.mean for v in both}
    fell = {v: FELL if bitta[v].collapsed or simatta[v].collapsed else "" for v in both}
    told = ", ".join(f"{value}: {lead:+.2f}{fell[value]}" for value, lead in leads.items())
    rows = [of[value] for of in (bitta, simatta) for value in both]
    return Finding(f"BiTTA - SimATTA* at {told} ({seeds_of(rows)})", min(leads.values()) > 0)


def rises(folder: str, key: str, method: str, results: Results) -> Finding | None:
    """More of a setting is better, but for a little."""
    rows = results.sweep(folder, key, method)
    if len(rows) < 2:
        return None
    values = [row.domain_mean.mean for row in rows.values()]
    falls = max(before - after for before, after in pairwise(values))
    return Finding(_series(rows), values[-1] > values[0] and falls <= SLACK)


def robust(
    folder: str, key: str, within: float, results: Results, *, least: float = 0, **where: Any
) -> Finding | None:
    """All values of a setting, from `least` up, are about as good; lower ones are told."""
    rows = results.sweep(folder, key, **where)
    values = [row.domain_mean.mean for value, row in rows.items() if value >= least]
    if len(values) < 2:
        return None
    return Finding(_series(rows), max(values) - min(values) <= within)


def loses_less(folder: str, key: str, results: Results) -> Finding | None:
    """From the lowest to the highest value BiTTA loses less than SimATTA*."""
    lost, rows = {}, []
    for method, name in (("bitta", "BiTTA"), ("simatta", "SimATTA*")):
        found = list(results.sweep(folder, key, method).values())
        if len(found) < 2:
            return None
        lost[name] = found[-1].domain_mean.mean - found[0].domain_mean.mean
        rows += [found[0], found[-1]]
    told = ", ".join(f"{name} {points:+.2f}" for name, points in lost.items())
    return Finding(f"{told} ({seeds_of(rows)})", lost["BiTTA"] > lost["SimATTA*"])


def both_are_best(results: Results) -> Finding | None:
    """BFA only < ABA only < both, and both are best in every corruption."""
    found = components(results)
    if len(found) < 3:
        return None
    bfa, aba, both = found.values()
    ordered = bfa.domain_mean.mean < aba.domain_mean.mean < both.domain_mean.mean
    led = sum(
        both.by_domain[domain].mean > max(bfa.by_domain[domain].mean, aba.by_domain[domain].mean)
        for domain in both.by_domain
    )
    told = f"{_series(found)}; both best in {led} of {len(both.by_domain)} corruptions"
    return Finding(told, ordered and led == len(both.by_domain))


def agreement_is_best(results: Results) -> Finding | None:
    """Agreement chooses better than each fixed threshold."""
    agreement = results.rows("thresholds", "bitta", method__agreement="policy")
    fixed = results.sweep("thresholds", "method.threshold", method__agreement="threshold")
    if not agreement or not fixed:
        return None
    rows = {"agreement": agreement[0], **fixed}
    best = max(row.domain_mean.mean for row in fixed.values())
    return Finding(_series(rows), agreement[0].domain_mean.mean > best)


def thresholds_are_unsteady(results: Results) -> Finding | None:
    """Seeds of each fixed threshold lie further apart than those of agreement."""
    agreement = results.rows("thresholds", "bitta", method__agreement="policy")
    fixed = results.sweep("thresholds", "method.threshold", method__agreement="threshold")
    rows = {"agreement": agreement[0], **fixed} if agreement else {}
    apart = {name: row.domain_mean.deviation for name, row in rows.items()}
    known = {name: value for name, value in apart.items() if value is not None}
    if len(known) < 2 or "agreement" not in known:
        return None
    told = ", ".join(f"{name}: {value:.2f}" for name, value in known.items())
    own = known.pop("agreement")
    return Finding(f"{told} ({seeds_of(list(rows.values()))})", min(known.values()) > own)


def is_far_below(
    folder: str, key: str, low: Any, high: Any, by: float, results: Results
) -> Finding | None:
    """One value of a setting is so much worse than another."""
    rows = results.sweep(folder, key)
    if not {low, high} <= set(rows):
        return None
    two = {value: rows[value] for value in (low, high)}
    lost = rows[high].domain_mean.mean - rows[low].domain_mean.mean
    return Finding(_series(two), lost > by)


def confidence_moves(results: Results) -> Finding | None:
    """Between the corruptions it is least and most sure in, BiTTA's confidence is far apart.

    The policy's decides, by which the paper measures a sample's; that in what is served is told.
    """
    rows = [
        row for row in results.rows("confidence", "bitta") if _confidences(row, "policy_confidence")
    ]
    if not rows:
        return None
    told, moves = [], []
    for row in rows:
        policy, served = (_confidences(row, of) for of in ("policy_confidence", "confidence"))
        kind = row.settings["stream"]["kind"]
        told.append(f"{kind}: {_range(policy)}, in what is served {_range(served)}")
        moves.append(max(policy) - min(policy) >= MOVES)
    return Finding(f"{'; '.join(told)} ({seeds_of(rows)})", all(moves))


def _range(percents: Sequence[float]) -> str:
    return f"{min(percents):.1f} to {max(percents):.1f} %"


def _confidences(row: Row, of: str) -> list[float]:
    """Mean in percent in each domain, over all seeds; none where it was not recorded."""
    count = {"confidence": "n", "policy_confidence": "n_measured"}[of]
    sure: defaultdict[str, float] = defaultdict(float)
    n: defaultdict[str, int] = defaultdict(int)
    for step in (step for run in row.runs.values() for step in run.steps):
        if getattr(step, count) and getattr(step, of) is None:
            return []
        sure[step.domain] += getattr(step, of) or 0.0
        n[step.domain] += getattr(step, count)
    return [100 * sure[domain] / n[domain] for domain in n if n[domain]]


def agreeing_is_right(folder: str, results: Results) -> Finding | None:
    """In each domain more is right where policy and model agree than where they do not."""
    rows = results.rows(folder, "bitta")
    found = _by_agreement(rows[0]) if rows else {}
    if not found:
        return None
    agreeing, others = (fmean(values) for values in zip(*found.values(), strict=True))
    led = sum(agree > differ for agree, differ in found.values())
    told = f"{agreeing:.1f} % right where they agree, {others:.1f} % elsewhere; more in {led} of "
    return Finding(f"{told}{len(found)} corruptions ({seeds_of(rows[:1])})", led == len(found))


def agreeing_is_steady(folder: str, results: Results) -> Finding | None:
    """Over domains, accuracy deviates less where policy and model agree than elsewhere."""
    rows = results.rows(folder, "bitta")
    found = _by_agreement(rows[0]) if rows else {}
    if len(found) < 2:
        return None
    agreeing, others = zip(*found.values(), strict=True)
    told = " and ".join(
        f"{where} {min(of):.1f} to {max(of):.1f} % (deviation {stdev(of):.1f})"
        for where, of in (("agreeing", agreeing), ("others", others))
    )
    return Finding(f"{told} ({seeds_of(rows[:1])})", stdev(agreeing) < stdev(others))


def _by_agreement(row: Row) -> dict[str, tuple[float, float]]:
    """Percent right where both agree and where they do not, by domain, mean over seeds."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for run in row.runs.values():
        for domain in run.accuracy_by_domain:
            steps = [step for step in run.steps if step.domain == domain]
            of = replace(run, steps=steps).agreement
            if of.accuracy_agreeing is not None and of.accuracy_disagreeing is not None:
                both = of.accuracy_agreeing, of.accuracy_disagreeing
                seen.setdefault(domain, []).append(both)
    return {
        domain: (fmean(one[0] for one in of), fmean(one[1] for one in of))
        for domain, of in seen.items()
    }


def dropout_is_calibrated(results: Results) -> Finding | None:
    """Of two policies, each run by itself, MC-dropout has the lower calibration error."""
    rows = results.sweep("calibration", "method.policy")
    eces = {name: ece.mean / 100 for name, row in rows.items() if (ece := row.policy_ece)}
    if len(eces) < 2:
        return None
    told = ", ".join(f"{name} {ece:.3f}" for name, ece in eces.items())
    return Finding(f"{told} ({seeds_of(list(rows.values()))})", eces["dropout"] < eces["softmax"])


def saves_for_nothing(results: Results) -> Finding | None:
    """Gradient accumulation is as accurate as the whole batch."""
    rows = measured(paper_table("tab:gpu_memory"), results).ours("cifar10-c")
    found = {name: rows[name] for name in ("BiTTA", "+GA", "+MECTA") if name in rows}
    if not {"BiTTA", "+GA"} <= set(found):
        return None
    lost = found["BiTTA"].domain_mean.mean - found["+GA"].domain_mean.mean
    return Finding(_series(found), lost <= NEAR)


def printed_augmentation() -> str:
    """Both in the paper."""
    values = {row.variant: row.values[-1] for row in paper_table("tab:app_augment").rows}
    return f"{values['augmentation']:.2f} against {values['']:.2f}"


def printed_components() -> str:
    """The three in the paper."""
    claims = {claim.id: claim.printed for claim in stated_numbers()}
    both = paper_table("tab:tinyimagenetc/cifar10-c").value("bitta", "verdict", "mean")
    return f"{claims['bfa-only']} < {claims['aba-only']} < {both:.2f}"


def _series(rows: Mapping[Any, Row]) -> str:
    told = ", ".join(
        f"{value}: {row.domain_mean.mean:.2f}{FELL if row.collapsed else ''}"
        for value, row in rows.items()
    )
    return f"{told} ({seeds_of(list(rows.values()))})"
