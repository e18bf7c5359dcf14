"""Rules of the collapse detector, one at a time."""

import doctest
import json
from math import inf, log, nan

import pytest
import torch

from bitta.errors import SettingError
from bitta.server import collapse_detector
from bitta.server.collapse_detector import (
    CollapseDetector,
    GuardSettings,
    WindowSummary,
    entropy,
    input_variety,
    weight_distance,
)
from bitta.server.monitoring import AuditSummary

VARIED = [16, 16, 16, 16]
SINGLE = [64, 0, 0, 0]


class Lineage:
    """A detector and the audits of its lineage."""

    def __init__(self, **settings):
        guard_settings = GuardSettings(**{"reference_windows": 2, **settings})
        self.detector = CollapseDetector(guard_settings)
        self.size = guard_settings.audit_window
        self.audits = []

    def observe(self, n=1, **changes):
        for _ in range(n):
            window = {"counts": VARIED, "confidence": 0.8, "distance": 0.1, "agreement": 0.9,
                      "variety": 1.0, **changes}  # fmt: skip
            window.setdefault("audits", AuditSummary.from_answers(self.audits, max_n=self.size))
            verdict = self.detector.observe(WindowSummary(**window))
        return verdict

    def add_audits(self, n_correct, n_wrong=0, *, same=None):
        self.audits += [(True, same)] * n_correct + [(False, same)] * n_wrong


def test_entropy_equals_hand_computation():
    """48:16 of 64: 0.75 ln(4/3) + 0.25 ln 4 = 0.215762 + 0.346574."""
    assert entropy([48, 16, 0]) == pytest.approx(0.562335, abs=1e-6)
    assert entropy(VARIED) == pytest.approx(log(4))
    assert entropy([0, 0]) == 0


def test_docstring_examples_give_the_shown_output():
    assert doctest.testmod(collapse_detector).failed == 0


def test_normal_windows_stay_ok():
    lineage = Lineage()
    assert {lineage.observe().state for _ in range(20)} == {"ok"}


def test_one_broken_rule_is_suspect_until_three_normal_windows():
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(counts=SINGLE).state == "suspect"
    assert lineage.observe().reasons == ("no rule broken for 1 of 3 windows",)
    assert lineage.observe().state == "suspect"
    assert lineage.observe().state == "ok"


def test_low_entropy_for_three_windows_is_collapse():
    lineage = Lineage()
    lineage.observe(2)
    verdicts = [lineage.observe(counts=SINGLE) for _ in range(3)]
    assert [verdict.state for verdict in verdicts] == ["suspect", "suspect", "collapsed"]
    assert verdicts[-1].n_windows == 3
    assert verdicts[-1].reasons == (
        "few classes are served: entropy 0.00 nats, 0 % of the reference 1.39 (limit 35 %)",
    )


def test_normal_window_between_broken_ones_prevents_collapse():
    lineage = Lineage()
    lineage.observe(2)
    for counts in (SINGLE, SINGLE, VARIED, SINGLE, SINGLE):
        assert lineage.observe(counts=counts).state == "suspect"


def test_entropy_limit_is_share_of_reference():
    """0.35 · ln 4 = 0.485; 52:12 has 0.482 nats, 51:13 has 0.505."""
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(counts=[51, 13, 0, 0]).state == "ok"
    assert lineage.observe(counts=[52, 12, 0, 0]).state == "suspect"


def test_low_entropy_of_uniform_inputs_is_ok():
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(5, counts=SINGLE, variety=0.49).state == "ok"
    assert lineage.observe(3, counts=SINGLE, variety=0.5).state == "collapsed"


def test_unknown_variety_counts_as_varied():
    lineage = Lineage()
    lineage.observe(2, variety=None)
    assert lineage.observe(3, counts=SINGLE).state == "collapsed"


def test_entropy_rule_is_off_if_one_class_dominates_reference():
    lineage = Lineage()
    lineage.observe(2, counts=[60, 4, 0, 0])
    assert lineage.observe(10, counts=SINGLE).state == "ok"


def test_low_entropy_with_accurate_audits_is_only_suspect():
    lineage = Lineage()
    lineage.observe(2)
    lineage.add_audits(40)
    lineage.observe()
    verdict = lineage.observe(5, counts=SINGLE)
    assert verdict.state == "suspect"
    # 40 of 40: lower bound 40 / 43.8416 = 91 %.
    assert verdict.reasons[0].endswith("; but audits show an accuracy of 91 % or more")


def test_low_agreement_for_three_windows_is_collapse():
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(2, agreement=0.29).state == "suspect"
    verdict = lineage.observe(agreement=0.29)
    assert verdict.state == "collapsed"
    assert verdict.reasons == (
        "the policy (mean of repeated predictions) agrees with 29 % of the served classes, in the "
        "reference with 90 % (limit 30 %)",
    )


def test_low_reference_agreement_or_unknown_agreement_is_ok():
    lineage = Lineage()
    lineage.observe(2, agreement=0.2)
    assert lineage.observe(5, agreement=0.1).state == "ok"
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(5, agreement=None).state == "ok"


def test_distance_above_limit_is_collapse_at_once():
    lineage = Lineage(max_distance=0.25)
    assert lineage.observe(distance=0.25).state == "ok"
    verdict = lineage.observe(distance=0.251)
    assert verdict.state == "collapsed"
    assert verdict.reasons == ("distance from the source weights is 0.251 (limit 0.25)",)


@pytest.mark.parametrize("changes", [{"confidence": nan}, {"distance": inf}])
def test_non_finite_value_is_collapse_at_once_and_not_in_reference(changes):
    lineage = Lineage()
    assert lineage.observe(**changes).state == "collapsed"
    assert lineage.detector.reference.n_windows == 0


def test_low_confidence_is_only_suspect():
    lineage = Lineage()
    lineage.observe(2)
    verdict = lineage.observe(10, confidence=0.39)
    assert verdict.state == "suspect"
    assert verdict.reasons == ("mean confidence is 39 %, in the reference 80 %",)


def test_accuracy_below_limit_for_three_windows_is_collapse():
    """40 of 40 has the lower bound 0.912, the limit is 0.812. 40 of 56 has the upper bound
    (40 + 1.9208 + 1.96 √(40 · 16 / 56 + 0.9604)) / 59.8416 = 0.816; 40 of 57 has 0.805."""
    lineage = Lineage()
    lineage.add_audits(40)
    assert lineage.observe().state == "ok"
    lineage.add_audits(0, 16)
    assert lineage.observe().state == "ok"
    lineage.add_audits(0, 1)
    assert lineage.observe(2).state == "suspect"
    verdict = lineage.observe()
    assert verdict.state == "collapsed"
    assert verdict.reasons == ("accuracy on 57 audits is 70 % (57 % to 80 %), below 81 %",)


def test_accuracy_is_not_judged_on_fewer_than_twenty_audits():
    lineage = Lineage()
    lineage.add_audits(40)
    lineage.observe()
    lineage.detector.reset_after_rollback(to_source=False)
    lineage.audits.clear()
    lineage.add_audits(0, 19)
    assert lineage.observe(5).state == "ok"
    lineage.add_audits(0, 1)
    assert lineage.observe(3).state == "collapsed"


def test_accuracy_is_compared_with_best_so_far():
    lineage = Lineage(audit_window=20)
    lineage.add_audits(10, 10)
    lineage.observe()
    lineage.add_audits(20)
    lineage.observe()
    lineage.add_audits(10, 10)
    # The lower bound of 20 of 20 is 0.839; the upper one of 10 of 20 is 0.701.
    assert lineage.observe(3).state == "collapsed"


def test_accuracy_drop_shared_by_source_is_only_suspect():
    """The source errs on 0 of 40, so at most 8.8 %; then on 17 of 57, so at least 19.5 %."""
    lineage = Lineage()
    lineage.add_audits(40, same=True)
    lineage.observe()
    lineage.add_audits(0, 17, same=True)
    verdict = lineage.observe()
    assert verdict.state == "suspect"
    assert verdict.reasons[0].endswith(
        "; the source model is wrong on at least 20 %, before on at most 9 %: "
        "the inputs have changed"
    )
    assert lineage.observe(3).state == "ok"


def test_accuracy_is_measured_again_after_inputs_changed():
    lineage = Lineage()
    lineage.add_audits(40, same=True)
    lineage.observe()
    lineage.add_audits(0, 17, same=True)
    lineage.observe(4)
    lineage.add_audits(4, 36, same=False)  # learning, not yet right
    assert lineage.observe(5).state == "ok"
    lineage.add_audits(100, same=False)  # has learned
    assert lineage.observe().state == "ok"
    lineage.add_audits(0, 40, same=False)  # and loses it
    assert lineage.observe(3).state == "collapsed"


def test_rollback_for_accuracy_is_not_repeated_if_it_did_not_help():
    lineage = Lineage()
    lineage.add_audits(40)
    lineage.observe()
    lineage.add_audits(0, 40)
    assert lineage.observe(3).state == "collapsed"
    lineage.detector.reset_after_rollback(to_source=False)
    lineage.audits.clear()
    lineage.add_audits(2, 18)
    verdict = lineage.observe()
    assert verdict.state == "suspect"
    assert verdict.reasons[0].endswith("; a rollback has not helped: the inputs have changed")
    assert lineage.observe(5).state == "ok"
    lineage.add_audits(80)  # has learned
    lineage.observe()
    lineage.add_audits(0, 80)  # and loses it
    assert lineage.observe(3).state == "collapsed"


def test_rollback_for_accuracy_is_repeated_if_it_helped():
    lineage = Lineage()
    lineage.add_audits(40)
    for _ in range(2):
        lineage.observe()
        lineage.add_audits(0, 40)
        assert lineage.observe(3).state == "collapsed"
        lineage.detector.reset_after_rollback(to_source=False)
        lineage.audits.clear()
        lineage.add_audits(40)


def test_stale_audits_are_forgotten_in_new_lineage():
    lineage = Lineage()
    lineage.add_audits(90, same=True)
    lineage.observe()
    lineage.add_audits(0, 90, same=True)
    assert lineage.observe().reasons[0].endswith("the inputs have changed")
    lineage.observe(3, counts=SINGLE)
    lineage.detector.reset_after_rollback(to_source=False)
    lineage.audits.clear()
    lineage.add_audits(40, same=False)
    lineage.observe()
    lineage.add_audits(0, 90, same=False)
    assert lineage.observe(3).state == "collapsed"


def test_audits_without_lineage_count_are_all_used():
    lineage = Lineage()
    for audited in (AuditSummary(40, 40), AuditSummary(80, 40)):
        verdict = lineage.observe(3, audits=audited)
    assert verdict.state == "collapsed"


def test_accuracy_drop_not_shared_by_source_is_collapse():
    lineage = Lineage()
    lineage.add_audits(40, same=True)
    lineage.observe()
    lineage.add_audits(0, 17, same=False)
    assert lineage.observe(3).state == "collapsed"


def test_rollback_to_source_starts_new_reference():
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(3, counts=SINGLE).state == "collapsed"
    lineage.detector.reset_after_rollback(to_source=True)
    assert lineage.observe(10, counts=SINGLE).state == "ok"


def test_rollback_to_collapsed_snapshot_is_detected():
    lineage = Lineage()
    lineage.observe(2)
    assert lineage.observe(3, counts=SINGLE).state == "collapsed"
    lineage.detector.reset_after_rollback(to_source=False)
    assert lineage.observe(2, counts=SINGLE).state == "suspect"
    assert lineage.observe(counts=SINGLE).state == "collapsed"


def test_saved_detector_continues_unchanged():
    lineage, other = Lineage(), Lineage()
    lineage.add_audits(40, same=True)
    lineage.observe(3)
    lineage.observe(2, counts=SINGLE, agreement=0.1)
    other.detector.load_state_dict(json.loads(json.dumps(lineage.detector.state_dict())))
    other.audits += lineage.audits
    assert other.observe(agreement=0.1) == lineage.observe(agreement=0.1)
    assert other.detector.state_dict() == lineage.detector.state_dict()


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 0}, {"reference_windows": 0}, {"entropy_share": 1.1}, {"margin": -0.1},
        {"min_agreement": 2}, {"max_distance": 0}, {"audit_seconds": 0}, {"min_entropy": -1},
        {"min_audits": 101},
    ],
    ids=str,
)  # fmt: skip
def test_guard_refuses_settings_out_of_range(settings):
    with pytest.raises(SettingError, match=f"{next(iter(settings))} is .*; allowed: "):
        GuardSettings(**settings)


def test_variety_is_mean_standard_deviation_of_pixels():
    """Pixel one: 0 and 2, deviation 1; pixel two: 5 and 5, deviation 0."""
    assert input_variety(torch.tensor([[0.0, 5.0], [2.0, 5.0]])) == 0.5
    assert input_variety(torch.tensor([[0, 4], [0, 0]], dtype=torch.uint8)) == 1.0
    assert input_variety(torch.ones(1, 3)) == 0


def test_distance_is_relative_over_all_tensors():
    """Moved by (3, 0) and (4): 5; the source has √(36 + 64) = 10."""
    source = [torch.tensor([6.0, 0.0]), torch.tensor([8.0])]
    now = [torch.tensor([9.0, 0.0]), torch.tensor([4.0])]
    assert weight_distance(now, source) == pytest.approx(0.5)
    assert weight_distance(source, source) == 0
