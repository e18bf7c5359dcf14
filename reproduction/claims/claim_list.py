"""Every statement of the paper that is looked at, and where it stands there."""

from functools import partial

from reproduction.claims.claim import Statement
from reproduction.claims.cost import (
    beats_at_equal_cost,
    printed_labels,
    true_labels_beat_wrong_ones,
    verdicts_beat_labels,
    verdicts_beat_wrong_labels,
)
from reproduction.claims.directions import (
    FAR,
    MOVES,
    SLACK,
    above_all,
    above_at_each,
    agreeing_is_right,
    agreeing_is_steady,
    agreement_is_best,
    both_are_best,
    confidence_moves,
    dropout_is_calibrated,
    is_far_below,
    loses_less,
    printed_augmentation,
    printed_components,
    rises,
    robust,
    saves_for_nothing,
    thresholds_are_unsteady,
)
from reproduction.claims.numbers import number_statements
from reproduction.claims.orders import NEAR, leads_everywhere, printed_lead, table_statements

_QUESTIONS = "feedback.n_queries"


def statements() -> dict[str, list[Statement]]:
    """By the heading under which they are shown."""
    return {
        "Numbers stated in sentences": number_statements(),
        "Orders that tables show": table_statements(),
        "Directions in figures and text": directions(),
    }


def directions() -> list[Statement]:
    """In the order of the figures."""
    return [
        Statement(
            id="equal-cost-order", place="section 4, Figure 5", experiments=("equal-cost",),
            gist="At equal cost, in bits, BiTTA is above SimATTA with full labels on each set.",
            check=beats_at_equal_cost,
        ),
        Statement(
            id="gpt-4o", place="section 4, Figure 5", experiments=("equal-cost",),
            gist="True labels are better for SimATTA than ones as wrong as GPT-4o's, on each set.",
            check=true_labels_beat_wrong_ones,
        ),
        Statement(
            id="gpt-4o-order", place="section 1, Figure 5", experiments=("equal-cost",),
            gist="At equal cost, in bits, BiTTA is above SimATTA with such labels on each set.",
            check=verdicts_beat_wrong_labels,
        ),
        Statement(
            id="full-labels", place="section 4, appendix C", part="",
            paper=printed_labels(),
            experiments=("full-labels", "main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c",
                         "pacs-domains", "pacs-mixed"),
            gist="With as many questions, BiTTA with verdicts is above SimATTA with full labels; "
            "on PACS the paper's own table says otherwise.",
            check=verdicts_beat_labels,
        ),
        Statement(
            id="feedback-errors", place="section 4, Figure 6", experiments=("feedback-errors",),
            gist="However many verdicts are wrong, BiTTA is above SimATTA*.",
            check=partial(above_at_each, "feedback-errors", "feedback.flip"),
        ),
        Statement(
            id="feedback-errors-cost", place="section 4, Figure 6",
            experiments=("feedback-errors",),
            gist="Wrong verdicts cost BiTTA less than SimATTA*.",
            check=partial(loses_less, "feedback-errors", "feedback.flip"),
        ),
        Statement(
            id="more-questions", place="section 4, Figure 7", experiments=("number-of-questions",),
            part="bitta-*",
            gist="BiTTA gets better with more questions a batch (ours: the most are better than "
            f"the fewest, and no step loses more than {SLACK:g} points).",
            check=partial(rises, "number-of-questions", _QUESTIONS, "bitta"),
        ),
        Statement(
            id="more-questions-simatta", place="section 4, Figure 7", part="simatta-*",
            experiments=("number-of-questions",),
            gist="SimATTA* gets better with more questions too (by the same rule).",
            check=partial(rises, "number-of-questions", _QUESTIONS, "simatta"),
        ),
        Statement(
            id="questions-simatta", place="section 4, Figure 7",
            experiments=("number-of-questions",),
            gist="With any number of questions BiTTA is above SimATTA*.",
            check=partial(above_at_each, "number-of-questions", _QUESTIONS),
        ),
        Statement(
            id="confidence-moves", place="section 3, Figure 4a", experiments=("confidence",),
            gist=f"The policy's confidence changes along the stream (ours: by {MOVES:g} points and "
            "more from one corruption to another, on each set), so that no fixed threshold fits.",
            check=confidence_moves,
        ),
        Statement(
            id="agreeing-is-right", place="section 3, Figure 4b", experiments=("main-cifar10-c",),
            part="bitta-seed*",
            gist="Where model and policy agree BiTTA is right more often than where they do not, "
            "in each corruption.",
            check=partial(agreeing_is_right, "main-cifar10-c"),
        ),
        Statement(
            id="agreeing-is-steady", place="section 3, Figure 4b", experiments=("main-cifar10-c",),
            part="bitta-seed*",
            gist="Where they agree accuracy is stable, where they do not it is not (ours: the "
            "former deviates less over corruptions).",
            check=partial(agreeing_is_steady, "main-cifar10-c"),
        ),
        Statement(
            id="components", place="section 4, synergistic effect", experiments=("components",),
            paper=printed_components(),
            gist="BFA only < ABA only < both, and both are best in each corruption.",
            check=both_are_best,
        ),
        Statement(
            id="calibration", place="section 4, calibration", experiments=("calibration",),
            gist="With MC-dropout as its policy BiTTA's doubts are better calibrated than with the "
            "deterministic confidence.",
            check=dropout_is_calibrated,
        ),
        Statement(
            id="thresholds", place="appendix B, Figure 8", experiments=("thresholds",),
            gist="Without answers, agreement chooses better than each fixed threshold.",
            check=agreement_is_best,
        ),
        Statement(
            id="thresholds-variance", place="appendix B, Figure 8", experiments=("thresholds",),
            gist="Fixed thresholds are less steady than agreement (ours: the seeds of each have a "
            "larger deviation).",
            check=thresholds_are_unsteady,
        ),
        Statement(
            id="selection", place="appendix B, Figure 9", experiments=("selection",),
            gist="Questions chosen by MC-dropout are better than at random, by entropy, by "
            "confidence or by energy.",
            check=partial(above_all, "selection", "method.selection", "mc_confidence"),
        ),
        Statement(
            id="selection-large", place="appendix B, sample selection",
            gist="On large sets random questions are enough.",
            nothing="ImageNet-C, ImageNet-R and VisDA-2021 are not at hand.",
        ),
        Statement(
            id="beta-cifar10-c", place="appendix B, Figure 10", experiments=("beta",),
            part="cifar10-c-*",
            gist=f"On CIFAR-10-C the weight of agreement matters little (ours: {NEAR:g} point "
            "from best to worst).",
            check=partial(
                robust, "beta", "method.beta", NEAR, kind="cifar10-c", method__alpha=1.0
            ),
        ),
        Statement(
            id="beta-pacs", place="appendix B, Figure 10", experiments=("beta",), part="pacs-*",
            gist=f"On PACS the weight of agreement matters little (ours: {NEAR:g} point).",
            check=partial(
                robust, "beta", "method.beta", NEAR, kind="pacs", method__alpha=1.0
            ),
        ),
        Statement(
            id="alpha", place="appendix B, heading on α and β", experiments=("beta",),
            part="answers-*",
            gist="On CIFAR-10-C the weight of answers matters little, of which section 3 says 1 "
            f"and section 4 says 2 (ours: {NEAR:g} point from best to worst).",
            check=partial(
                robust, "beta", "method.alpha", NEAR, kind="cifar10-c", method__beta=1.0
            ),
        ),
        Statement(
            id="skip", place="appendix B, Figure 11", experiments=("skip",),
            gist="Where batches stay without answers BiTTA loses less than SimATTA*.",
            check=partial(loses_less, "skip", "feedback.answer_every"),
        ),
        Statement(
            id="skip-little", place="appendix B, Figure 11", experiments=("skip",),
            part="bitta-*",
            gist=f"Skipped batches cost BiTTA little (ours: {NEAR:g} point from best to worst).",
            check=partial(robust, "skip", "feedback.answer_every", NEAR),
        ),
        Statement(
            id="skip-order", place="appendix B, Figure 11", experiments=("skip",),
            gist="However many batches are skipped, BiTTA is above SimATTA*.",
            check=partial(above_at_each, "skip", "feedback.answer_every"),
        ),
        Statement(
            id="delay", place="appendix B, Figure 12", experiments=("delay",), part="bitta-*",
            gist=f"Late answers cost BiTTA little (ours: {NEAR:g} point from best to worst).",
            check=partial(robust, "delay", "feedback.delay", NEAR),
        ),
        Statement(
            id="delay-order", place="appendix B, Figure 12", experiments=("delay",),
            gist="However late answers are, BiTTA is above SimATTA*.",
            check=partial(above_at_each, "delay", "feedback.delay"),
        ),
        Statement(
            id="memory-accuracy", place="appendix B, memory", experiments=("memory",),
            part="accumulation-*",
            gist=f"Gradient accumulation costs no accuracy (ours: at most {NEAR:g} point).",
            check=saves_for_nothing,
        ),
        Statement(
            id="augmentation", place="appendix B, Table 6", experiments=("policies",),
            paper=printed_augmentation(),
            gist="Augmentation in place of MC-dropout overfits early (ours: it ends more than "
            f"{FAR:g} points below).",
            check=partial(
                is_far_below, "policies", "method.policy", "augmentation", "dropout", FAR
            ),
        ),
        *(
            Statement(
                id=f"{table}/corruptions", place=f"appendix C, {place}", experiments=(folder,),
                part="", paper=printed_lead(table),
                gist=f"With a {model} BiTTA is best in all corruptions.",
                check=partial(leads_everywhere, table),
            )
            for table, place, folder, model in (
                ("tab:app_resnet50/resnet50", "Table 11a", "resnet50", "ResNet-50"),
                ("tab:app_resnet50/vit", "Table 11b", "vit", "ViT"),
            )
        ),
        Statement(
            id="source-like", place="appendix C",
            gist="SimATTA is behind because the labels of its source-like samples are often wrong.",
            nothing="Our runs do not record how many are.",
        ),
        Statement(
            id="dropouts", place="appendix B, Figure 13", experiments=("dropouts",),
            gist=f"Two dropout passes or more are all about as good (ours: {NEAR:g} point).",
            check=partial(robust, "dropouts", "method.passes", NEAR, least=2),
        ),
    ]  # fmt: skip
