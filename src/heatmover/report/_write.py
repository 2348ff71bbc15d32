"""The page as a file: complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from heatmover._files import replacing
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.study import Study, study_comparison
from heatmover.report._page import render
from heatmover.report._section import Section

__all__ = ["report_comparison", "write_report"]


def write_report(
    study: Study,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    extra_sections: Sequence[Section] = (),
) -> None:
    """Write the report of a study; needs plotly and jinja2 (extra ``cohort``).

    Parameters
    ----------
    study
        From `heatmover.analysis.study.study_cohort` or `heatmover.analysis.study.study_comparison`.
    path
        Where to; a file that is there already is replaced. The new one appears complete or not at all.
    title, extra_sections
        As in `render`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> from heatmover.analysis.study import study_comparison
    >>> data = hm.datasets.cohort(8, cells_per_sample=40)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> write_report(study_comparison(hm.compare(data.points, data.labels)), path)
    >>> path.read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    page = render(study, title=title, extra_sections=extra_sections)
    # Line ends as they are: the page's security policy names its scripts by their bytes.
    with replacing(path, encoding="utf-8", newline="") as file:
        file.write(page)


def report_comparison(
    comparison: Comparison,
    path: str | os.PathLike[str],
    variables: Mapping[str, Any] | Any | None = None,
    *,
    blocks: Sequence[object] | None = None,
    cells: Mapping[str, Any] | Any | None = None,
    title: str | None = None,
    extra_sections: Sequence[Section] = (),
    n_permutations: int = 999,
    random_state: int = 0,
) -> Study:
    """Examine the variables of samples that were compared, and write the report; `Comparison.report` calls it.

    Parameters
    ----------
    comparison
        From `heatmover.compare`.
    path, title, extra_sections
        As in `write_report`.
    variables, blocks, cells, n_permutations, random_state
        As in `heatmover.analysis.study.study_comparison`.

    Returns
    -------
    Study
        What the report tells.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=40, effect=4.0)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> condition = {"condition": data.annotations["condition"]}
    >>> report_comparison(hm.compare(data.points, data.labels), path, condition)
    Study('condition' goes with the distances between the 12 samples...)
    """
    study = study_comparison(
        comparison, variables, blocks=blocks, cells=cells, n_permutations=n_permutations, random_state=random_state
    )
    write_report(study, path, title=title, extra_sections=extra_sections)
    return study
