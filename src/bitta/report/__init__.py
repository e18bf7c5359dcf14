"""Tables and plots, made from results alone."""

from bitta.report.plots import plot_accuracy
from bitta.report.tables import summary_rows, text_table

__all__ = ["plot_accuracy", "summary_rows", "text_table"]
