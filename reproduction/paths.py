"""Folders and files of the checkout that the reproduction reads and writes."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
REPRODUCTION = ROOT / "reproduction"
EXPERIMENTS = REPRODUCTION / "experiments"
PRETRAINING_RECIPES = REPRODUCTION / "pretrain"
RESULTS = REPRODUCTION / "results"
PAPER_TABLES = REPRODUCTION / "paper"
STATED_NUMBERS = REPRODUCTION / "stated_numbers.toml"
REASONS = REPRODUCTION / "reasons.toml"
INTRODUCTION = REPRODUCTION / "page_introduction.md"
README = ROOT / "README.md"
EXPLANATION = ROOT / "docs" / "explanation"
METHOD_PAGES = ROOT / "docs" / "reference" / "methods"


def relative(path: Path) -> str:
    """Return the path relative to the top of the checkout, with forward slashes."""
    return path.relative_to(ROOT).as_posix()
