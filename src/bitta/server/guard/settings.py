"""What the guard lets pass."""

from dataclasses import dataclass

from bitta.config import Config, require


@dataclass(frozen=True, kw_only=True)
class GuardConfig(Config):
    """Settings of the collapse detector; a window is the images of one learning step."""

    patience: int = 3
    """Windows in a row in which a rule must be broken before it counts as collapse."""
    reference_windows: int = 8
    """First windows, whose means are the reference of entropy, agreement, confidence, variety."""
    entropy_share: float = 0.35
    """Entropy of served classes, as a share of the reference, below which few classes are left."""
    least_entropy: float = 0.5
    """Reference entropy in nats below which the entropy rule rests (80:20 of two classes: 0.50):
    where one class is most of what is seen, windows of that class alone are no wonder."""
    variety_share: float = 0.5
    """Variety of inputs, as a share of the reference, from which on they count as varied."""
    least_agreement: float = 0.3
    """Agreement of the policy with what is served, below which they have parted."""
    confidence_share: float = 0.5
    """Mean confidence, as a share of the reference, below which the model is suspect (no more)."""
    margin: float = 0.10
    """How far under the reference's lower bound accuracy may fall; 0.10 is 10 points."""
    min_audits: int = 20
    """Audits without which nothing is said about accuracy."""
    audit_window: int = 100
    """Audits that are looked back on."""
    audit_seconds: float = 86_400.0
    """Age from which on an audit no longer counts."""
    max_distance: float = 1.0
    """How far the weights may move from the source, as ‖w - w₀‖ / ‖w₀‖; set it for your model
    (coloured digits, which need much: 0.10 after 90 windows)."""

    def __post_init__(self) -> None:
        for name in ("patience", "reference_windows", "min_audits", "audit_window"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("entropy_share", "variety_share", "confidence_share", "margin",
                     "least_agreement"):  # fmt: skip
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.least_entropy >= 0, "least_entropy", self.least_entropy, "0 nats or more")
        for name in ("audit_seconds", "max_distance"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        require(
            self.min_audits <= self.audit_window,
            "min_audits",
            self.min_audits,
            f"at most audit_window, which is {self.audit_window}",
        )
