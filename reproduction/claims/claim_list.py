"""All claims of the paper that are checked, in the order of the page."""

from functools import partial

from reproduction.claims.claim import Claim
from reproduction.claims.directions import (
    ALLOWED_DIP,
    CONFIDENCE_CHANGE,
    FAR_BELOW,
    check_above_simatta,
    check_above_simatta_at_equal_cost,
    check_accumulation_accuracy,
    check_agreeing_is_more_accurate,
    check_agreeing_varies_less,
    check_agreement_beats_thresholds,
    check_answers_above_labels,
    check_answers_above_wrong_labels,
    check_best_value,
    check_both_parts_are_best,
    check_confidence_changes,
    check_dropout_calibration,
    check_far_below,
    check_loses_less,
    check_rising,
    check_robust,
    check_thresholds_vary_more,
    check_true_labels_above_wrong,
    paper_augmentation,
    paper_leads_over_labels,
)
from reproduction.claims.numbers import number_claims, stated_numbers
from reproduction.claims.orders import (
    SIMILAR,
    best_domains_in_paper,
    check_best_in_all_domains,
    order_claims,
)
from reproduction.claims.tables import paper_table

_QUESTIONS = "feedback.n_queries"
_CLOSE = f"our criterion: at most {SIMILAR:g} point between best and worst"


def claims_by_heading() -> dict[str, list[Claim]]:
    """Return all claims by the heading under which the page shows them."""
    return {
        "Numbers stated in sentences": number_claims(),
        "Orders that tables show": order_claims(),
        "Directions in figures and text": direction_claims(),
    }


def direction_claims() -> list[Claim]:
    """Return the claims about figures and ablations, roughly in the order of the figures."""
    return [
        Claim(
            id="equal-cost-order", location="section 4, Figure 5", experiments=("equal-cost",),
            text="At equal cost in bits, BiTTA is above SimATTA with full labels on each data set.",
            check=check_above_simatta_at_equal_cost,
        ),
        Claim(
            id="gpt-4o", location="section 4, Figure 5", experiments=("equal-cost",),
            text="SimATTA is better with true labels than with labels that are wrong as often as "
            "GPT-4o's, on each data set.",
            check=check_true_labels_above_wrong,
        ),
        Claim(
            id="gpt-4o-order", location="section 1, Figure 5", experiments=("equal-cost",),
            text="At equal cost in bits, BiTTA is above SimATTA with labels that are wrong as "
            "often as GPT-4o's, on each data set.",
            check=check_answers_above_wrong_labels,
        ),
        Claim(
            id="full-labels", location="section 4, appendix C", runs="",
            paper=paper_leads_over_labels(),
            experiments=("full-labels", "main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c",
                         "pacs-domains", "pacs-mixed"),
            text="With equal numbers of questions, BiTTA with verdicts is above SimATTA with full "
            "labels. On PACS the paper's own table contradicts this.",
            check=check_answers_above_labels,
        ),
        Claim(
            id="feedback-errors", location="section 4, Figure 6", experiments=("feedback-errors",),
            text="BiTTA is above SimATTA* at every rate of wrong verdicts.",
            check=partial(check_above_simatta, "feedback-errors", "feedback.flip"),
        ),
        Claim(
            id="feedback-errors-cost", location="section 4, Figure 6",
            experiments=("feedback-errors",),
            text="BiTTA loses less accuracy from wrong verdicts than SimATTA* does.",
            check=partial(check_loses_less, "feedback-errors", "feedback.flip"),
        ),
        Claim(
            id="more-questions", location="section 4, Figure 7", runs="bitta-*",
            experiments=("number-of-questions",),
            text="BiTTA's accuracy rises with the number of questions per batch (our criterion: it "
            "is higher with the largest number than with the smallest, and it never falls by more "
            f"than {ALLOWED_DIP:g} points from one number to the next).",
            check=partial(check_rising, "number-of-questions", _QUESTIONS, "bitta"),
        ),
        Claim(
            id="more-questions-simatta", location="section 4, Figure 7", runs="simatta-*",
            experiments=("number-of-questions",),
            text="SimATTA*'s accuracy rises with the number of questions per batch, too (same "
            "criterion).",
            check=partial(check_rising, "number-of-questions", _QUESTIONS, "simatta"),
        ),
        Claim(
            id="questions-simatta", location="section 4, Figure 7",
            experiments=("number-of-questions",),
            text="BiTTA is above SimATTA* with every number of questions.",
            check=partial(check_above_simatta, "number-of-questions", _QUESTIONS),
        ),
        Claim(
            id="confidence-moves", location="section 3, Figure 4a", experiments=("confidence",),
            text="The policy's confidence changes along the stream, so no fixed threshold fits "
            f"(our criterion: its means for two corruptions differ by {CONFIDENCE_CHANGE:g} points "
            "or more, on each data set).",
            check=check_confidence_changes,
        ),
        Claim(
            id="agreeing-is-right", location="section 3, Figure 4b", runs="bitta-seed*",
            experiments=("main-cifar10-c",),
            text="BiTTA is more accurate on samples on which model and policy agree than on the "
            "other samples, in each corruption.",
            check=partial(check_agreeing_is_more_accurate, "main-cifar10-c"),
        ),
        Claim(
            id="agreeing-is-steady", location="section 3, Figure 4b", runs="bitta-seed*",
            experiments=("main-cifar10-c",),
            text="Accuracy is stable on samples on which model and policy agree. It is not stable "
            "on the other samples (our criterion: on agreeing samples the standard deviation over "
            "corruptions is smaller).",
            check=partial(check_agreeing_varies_less, "main-cifar10-c"),
        ),
        Claim(
            id="components", location="section 4, synergistic effect", experiments=("components",),
            paper=_components_in_paper(),
            text="BFA only (learning from answers) is below ABA only (learning from agreement). "
            "ABA only is below both together. Both together are best in each corruption.",
            check=check_both_parts_are_best,
        ),
        Claim(
            id="calibration", location="section 4, calibration", experiments=("calibration",),
            text="BiTTA's policy has a lower calibration error with MC-dropout than with the "
            "deterministic confidence.",
            check=check_dropout_calibration,
        ),
        Claim(
            id="thresholds", location="appendix B, Figure 8", experiments=("thresholds",),
            text="Without answers, BiTTA is better if agreement selects the unlabelled samples "
            "than if a fixed threshold of confidence does.",
            check=check_agreement_beats_thresholds,
        ),
        Claim(
            id="thresholds-variance", location="appendix B, Figure 8", experiments=("thresholds",),
            text="Accuracy varies more with fixed thresholds than with agreement (our criterion: "
            "each threshold has a larger standard deviation over seeds).",
            check=check_thresholds_vary_more,
        ),
        Claim(
            id="selection", location="appendix B, Figure 9", experiments=("selection",),
            text="Selection of questions by MC-dropout confidence is better than random selection, "
            "and better than selection by entropy, by confidence or by energy.",
            check=partial(check_best_value, "selection", "method.selection", "mc_confidence"),
        ),
        Claim(
            id="selection-large", location="appendix B, sample selection",
            text="On large data sets random selection of questions is enough.",
            not_measurable="We do not have ImageNet-C, ImageNet-R and VisDA-2021.",
        ),
        Claim(
            id="beta-cifar10-c", location="appendix B, Figure 10", experiments=("beta",),
            runs="cifar10-c-*",
            text=f"On CIFAR-10-C the weight of agreement has little effect ({_CLOSE}).",
            check=partial(
                check_robust, "beta", "method.beta", SIMILAR, kind="cifar10-c", method__alpha=1.0
            ),
        ),
        Claim(
            id="beta-pacs", location="appendix B, Figure 10", experiments=("beta",), runs="pacs-*",
            text=f"On PACS the weight of agreement has little effect ({_CLOSE}).",
            check=partial(
                check_robust, "beta", "method.beta", SIMILAR, kind="pacs", method__alpha=1.0
            ),
        ),
        Claim(
            id="alpha", location="appendix B, heading on α and β", experiments=("beta",),
            runs="answers-*",
            text=f"On CIFAR-10-C the weight of answers has little effect ({_CLOSE}). Section 3 of "
            "the paper gives the weight 1, section 4 gives 2.",
            check=partial(
                check_robust, "beta", "method.alpha", SIMILAR, kind="cifar10-c", method__beta=1.0
            ),
        ),
        Claim(
            id="skip", location="appendix B, Figure 11", experiments=("skip",),
            text="BiTTA loses less accuracy than SimATTA* if some batches get no answers.",
            check=partial(check_loses_less, "skip", "feedback.answer_every"),
        ),
        Claim(
            id="skip-little", location="appendix B, Figure 11", experiments=("skip",),
            runs="bitta-*",
            text=f"Batches without answers have little effect on BiTTA ({_CLOSE}).",
            check=partial(check_robust, "skip", "feedback.answer_every", SIMILAR),
        ),
        Claim(
            id="skip-order", location="appendix B, Figure 11", experiments=("skip",),
            text="BiTTA is above SimATTA* with every number of batches without answers.",
            check=partial(check_above_simatta, "skip", "feedback.answer_every"),
        ),
        Claim(
            id="delay", location="appendix B, Figure 12", experiments=("delay",), runs="bitta-*",
            text=f"Late answers have little effect on BiTTA ({_CLOSE}).",
            check=partial(check_robust, "delay", "feedback.delay", SIMILAR),
        ),
        Claim(
            id="delay-order", location="appendix B, Figure 12", experiments=("delay",),
            text="BiTTA is above SimATTA* with every delay of answers.",
            check=partial(check_above_simatta, "delay", "feedback.delay"),
        ),
        Claim(
            id="memory-accuracy", location="appendix B, memory", experiments=("memory",),
            runs="accumulation-*",
            text="Gradient accumulation does not lower the accuracy (our criterion: by at most "
            f"{SIMILAR:g} point).",
            check=check_accumulation_accuracy,
        ),
        Claim(
            id="augmentation", location="appendix B, Table 6", experiments=("policies",),
            paper=paper_augmentation(),
            text="With augmentation in place of MC-dropout BiTTA overfits early (our criterion: "
            f"its accuracy is more than {FAR_BELOW:g} points lower).",
            check=partial(
                check_far_below, "policies", "method.policy", "augmentation", "dropout", FAR_BELOW
            ),
        ),
        *(
            Claim(
                id=f"{table}/corruptions", location=f"appendix C, {place}", experiments=(folder,),
                runs="", paper=best_domains_in_paper(table),
                text=f"With a {model} BiTTA is best in all corruptions.",
                check=partial(check_best_in_all_domains, table),
            )
            for table, place, folder, model in (
                ("tab:app_resnet50/resnet50", "Table 11a", "resnet50", "ResNet-50"),
                ("tab:app_resnet50/vit", "Table 11b", "vit", "ViT"),
            )
        ),
        Claim(
            id="source-like", location="appendix C",
            text="SimATTA is less accurate than BiTTA because the labels of its source-like "
            "samples are often wrong.",
            not_measurable="Our runs do not record how many of these labels are wrong.",
        ),
        Claim(
            id="dropouts", location="appendix B, Figure 13", experiments=("dropouts",),
            text=f"All numbers of dropout passes from two up are about equally good ({_CLOSE}).",
            check=partial(check_robust, "dropouts", "method.passes", SIMILAR, min_value=2),
        ),
    ]  # fmt: skip


def _components_in_paper() -> str:
    """Return the paper's accuracies with BFA only, with ABA only and with both."""
    numbers = {number.id: number.printed for number in stated_numbers()}
    both = paper_table("tab:tinyimagenetc/cifar10-c").value("bitta", "verdict", "mean")
    return f"{numbers['bfa-only']} < {numbers['aba-only']} < {both:.2f}"
