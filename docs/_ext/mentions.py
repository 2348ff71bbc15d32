"""Every mention of a name is a link to its page: in text, in docstrings and in code.

Inline code such as `hm.compare(points, labels)`, `Graph.from_points`, `np.ndarray` or `AnnData` becomes a
cross-reference if it names an object that has a page, here or in an inventory of another project; any other code stays
as it is. The names in code blocks are links as well. The page of a name lists in turn the guides that mention it.

What counts as a name, from the surest to the least sure:

- a dotted name that begins with a module: `hm.tl.samples`, `heatmover.Graph`, `np.ndarray`;
- a class, or a member of one: `DiffusionEMD`, `Graph.from_points`, `AnnData`;
- a function by its bare name, if no other public function has that name and it cannot be mistaken: it is called, or has
  an underscore and is not the name of a parameter too. On the page that documents its module, any bare name of it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from public_names import own_pages, pages, public_modules, public_paths
from sphinx import addnodes
from sphinx.ext.intersphinx import InventoryAdapter, missing_reference

MODULES = {
    "hm": "heatmover",
    "heatmover": "heatmover",
    "np": "numpy",
    "numpy": "numpy",
    "npt": "numpy.typing",
    "scipy": "scipy",
    "sklearn": "sklearn",
    "pd": "pandas",
    "pandas": "pandas",
    "plt": "matplotlib.pyplot",
    "matplotlib": "matplotlib",
    "ad": "anndata",
    "anndata": "anndata",
    "torch": "torch",
}
# Names of other projects that are used without their module.
FOREIGN = {
    "AnnData": "anndata.AnnData",
    "ArrayLike": "numpy.typing.ArrayLike",
    "Axes": "matplotlib.axes.Axes",
    "BaseEstimator": "sklearn.base.BaseEstimator",
    "DataFrame": "pandas.DataFrame",
    "Figure": "matplotlib.figure.Figure",
    "GridSearchCV": "sklearn.model_selection.GridSearchCV",
    "KNeighborsClassifier": "sklearn.neighbors.KNeighborsClassifier",
    "Path": "pathlib.Path",
    "Pipeline": "sklearn.pipeline.Pipeline",
    "Series": "pandas.Series",
    "cross_val_score": "sklearn.model_selection.cross_val_score",
    "csr_array": "scipy.sparse.csr_array",
    "make_pipeline": "sklearn.pipeline.make_pipeline",
    "ndarray": "numpy.ndarray",
    "pdist": "scipy.spatial.distance.pdist",
}
ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
# A dotted name as Pygments writes it.
PART = r'<span class="n[a-z]?">\w+</span>'
CHAIN = re.compile(rf'{PART}(?:<span class="o">\.</span>{PART})+')
IN_CODE = re.compile(r"\b(?:hm|heatmover)(?:\.[A-Za-z_]\w*)+")
# Where a link would be wrong or twice.
CLOSED = (nodes.reference, addnodes.pending_xref, nodes.title, addnodes.desc_signature)
GENERATED = "reference/generated/"
# Pages that show how something is used, in the order in which they are listed.
GUIDES = ("gallery/", "tutorial", "howto/", "")
NO_GUIDES = (
    *("reference/", "decisions/", "results/", "index", "changelog", "architecture"),
    *("genindex", "py-modindex", "search"),  # made by Sphinx
)


@cache
def by_short_name() -> dict[str, str]:
    """Return the page's name of every public object whose last name is the only one of its kind."""
    ways: dict[str, set[str]] = {}
    for page in own_pages():
        ways.setdefault(page.rpartition(".")[2], set()).add(page)
    return {short: next(iter(full)) for short, full in ways.items() if len(full) == 1}


@cache
def ambiguous() -> frozenset[str]:
    """Return the names of parameters and attributes, which in inline code need not mean the function of that name."""
    found: set[str] = set()
    for value in public_paths().values():
        found |= set(vars(value)) if inspect.isclass(value) else set()
        for one in [value, *(vars(value).values() if inspect.isclass(value) else ())]:
            if inspect.isroutine(one) or inspect.isclass(one):
                try:
                    found |= set(inspect.signature(one).parameters)
                except (TypeError, ValueError):
                    continue
    return frozenset(found)


def full_name(dotted: str, *, called: bool = False) -> str | None:
    """Return the full name of the object that a piece of code may mean, or None."""
    first, _, rest = dotted.partition(".")
    if first in MODULES:
        return _public(f"{MODULES[first]}.{rest}") if rest else None
    if dotted in FOREIGN:
        return FOREIGN[dotted]
    page = by_short_name().get(first)
    if page is None:
        return None
    if inspect.isclass(public_paths()[page]):
        return f"{page}.{rest}" if rest else page
    if rest:
        return None
    return page if called or ("_" in first and first not in ambiguous()) else None


def _public(dotted: str) -> str:
    """Return a dotted name with its beginning replaced by the name that has the page."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        start = ".".join(parts[:end])
        if start in pages():
            return ".".join([pages()[start], *parts[end:]])
    return dotted


def meant(text: str, docname: str) -> str | None:
    """Return the full name of what inline code means on a page, or None."""
    match = NAME.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    called = rest.startswith("(") and rest.endswith(")")
    if rest and not called:
        return None
    if "." not in match.group() and (local := names_of_page(docname).get(match.group())):
        return local
    return full_name(match.group(), called=called)


@cache
def names_of_page(docname: str) -> dict[str, str]:
    """Return the names of the module that a page of the reference is about, by their last parts."""
    module = f"heatmover.{docname.removeprefix('reference/')}"
    if module not in public_modules():
        return {}
    return {path.rpartition(".")[2]: page for path, page in pages().items() if path.rpartition(".")[0] == module}


def link_inline(app: Any, doctree: nodes.document) -> None:
    """Turn inline code into references, and remember which page mentions what."""
    docname = app.env.docname
    mentioned = app.env.heatmover_mentions.setdefault(docname, set())
    # Types of what a function returns are set in italics by napoleon.
    types = [one for one in doctree.findall(nodes.emphasis) if _is_in(one, nodes.field)]
    for literal in [*doctree.findall(nodes.literal), *types]:
        name = meant(literal.astext(), docname)
        if name is None or docname == GENERATED + name or _is_in(literal, CLOSED):
            continue
        mentioned.add(name)
        reference = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refwarn=False, refdoc=docname
        )
        literal.replace_self(reference)
        reference += literal
    for block in doctree.findall(nodes.literal_block):
        mentioned.update(_public("heatmover." + found.partition(".")[2]) for found in IN_CODE.findall(block.astext()))
    for reference in list(doctree.findall(addnodes.pending_xref)):
        # The changelog names files of the project that are no pages, such as CITATION.cff: they stay as text.
        if reference.get("reftype") == "myst" and (ROOT / reference["reftarget"]).is_file():
            reference.replace_self(reference.children)
        if reference.get("refdomain") == "py":
            mentioned.add(reference["reftarget"])
            # A field `names` of one class is no link to the `names` of another.
            reference.attributes.pop("refspecific", None)


def _is_in(node: nodes.Node, kinds: Any) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def resolve(app: Any, env: Any, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Element | None:
    """Find what Sphinx did not: a class by its bare name, and for a member without an entry the class that has it."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains["py"].objects
    name = full_name(node["reftarget"]) or node["reftarget"]
    if name not in objects:
        name = _owner(name) or name
    if name in objects:
        return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
    if name != node["reftarget"]:
        node["reftarget"], node["reftype"] = name, "obj"
        return missing_reference(app, env, node, content)
    return None


def _owner(name: str) -> str | None:
    """Return the class of an attribute that its docstring or its code has."""
    owner, _, member = name.rpartition(".")
    value = public_paths().get(owner)
    if inspect.isclass(value) and (hasattr(value, member) or re.search(rf"\b{member}\b", value.__doc__ or "")):
        return owner
    return None


def list_guides(app: Any, doctree: nodes.document, docname: str) -> None:
    """Name the guides that mention an object at the end of its page."""
    if not docname.startswith(GENERATED):
        return
    name = docname.removeprefix(GENERATED)
    guides = sorted(guides_of(app.env, name), key=lambda guide: (_rank(guide), guide))
    if not guides:
        return
    items = nodes.bullet_list()
    for guide in guides:
        uri = app.builder.get_relative_uri(docname, guide)
        link = nodes.reference("", app.env.titles[guide].astext(), refuri=uri, internal=True)
        items += nodes.list_item("", nodes.paragraph("", "", link))
    section = next(doctree.findall(nodes.section))
    section += nodes.rubric("", "Used in", classes=["used-in"])
    section += items


def guides_of(env: Any, name: str) -> Iterator[str]:
    """Yield the guides that mention a name or one of its members."""
    for guide, names in env.heatmover_mentions.items():
        if not guide.startswith(NO_GUIDES) and any(one == name or one.startswith(f"{name}.") for one in names):
            yield guide


def _rank(guide: str) -> int:
    return next(i for i, start in enumerate(GUIDES) if guide.startswith(start))


def link_code(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:  # noqa: ARG001
    """Make links of the dotted names in code blocks."""
    if doctree is not None and "body" in context:
        context["body"] = CHAIN.sub(partial(_link_chain, app, pagename), context["body"])


def _link_chain(app: Any, pagename: str, match: re.Match[str]) -> str:
    parts = re.findall(r">(\w+)</span>", re.sub(r'<span class="o">\.</span>', "", match.group()))
    pieces = re.findall(PART, match.group())
    dot = '<span class="o">.</span>'
    if parts[0] not in MODULES:
        return match.group()
    for end in range(len(parts), 1, -1):
        if address := _address(app, pagename, full_name(".".join(parts[:end])) or ""):
            link = f'<a class="code-link" href="{escape(address)}">{dot.join(pieces[:end])}</a>'
            return dot.join([link, *pieces[end:]])
    return match.group()


def _address(app: Any, pagename: str, name: str) -> str | None:
    entry = app.env.domains["py"].objects.get(name)
    if entry is not None:
        if entry.docname == pagename:
            return f"#{entry.node_id}"
        return f"{app.builder.get_relative_uri(pagename, entry.docname)}#{entry.node_id}"
    for kind, entries in InventoryAdapter(app.env).main_inventory.items():
        if kind.startswith("py:") and name in entries:
            return entries[name].uri
    return None


def prepare(app: Any) -> None:
    if not hasattr(app.env, "heatmover_mentions"):
        app.env.heatmover_mentions = {}


def forget(app: Any, env: Any, docname: str) -> None:  # noqa: ARG001
    env.heatmover_mentions.pop(docname, None)


def merge(app: Any, env: Any, docnames: list[str], other: Any) -> None:  # noqa: ARG001
    env.heatmover_mentions.update({name: other.heatmover_mentions.get(name, set()) for name in docnames})


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", prepare)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", link_inline)
    app.connect("missing-reference", resolve)
    app.connect("doctree-resolved", list_guides)
    app.connect("html-page-context", link_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
