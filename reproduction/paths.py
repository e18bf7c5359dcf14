"""Folders and files of the checkout that the reproduction reads and writes."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "reproduction" / "experiments"
RESULTS = ROOT / "results"
PAPER_TABLES = ROOT / "reproduction" / "paper"
STATED_NUMBERS = ROOT / "reproduction" / "stated_numbers.toml"
REASONS = ROOT / "reproduction" / "reasons.toml"
README = ROOT / "README.md"
EXPLANATION = ROOT / "docs" / "explanation"
METHOD_PAGES = ROOT / "docs" / "reference" / "methods"


def relative(path: Path) -> str:
    """Return the path as it is written from the top of the checkout."""
    return path.relative_to(ROOT).as_posix()
