"""A part of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

__all__ = ["Section"]


@final
@dataclass(frozen=True, eq=False)
class Section:
    """A part of the page: a heading and what stands under it.

    Attributes
    ----------
    key
        Short name of lower-case letters: the anchor of the section in the page, and its place in the page's data.
    title
        Heading, plain text.
    html
        What stands under it, as HTML that `fill` made; it goes into the page as it is.
    data
        Plain values that the page's script finds under ``key``.
    after
        Key of the section that a further section follows.

    Examples
    --------
    >>> Section("cells", "Which cells differ", "<p>None.</p>").after
    'statistics'
    """

    key: str
    title: str
    html: str
    data: Mapping[str, Any] = field(default_factory=dict)
    after: str = "statistics"
