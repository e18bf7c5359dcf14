"""Annotators of an experiment: their errors and delays, and the cost of a question."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import log2
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from bitta.bench.streams import split_names
from bitta.config_base import Config, build_config, require
from bitta.errors import InputError, SettingError
from bitta.feedback import (
    FeedbackRecorder,
    FeedbackReplay,
    FeedbackSource,
    GroundTruthAnnotator,
    Panel,
    Simulated,
    SimulatedLabels,
    SimulatedPeople,
)

# Joshi et al., CVPR Workshops 2010, cited by the paper: naming one of 50 classes takes 11.7 s and
# is wrong in 12.7 % of cases; a comparison takes 1.6 s and is wrong in .8 %.
ANSWER_SECONDS = {"full": 11.7, "verdict": 1.6}
ANSWER_ERROR_RATES = {"full": 0.127, "verdict": 0.008}
_ERROR_SETTINGS = {"full": "error", "verdict": "flip"}
_IGNORED_BY_REPLAY = ("flip", "error", "annotators", "people", "delay", "answer_every", "record")
_IGNORED_BY_PEOPLE = ("flip", "error", "annotators", "labels")


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig(Config):
    """Simulated annotators, or a log of earlier answers."""

    n_queries: int = -1
    """Questions per batch; -1 for the number of the method."""
    every: int = 1
    """Ask in every n-th batch only."""
    total: int = -1
    """Largest total number of questions; -1 for no limit."""
    labels: Literal["verdict", "full"] = "verdict"
    """Kind of answer: a verdict (right or wrong), or the full class label."""
    equal: Literal["count", "bits", "seconds"] = "count"
    """Unit of the budget n_queries: questions (count), bits, or seconds of an annotator."""
    flip: float = 0.0
    """Probability of a wrong verdict; .008 by default if equal is "seconds"."""
    error: float = 0.0
    """Full labels: probability of a wrong class; .127 by default if equal is "seconds"."""
    annotators: str = ""
    """Error probabilities of several annotators who take turns, separated by commas."""
    people: str = ""
    """Array of (images, classes), .npy: how many people gave each label to each image of the data
    set. Verdicts are drawn from it."""
    delay: int = 0
    """Delay of an answer in batches."""
    answer_every: int = 1
    """Answer the questions of every n-th batch only."""
    record: str = ""
    """File that receives every answer."""
    replay: str = ""
    """File of recorded answers to use instead of annotators."""

    @classmethod
    def from_table(cls, given: Mapping[str, Any]) -> Self:
        """Build from a parsed table. With equal = "seconds" the published error rates apply."""
        rates = {}
        if given.get("equal") == "seconds" and not (given.get("annotators") or given.get("replay")):
            labels = given.get("labels", "verdict")
            if labels in ANSWER_ERROR_RATES:
                rates = {_ERROR_SETTINGS[labels]: ANSWER_ERROR_RATES[labels]}
        return build_config(cls, {**rates, **given}, preset=None, of="[feedback]")

    def __post_init__(self) -> None:
        require(self.n_queries >= -1, "n_queries", self.n_queries, "0 or more, or -1")
        require(self.total >= -1, "total", self.total, "0 or more, or -1")
        require(0 <= self.flip <= 1, "flip", self.flip, "0 to 1")
        require(0 <= self.error <= 1, "error", self.error, "0 to 1")
        require(self.delay >= 0, "delay", self.delay, "0 or more")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.answer_every >= 1, "answer_every", self.answer_every, "1 or more")
        self._refuse_contradictions()
        _ = self.error_rates  # Raises an error now if `annotators` is invalid.

    def _refuse_contradictions(self) -> None:
        if self.replay and (conflicting := self._changed_settings(_IGNORED_BY_REPLAY)):
            raise SettingError(
                f"feedback.replay uses the answers in {self.replay!r}, so "
                f"feedback.{conflicting[0]} has no effect; leave one of them out."
            )
        if self.people and (conflicting := self._changed_settings(_IGNORED_BY_PEOPLE)):
            raise SettingError(
                f"feedback.people draws verdicts from {self.people!r}, so "
                f"feedback.{conflicting[0]} has no effect; leave one of them out."
            )
        if self.annotators and (conflicting := self._changed_settings(("flip", "error"))):
            raise SettingError(
                "feedback.annotators gives each annotator an error rate, but "
                f"feedback.{conflicting[0]} gives another; leave one of them out."
            )
        if self.labels == "full" and self.flip:
            raise SettingError(
                f'feedback.flip is {self.flip}, but it applies to verdicts and labels is "full"; '
                "give feedback.error."
            )
        if self.labels == "verdict" and self.error:
            raise SettingError(
                f"feedback.error is {self.error}, but it applies to full labels and labels is "
                '"verdict"; give feedback.flip.'
            )

    def _changed_settings(self, names: tuple[str, ...]) -> list[str]:
        defaults = {setting.name: setting.default for setting in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]

    @property
    def error_rates(self) -> tuple[float, ...]:
        """Error probability of each annotator; one value unless `annotators` lists several."""
        if not self.annotators:
            return (self.error if self.labels == "full" else self.flip,)
        try:
            rates = tuple(float(text) for text in split_names(self.annotators))
        except ValueError:
            rates = ()
        valid = bool(rates) and all(0 <= rate <= 1 for rate in rates)
        require(valid, "annotators", self.annotators, "numbers from 0 to 1, separated by commas")
        return rates

    def price(self, n_classes: int) -> float:
        """Return the cost of one question in verdicts.

        It is 1 for a verdict, and for any question if `equal` is "count".
        """
        if self.labels == "verdict" or self.equal == "count":
            return 1.0
        return (
            log2(n_classes)
            if self.equal == "bits"
            else ANSWER_SECONDS["full"] / ANSWER_SECONDS["verdict"]
        )

    def without_delay(self) -> Self:
        """Return the same annotators with immediate answers and without a log."""
        return replace(self, delay=0, answer_every=1, record="", replay="")


def build_annotators(
    config: FeedbackConfig,
    truth: Tensor,
    *,
    rows: Tensor | None = None,
    n_classes: int,
    seed: int,
    identity: Mapping[str, Any] | None = None,
) -> FeedbackSource:
    """Build the feedback source.

    `rows` are the numbers of the samples in their data set; `config.people` needs them. A log of
    the answers stores a hash of `identity`. A run that continues the log must have the same one.

    >>> import torch
    >>> config = FeedbackConfig(annotators="0, .3")
    >>> build_annotators(config, torch.zeros(9), n_classes=2, seed=0).names
    ('1', '2')
    """
    if config.replay:
        return FeedbackReplay(config.replay)
    annotators: list[GroundTruthAnnotator]
    if config.people:
        annotators = [_build_people(config, truth, rows, seed)]
    else:
        annotators = [
            _build_annotator(config, rate, truth, n_classes, seed) for rate in config.error_rates
        ]
    feedback_source: FeedbackSource = Panel(annotators) if config.annotators else annotators[0]
    if not config.record:
        return feedback_source
    return FeedbackRecorder(feedback_source, config.record, settings=identity, overwrite=True)


def close_feedback_log(feedback_source: FeedbackSource) -> None:
    """Mark a recorded log as complete, or check that all answers of a replayed log were used."""
    if isinstance(feedback_source, FeedbackRecorder | FeedbackReplay):
        feedback_source.end()


def _build_annotator(
    config: FeedbackConfig, rate: float, truth: Tensor, n_classes: int, seed: int
) -> GroundTruthAnnotator:
    if config.labels == "full":
        return SimulatedLabels(
            truth,
            n_classes,
            error=rate,
            delay=config.delay,
            answer_every=config.answer_every,
            seed=seed,
        )
    return Simulated(
        truth, flip=rate, delay=config.delay, answer_every=config.answer_every, seed=seed
    )


def _build_people(
    config: FeedbackConfig, truth: Tensor, rows: Tensor | None, seed: int
) -> GroundTruthAnnotator:
    try:
        counts = torch.from_numpy(np.load(config.people, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"feedback.people {config.people!r} cannot be read ({error}); give a .npy file with "
            "one row per image and one column per class, such as cifar10h-counts.npy."
        ) from None
    if rows is not None:
        if int(rows.max()) >= len(counts):
            raise InputError(
                f"feedback.people {config.people!r} has {len(counts)} rows, but the stream has "
                f"image {int(rows.max())}; give a file with a row for every image of the data set."
            )
        counts = counts[rows]
    return SimulatedPeople(
        truth, counts, delay=config.delay, answer_every=config.answer_every, seed=seed
    )
