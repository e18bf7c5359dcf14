"""Who answers in an experiment, how well, and what a question costs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import log2
from typing import Any, Literal, Self

from torch import Tensor

from bitta.bench.streams import listed
from bitta.config import Config, build_config, require
from bitta.errors import SettingError
from bitta.feedback import (
    FeedbackRecorder,
    FeedbackReplay,
    FeedbackSource,
    GroundTruthAnnotator,
    Panel,
    Simulated,
    SimulatedLabels,
)

# Joshi et al., CVPR Workshops 2010, as the paper cites them: naming one of 50 classes takes
# 11.7 s and is wrong in 12.7 % of cases, a comparison takes 1.6 s and is wrong in .8 %.
SECONDS = {"full": 11.7, "verdict": 1.6}
MISTAKES = {"full": 0.127, "verdict": 0.008}
_NOISE = {"full": "error", "verdict": "flip"}
_REPLAYED = ("flip", "error", "annotators", "delay", "answer_every", "record")


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig(Config):
    """The annotator, played by the truth or by a log."""

    n_queries: int = -1
    """Questions per batch; -1 for the method's own number."""
    every: int = 1
    """Ask on every n-th batch only."""
    total: int = -1
    """Questions in all; -1 for no limit."""
    labels: Literal["verdict", "full"] = "verdict"
    """What an answer is: right or wrong, or the class in full."""
    equal: Literal["count", "bits", "seconds"] = "count"
    """What n_queries buys as much of, whatever the labels: questions, bits or seconds."""
    flip: float = 0.0
    """Probability of a wrong verdict; .008 by default if equal is "seconds"."""
    error: float = 0.0
    """Full labels: probability of a wrong class; .127 by default if equal is "seconds"."""
    annotators: str = ""
    """Instead, several who take turns: their probabilities of an error, separated by commas."""
    delay: int = 0
    """How many batches late an answer comes."""
    answer_every: int = 1
    """Answer the questions of every n-th batch only."""
    record: str = ""
    """File to write every answer to."""
    replay: str = ""
    """File of such answers, which are given again."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From a table; the errors that go with seconds are filled in where nothing is said."""
        noise = {}
        if given.get("equal") == "seconds" and not (given.get("annotators") or given.get("replay")):
            labels = given.get("labels", "verdict")
            noise = {_NOISE[kind]: MISTAKES[kind] for kind in MISTAKES if kind == labels}
        return build_config(cls, {**noise, **given}, preset=None, of="[feedback]")

    def __post_init__(self) -> None:
        require(self.n_queries >= -1, "n_queries", self.n_queries, "0 or more, or -1")
        require(self.total >= -1, "total", self.total, "0 or more, or -1")
        require(0 <= self.flip <= 1, "flip", self.flip, "0 to 1")
        require(0 <= self.error <= 1, "error", self.error, "0 to 1")
        require(self.delay >= 0, "delay", self.delay, "0 or more")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.answer_every >= 1, "answer_every", self.answer_every, "1 or more")
        self._refuse_contradictions()
        _ = self.mistakes

    def _refuse_contradictions(self) -> None:
        if self.replay and (beside := self._given(_REPLAYED)):
            raise SettingError(
                f"feedback.replay gives the answers in {self.replay!r} again, so "
                f"feedback.{beside[0]} has nothing to decide; leave one of them out."
            )
        if self.annotators and (beside := self._given(("flip", "error"))):
            raise SettingError(
                f"feedback.annotators gives each annotator an error rate, and feedback.{beside[0]} "
                "another; leave one of them out."
            )
        if self.labels == "full" and self.flip:
            raise SettingError(
                f'feedback.flip is {self.flip}, but flips are of verdicts and labels is "full"; '
                "give error."
            )
        if self.labels == "verdict" and self.error:
            raise SettingError(
                f"feedback.error is {self.error}, but errors are of full labels and labels is "
                '"verdict"; give flip.'
            )

    def _given(self, names: tuple[str, ...]) -> list[str]:
        defaults = {setting.name: setting.default for setting in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]

    @property
    def mistakes(self) -> tuple[float, ...]:
        """How often each annotator errs; one of them unless several are named."""
        if not self.annotators:
            return (self.error if self.labels == "full" else self.flip,)
        try:
            rates = tuple(float(text) for text in listed(self.annotators))
        except ValueError:
            rates = ()
        valid = bool(rates) and all(0 <= rate <= 1 for rate in rates)
        require(valid, "annotators", self.annotators, "numbers from 0 to 1, separated by commas")
        return rates

    def price(self, n_classes: int) -> float:
        """Of one question, in verdicts."""
        if self.labels == "verdict" or self.equal == "count":
            return 1.0
        return log2(n_classes) if self.equal == "bits" else SECONDS["full"] / SECONDS["verdict"]

    @property
    def prompt(self) -> Self:
        """The same annotators, all of whom answer at once."""
        return replace(self, delay=0, answer_every=1, record="", replay="")


def build_annotators(
    config: FeedbackConfig,
    truth: Tensor,
    *,
    n_classes: int,
    seed: int,
    identity: Mapping[str, Any] | None = None,
) -> FeedbackSource:
    """Whoever answers; `identity` is what a log must have in common with a run to be gone on with.

    >>> import torch
    >>> config = FeedbackConfig(annotators="0, .3")
    >>> build_annotators(config, torch.zeros(9), n_classes=2, seed=0).names
    ('1', '2')
    """
    if config.replay:
        return FeedbackReplay(config.replay)
    everyone = [_one(config, rate, truth, n_classes, seed) for rate in config.mistakes]
    source: FeedbackSource = Panel(everyone) if config.annotators else everyone[0]
    if not config.record:
        return source
    return FeedbackRecorder(source, config.record, settings=identity, overwrite=True)


def end_log(source: FeedbackSource) -> None:
    """A run is over: its log is complete, or the log that it replayed has to be."""
    if isinstance(source, FeedbackRecorder | FeedbackReplay):
        source.end()


def _one(
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
