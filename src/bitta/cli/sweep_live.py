"""A sweep as live bars, one for all of it and one for each run at work; needs rich."""

from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bitta.bench.board import Board
from bitta.cli.sweep import time_left


class LiveView:
    """Bars that come and go with the runs."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[note]}"),
        )
        self._all: TaskID | None = None
        self._running: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, board: Board) -> None:
        """Move the bars; take away those of runs that are over."""
        failed = board.count("failed")
        note = (f"{failed} failed" if failed else "") + time_left(board)
        done, total = board.count("done", "found", "failed"), len(board.rows)
        if self._all is None:
            self._all = self._bars.add_task("runs", total=total, note=note)
        self._bars.update(self._all, completed=done, note=note.removeprefix("; "))
        running = {row.job.label: row for row in board.rows if row.state == "running"}
        for label in self._running.keys() - running.keys():
            self._bars.remove_task(self._running.pop(label))
        for label, row in running.items():
            if label not in self._running:
                self._running[label] = self._bars.add_task(label, total=None, note="")
            note = {"": "starting", "waits": "waiting for another process", "batch": ""}.get(
                row.doing, row.doing
            )
            self._bars.update(
                self._running[label], completed=row.done, total=row.total or None, note=note
            )
