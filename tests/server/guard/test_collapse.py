"""Rules of the collapse detector, one at a time."""

import doctest
import json
from math import inf, log, nan

import pytest

from bitta.errors import SettingError
from bitta.server.guard import Audited, CollapseDetector, GuardConfig, Window, collapse
from bitta.server.guard.collapse import entropy

VARIED = [16, 16, 16, 16]
SINGLE = [64, 0, 0, 0]


class Life:
    """A detector and the audits of its lineage."""

    def __init__(self, **settings):
        config = GuardConfig(**{"reference_windows": 2, **settings})
        self.detector = CollapseDetector(config)
        self.size = config.audit_window
        self.audits = []

    def see(self, n=1, **changes):
        for _ in range(n):
            window = {"counts": VARIED, "confidence": 0.8, "distance": 0.1, "agreement": 0.9,
                      "variety": 1.0, **changes}  # fmt: skip
            window.setdefault("audits", Audited.of(self.audits, size=self.size))
            verdict = self.detector.observe(Window(**window))
        return verdict

    def audit(self, n_correct, n_wrong=0, *, same=None):
        self.audits += [(True, same)] * n_correct + [(False, same)] * n_wrong


def test_entropy_by_hand():
    """48:16 of 64: 0.75 ln(4/3) + 0.25 ln 4 = 0.215762 + 0.346574."""
    assert entropy([48, 16, 0]) == pytest.approx(0.562335, abs=1e-6)
    assert entropy(VARIED) == pytest.approx(log(4))
    assert entropy([0, 0]) == 0


def test_the_example_in_the_docstring():
    assert doctest.testmod(collapse).failed == 0


def test_a_model_in_order_stays_ok():
    life = Life()
    assert {life.see().state for _ in range(20)} == {"ok"}


def test_one_odd_window_is_suspect_and_forgotten_after_three_in_order():
    life = Life()
    life.see(2)
    assert life.see(counts=SINGLE).state == "suspect"
    assert life.see().reasons == ("in order again for 1 of 3 windows",)
    assert life.see().state == "suspect"
    assert life.see().state == "ok"


def test_few_classes_for_three_windows_in_a_row_are_a_collapse():
    life = Life()
    life.see(2)
    verdicts = [life.see(counts=SINGLE) for _ in range(3)]
    assert [verdict.state for verdict in verdicts] == ["suspect", "suspect", "collapsed"]
    assert verdicts[-1].windows == 3
    assert verdicts[-1].reasons == (
        "entropy of served classes is 0.00 nats, 0 % of the reference 1.39 (limit 35 %)",
    )


def test_three_odd_windows_with_one_in_order_between_are_not():
    life = Life()
    life.see(2)
    for counts in (SINGLE, SINGLE, VARIED, SINGLE, SINGLE):
        assert life.see(counts=counts).state == "suspect"


def test_the_limit_is_a_share_of_the_reference():
    """0.35 · ln 4 = 0.485; 52:12 has 0.482 nats, 51:13 has 0.505."""
    life = Life()
    life.see(2)
    assert life.see(counts=[51, 13, 0, 0]).state == "ok"
    assert life.see(counts=[52, 12, 0, 0]).state == "suspect"


def test_few_classes_are_no_collapse_while_inputs_are_alike():
    life = Life()
    life.see(2)
    assert life.see(5, counts=SINGLE, variety=0.49).state == "ok"
    assert life.see(3, counts=SINGLE, variety=0.5).state == "collapsed"


def test_unknown_variety_counts_as_varied():
    life = Life()
    life.see(2, variety=None)
    assert life.see(3, counts=SINGLE).state == "collapsed"


def test_the_entropy_rule_rests_where_one_class_is_nearly_all_there_is():
    life = Life()
    life.see(2, counts=[60, 4, 0, 0])
    assert life.see(10, counts=SINGLE).state == "ok"


def test_few_classes_are_only_suspect_while_audits_say_they_are_right():
    life = Life()
    life.see(2)
    life.audit(40)
    life.see()
    verdict = life.see(5, counts=SINGLE)
    assert verdict.state == "suspect"
    # 40 of 40: lower bound 40 / 43.8416 = 91 %.
    assert verdict.reasons[0].endswith("; but audits say accuracy is 91 % or more")


def test_policy_and_service_that_part_for_three_windows_are_a_collapse():
    life = Life()
    life.see(2)
    assert life.see(2, agreement=0.29).state == "suspect"
    verdict = life.see(agreement=0.29)
    assert verdict.state == "collapsed"
    assert verdict.reasons == (
        "agreement of policy and service is 29 %, in the reference 90 % (limit 30 %)",
    )


def test_agreement_that_was_never_there_or_is_unknown_is_no_collapse():
    life = Life()
    life.see(2, agreement=0.2)
    assert life.see(5, agreement=0.1).state == "ok"
    life = Life()
    life.see(2)
    assert life.see(5, agreement=None).state == "ok"


def test_the_limit_of_distance_acts_at_once():
    life = Life(max_distance=0.25)
    assert life.see(distance=0.25).state == "ok"
    verdict = life.see(distance=0.251)
    assert verdict.state == "collapsed"
    assert verdict.reasons == ("distance from the source weights is 0.251 (limit 0.25)",)


@pytest.mark.parametrize("changes", [{"confidence": nan}, {"distance": inf}])
def test_what_is_not_finite_is_a_collapse_at_once_and_no_reference(changes):
    life = Life()
    assert life.see(**changes).state == "collapsed"
    assert life.detector.reference.windows == 0


def test_low_confidence_is_suspect_and_never_more():
    life = Life()
    life.see(2)
    verdict = life.see(10, confidence=0.39)
    assert verdict.state == "suspect"
    assert verdict.reasons == ("mean confidence is 39 %, in the reference 80 %",)


def test_accuracy_ten_points_under_its_reference_for_three_windows_is_a_collapse():
    """40 of 40 has the lower bound 0.912, the floor is 0.812. 40 of 56 has the upper bound
    (40 + 1.9208 + 1.96 √(40 · 16 / 56 + 0.9604)) / 59.8416 = 0.816; 40 of 57 has 0.805."""
    life = Life()
    life.audit(40)
    assert life.see().state == "ok"
    life.audit(0, 16)
    assert life.see().state == "ok"
    life.audit(0, 1)
    assert life.see(2).state == "suspect"
    verdict = life.see()
    assert verdict.state == "collapsed"
    assert verdict.reasons == ("accuracy on 57 audits is 70 % (57 % to 80 %), below 81 %",)


def test_fewer_than_twenty_audits_say_nothing():
    life = Life()
    life.audit(40)
    life.see()
    life.detector.rolled_back(to_source=False)
    life.audits.clear()
    life.audit(0, 19)
    assert life.see(5).state == "ok"
    life.audit(0, 1)
    assert life.see(3).state == "collapsed"


def test_accuracy_is_held_to_the_best_it_was():
    life = Life(audit_window=20)
    life.audit(10, 10)
    life.see()
    life.audit(20)
    life.see()
    life.audit(10, 10)
    # The lower bound of 20 of 20 is 0.839; the upper one of 10 of 20 is 0.701.
    assert life.see(3).state == "collapsed"


def test_inputs_that_the_source_cannot_read_either_are_no_collapse_of_learning():
    """From 0 of 40 the source errs on 8.8 % at most; then on 17 of 57, 19.5 % or more."""
    life = Life()
    life.audit(40, same=True)
    life.see()
    life.audit(0, 17, same=True)
    verdict = life.see()
    assert verdict.state == "suspect"
    assert verdict.reasons[0].endswith(
        "; the source weights err on 20 % or more, it was 9 % at most: the inputs have changed"
    )
    assert life.see(3).state == "ok"


def test_after_inputs_changed_accuracy_is_measured_anew():
    life = Life()
    life.audit(40, same=True)
    life.see()
    life.audit(0, 17, same=True)
    life.see(4)
    life.audit(4, 36, same=False)  # learning, not yet right
    assert life.see(5).state == "ok"
    life.audit(100, same=False)  # has learned
    assert life.see().state == "ok"
    life.audit(0, 40, same=False)  # and loses it
    assert life.see(3).state == "collapsed"


def test_going_back_for_accuracy_is_tried_once_and_not_again_where_it_does_not_help():
    life = Life()
    life.audit(40)
    life.see()
    life.audit(0, 40)
    assert life.see(3).state == "collapsed"
    life.detector.rolled_back(to_source=False)
    life.audits.clear()
    life.audit(2, 18)
    verdict = life.see()
    assert verdict.state == "suspect"
    assert verdict.reasons[0].endswith("; going back has not helped: the inputs have changed")
    assert life.see(5).state == "ok"
    life.audit(80)  # has learned
    life.see()
    life.audit(0, 80)  # and loses it
    assert life.see(3).state == "collapsed"


def test_going_back_that_helped_may_be_done_again():
    life = Life()
    life.audit(40)
    for _ in range(2):
        life.see()
        life.audit(0, 40)
        assert life.see(3).state == "collapsed"
        life.detector.rolled_back(to_source=False)
        life.audits.clear()
        life.audit(40)


def test_audits_before_a_change_of_inputs_do_not_matter_once_another_lineage_has_begun():
    life = Life()
    life.audit(90, same=True)
    life.see()
    life.audit(0, 90, same=True)
    assert life.see().reasons[0].endswith("the inputs have changed")
    life.see(3, counts=SINGLE)
    life.detector.rolled_back(to_source=False)
    life.audits.clear()
    life.audit(40, same=False)
    life.see()
    life.audit(0, 90, same=False)
    assert life.see(3).state == "collapsed"


def test_audits_without_a_total_are_taken_as_they_are():
    life = Life()
    for audited in (Audited(40, 40), Audited(80, 40)):
        verdict = life.see(3, audits=audited)
    assert verdict.state == "collapsed"


def test_errors_that_the_source_does_not_share_are_of_learning():
    life = Life()
    life.audit(40, same=True)
    life.see()
    life.audit(0, 17, same=False)
    assert life.see(3).state == "collapsed"


def test_back_at_the_source_today_is_the_new_normal():
    life = Life()
    life.see(2)
    assert life.see(3, counts=SINGLE).state == "collapsed"
    life.detector.rolled_back(to_source=True)
    assert life.see(10, counts=SINGLE).state == "ok"


def test_back_at_learned_weights_a_snapshot_that_had_collapsed_too_is_found_out():
    life = Life()
    life.see(2)
    assert life.see(3, counts=SINGLE).state == "collapsed"
    life.detector.rolled_back(to_source=False)
    assert life.see(2, counts=SINGLE).state == "suspect"
    assert life.see(counts=SINGLE).state == "collapsed"


def test_a_saved_detector_goes_on_as_if_nothing_had_happened():
    life, other = Life(), Life()
    life.audit(40, same=True)
    life.see(3)
    life.see(2, counts=SINGLE, agreement=0.1)
    other.detector.load_state_dict(json.loads(json.dumps(life.detector.state_dict())))
    other.audits += life.audits
    assert other.see(agreement=0.1) == life.see(agreement=0.1)
    assert other.detector.state_dict() == life.detector.state_dict()


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 0}, {"reference_windows": 0}, {"entropy_share": 1.1}, {"margin": -0.1},
        {"least_agreement": 2}, {"max_distance": 0}, {"audit_seconds": 0}, {"least_entropy": -1},
        {"min_audits": 101},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(SettingError, match=f"{next(iter(settings))} is .*; allowed: "):
        GuardConfig(**settings)
