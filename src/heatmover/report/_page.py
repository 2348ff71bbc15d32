"""`render`: the sections put together to one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

from heatmover._validation import import_extra
from heatmover.analysis.study import Study
from heatmover.errors import InvalidInputError
from heatmover.report._cells import cell_sections
from heatmover.report._findings import cautions
from heatmover.report._parts import PARTS, shared_data
from heatmover.report._section import Section
from heatmover.report._templates import digest, fill, legal_script, script_json, static

__all__ = ["render"]

TITLE = "Comparison of samples"


def render(study: Study, *, title: str | None = None, extra_sections: Sequence[Section] = ()) -> str:
    """Return the report of a study as HTML; needs plotly and jinja2 (extra ``cohort``).

    The page holds everything it needs, loads nothing, and its security policy forbids it to try.

    Parameters
    ----------
    study
        From `heatmover.analysis.study.study_cohort` or `heatmover.analysis.study.study_comparison`.
    title
        Heading of the page; default the name of the input.
    extra_sections
        Further parts, each put after the section that it names.

    Returns
    -------
    str
        HTML, to be written as UTF-8 with the line ends it has.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.analysis.study import study_comparison
    >>> data = hm.datasets.cohort(8, cells_per_sample=40)
    >>> page = render(study_comparison(hm.compare(data.points, data.labels)), title="Eight <samples>")
    >>> "<h1>Eight &lt;samples&gt;</h1>" in page
    True
    """
    shared = shared_data(study)
    sections = _in_order([part(study, shared) for part in PARTS], [*cell_sections(study), *extra_sections])
    scripts = {"plotly": _plotly(), "own": static("report.js")}
    page = fill(
        "page.html",
        title=title or _default_title(study),
        headline=study.headline(),
        study=study,
        cautions=cautions(study),
        sections=sections,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=static("report.css"),
        scripts=scripts,
        digests=[digest(script) for script in scripts.values()],
        data=script_json({"shared": shared, "sections": {part.key: part.data for part in sections}}),
    )
    # A lone surrogate, as a badly decoded file name has it, cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _in_order(sections: list[Section], extra: Sequence[Section]) -> list[Section]:
    """Return all sections, each further one behind the one that it follows."""
    for further in extra:
        keys = [section.key for section in sections]
        if further.key in keys or further.after not in keys:
            raise InvalidInputError(
                f"a new section after one of {', '.join(keys)}", f"{further.key!r} after {further.after!r}"
            )
        sections.insert(keys.index(further.after) + 1, further)
    return sections


def _default_title(study: Study) -> str:
    source = study.record.input
    return str(source["name"]) if source else TITLE


@cache
def _plotly() -> str:
    """Return plotly.js as it may stand in a script element."""
    offline = import_extra("plotly.offline", package="plotly", extra="cohort")
    # The browser reads every line end as one line feed, and the policy's hash is of what the browser reads.
    script = str(offline.get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return legal_script(script).replace("</script", "<\\/script").replace("<!--", "<\\!--")
