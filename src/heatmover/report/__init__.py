"""The report: one self-contained HTML page on a study, which opens offline in any browser.

The page is made of sections, each a small function here and a template of its own; `Section` adds further ones.
"""

from heatmover.report._page import render
from heatmover.report._section import Section
from heatmover.report._templates import fill
from heatmover.report._write import report_comparison, write_report

__all__ = ["Section", "fill", "render", "report_comparison", "write_report"]
