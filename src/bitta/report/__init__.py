"""Tables and plots, made from results alone."""

from bitta.report.over_time import plot_accuracy
from bitta.report.speed import (
    failure_lines,
    growth_lines,
    heading_lines,
    machine_line,
    speed_page,
    speed_rows,
)
from bitta.report.speed_plot import plot_speed
from bitta.report.tables import summary_rows, text_table

__all__ = [
    "failure_lines",
    "growth_lines",
    "heading_lines",
    "machine_line",
    "plot_accuracy",
    "plot_speed",
    "speed_page",
    "speed_rows",
    "summary_rows",
    "text_table",
]
