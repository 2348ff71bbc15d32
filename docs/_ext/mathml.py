r"""Convert formulas to MathML, which browsers draw offline and without a script.

LaTeX is converted when the pages are built. The font with the mathematical shapes is in ``_static/fonts``. Chromium
(since 2023), Firefox and Safari draw this kind of MathML (MathML Core), and screen readers read it. Of the alternatives
that work offline, MathJax has 6 MB of scripts and fonts and draws after the page has loaded, and KaTeX has 1.5 MB and
needs a script on every page or Node at build time.

A formula that cannot be converted causes a warning, which is an error in ``make docs``.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging

logger = logging.getLogger(__name__)
CONVERTER = LatexToMathML(fancy_error=False)
# Environments that set a formula on several lines.
ENVIRONMENT = re.compile(r"\\begin\{(align|gather|equation|multline)")

# A large closing bar with an index. Chromium draws a bar small if it is the base of an index, so the index gets an
# empty base instead.
LARGE_BAR = re.compile(r"(\\[bB]igg?r?\s*(?:\\\||\||\\rVert))\s*([_^])")


def mathml(latex: str, *, display: bool, place: Any = None) -> str:
    """Return a formula as MathML; report a formula that cannot be converted, and return it as code."""
    text = latex.strip()
    if display and "\\\\" in text and not ENVIRONMENT.search(text):
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    text = LARGE_BAR.sub(r"\1{}\2", text)
    try:
        # Code inside a formula needs straight quotation marks.
        return CONVERTER.convert_with_local_state(text, displaystyle=display).replace("”", "&quot;")
    except LatexError as error:
        logger.warning("the formula %s is not understood: %s", latex, error, location=place)
        return f"<code>{escape(latex)}</code>"


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(f'<span class="math">{mathml(node.astext(), display=False, place=node)}</span>')
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(mathml(node.astext(), display=True, place=node))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
