"""Tables, plots and pages from result files."""

from bitta.report.speed import (
    failure_lines,
    growth_lines,
    heading_lines,
    machine_line,
    speed_page,
    speed_rows,
    write_speed_plot,
)
from bitta.report.stream_plots import write_accuracy_plot
from bitta.report.tables import summary_rows, text_table

__all__ = [
    "failure_lines",
    "growth_lines",
    "heading_lines",
    "machine_line",
    "speed_page",
    "speed_rows",
    "summary_rows",
    "text_table",
    "write_accuracy_plot",
    "write_speed_plot",
]
