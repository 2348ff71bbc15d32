"""The report: one self-contained HTML page on a study, and the folder of results that holds it.

The page is made of sections, each a small function here and a template of its own; `Section` adds further ones.
"""

from heatmover.report.folder import check_extras, result_folder, write_results
from heatmover.report.markup import fill
from heatmover.report.page import Section, render, report_comparison, write_report

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


def __dir__() -> list[str]:
    return sorted(__all__)
