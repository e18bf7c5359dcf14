"""What answers tell of the model that serves, as far as can be known now."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from bitta.server.engine.learner import Learner
from bitta.server.guard import GuardSettings
from bitta.server.monitoring import AuditSummary, SourceAgreement
from bitta.server.store import Store
from bitta.server.store.errors import StoreError
from bitta.types import Query

_MINUTE = 60_000_000  # microseconds


class Gauge:
    """Reads the store, and knows what it read last while that cannot be reached."""

    def __init__(
        self, store: Store, learner: Learner, config: GuardSettings, *, clock: Callable[[], int]
    ) -> None:
        self._store, self._learner, self._config, self._clock = store, learner, config, clock
        self.lineage_began = 0
        """Where in the log."""
        self._audited = AuditSummary()
        self._same = SourceAgreement()
        self._answers = 0

    def compare(self, asked: Mapping[str, Query]) -> None:
        """Would the source weights have said the same? Known of audits, for the guard."""
        for name, query in asked.items():
            label = self._learner.source_label(query.input) if query.audit else None
            if label is not None:
                self._same.add(name, is_same=label == query.label)

    def audited(self) -> AuditSummary:
        """What the newest answers to audits of this lineage say."""
        if self._store.last_write_error is not None:
            return self._audited
        oldest = self._clock() - int(1e6 * self._config.audit_seconds)
        with suppress(StoreError):
            size = self._config.audit_window
            found = self._store.audit_answers(since=self.lineage_began, newest=size)
            self._audited = AuditSummary.from_answers(
                [
                    (one.correct, self._same.get(one.prediction_id))
                    for one in found
                    if one.received_at > oldest
                ],
                max_n=size,
                n_lineage=self._store.count_audits(since=self.lineage_began),
            )
        return self._audited

    def state_dict(self) -> dict[str, Any]:
        """What cannot be read again."""
        return {"same": self._same.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._same.load_state_dict(state["same"])

    def answers(self) -> int:
        """How many were received in the last minute."""
        if self._store.last_write_error is not None:
            return self._answers
        with suppress(StoreError):
            self._answers = self._store.count_recent_verdicts(since=self._clock() - _MINUTE)
        return self._answers
