"""The report: one self-contained HTML page on a study, and the folder of results that holds it.

The page is made of sections, each a small function here and a template of its own; `Section` adds further ones.
"""

from heatmover.report._page import render
from heatmover.report._section import Section
from heatmover.report._templates import fill
from heatmover.report._write import report_comparison, write_report
from heatmover.report.folder import check_extras, result_folder, write_results

__all__ = [
    "Section",
    "check_extras",
    "fill",
    "render",
    "report_comparison",
    "result_folder",
    "write_report",
    "write_results",
]
