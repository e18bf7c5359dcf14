"""Version of the package, and version of the numbers that it computes."""

__version__ = "0.1.0"
NUMERICS_VERSION = 1
"""Raise this by one when a run with the same settings gives other numbers than before.

Such a change alters predictions, questions, losses or weights of any method by more than rounding
errors, or it alters the samples, order or corruption of a stream.
Refactoring and new settings with a default that keeps the numbers do not count. Results carry this
number, and results with different numbers are never mixed. `tests/test_numerics_version.py` fails
if numbers change and this one does not.
"""
