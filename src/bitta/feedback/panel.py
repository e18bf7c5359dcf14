"""Several annotators, each with a noise of their own, who share the questions."""

from collections.abc import Sequence

from bitta.errors import InputError, SettingError
from bitta.feedback.human import Human
from bitta.feedback.recording import Recording
from bitta.feedback.source import FeedbackSource
from bitta.types import Answer, Query, State


class Panel:
    """Each question goes to one of the sources, in turn; who answered is not told."""

    def __init__(self, sources: Sequence[FeedbackSource], names: Sequence[str] = ()) -> None:
        self.sources = tuple(sources)
        self.names = tuple(names) or tuple(str(place + 1) for place in range(len(self.sources)))
        if not self.sources or len(self.names) != len(self.sources):
            raise SettingError(
                f"a panel of {len(self.sources)} sources with {len(self.names)} names was given; "
                "at least one source, and one name for each, are needed."
            )
        if len({id(source) for source in self.sources}) < len(self.sources):
            raise SettingError(
                "a panel holds the same source twice, which would count each batch twice; make one "
                "for each place."
            )
        if any(_waits_for_a_person(source) for source in self.sources):
            raise SettingError(
                "a panel cannot hold Human, whose questions nobody could tell from those of the "
                "others; give a person a session's whole attention, or use simulated sources."
            )

    def name_for(self, query: Query) -> str:
        """Who is asked this question."""
        return self.names[query.id % len(self.names)]

    def ask(self, queries: Sequence[Query]) -> None:
        """Deal questions out by their ids."""
        n = len(self.sources)
        for place, source in enumerate(self.sources):
            source.ask([query for query in queries if query.id % n == place])

    def collect(self) -> list[Answer]:
        """Whatever any of them has answered."""
        return [answer for source in self.sources for answer in source.collect()]

    def state_dict(self) -> State:
        """That of each."""
        return {
            "sources": [
                {"kind": type(source).__name__, "state": source.state_dict()}
                for source in self.sources
            ]
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        kinds = [type(source).__name__ for source in self.sources]
        saved = [item["kind"] for item in state["sources"]]
        if saved != kinds:
            raise InputError(
                f"the panel was saved with {', '.join(saved)}, but is now {', '.join(kinds)}; "
                "give the same sources."
            )
        for source, item in zip(self.sources, state["sources"], strict=True):
            source.load_state_dict(item["state"])


def _waits_for_a_person(source: FeedbackSource) -> bool:
    return isinstance(source, Human) or (
        isinstance(source, Recording) and _waits_for_a_person(source.source)
    )
