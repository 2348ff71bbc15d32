"""Render studies and mapped samples as HTML pages, write folders of results; for users, `cli`, `study`, `atlas`.

A small function and a template make each section of the page. Users can add sections with `Section`.
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
