"""Sphinx configuration. The build needs no network and fails on every warning (see the Makefile)."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from public_names import callable_values  # noqa: E402

from heatmover import __version__  # noqa: E402

project = "heatmover"
author = "The heatmover developers"
copyright = "The heatmover developers"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    # Our own, in _ext: formulas without a script, links from every mention of a name, a line for every public name, the
    # report of a real run.
    "mathml",
    "mentions",
    "name_index",
    "demo_report",
]
exclude_patterns = [
    "_build",
    "_templates",
    "jupyter_execute",
    "results/numbers",  # parts that the page of results includes
]
templates_path = [str(HERE / "_templates")]  # autosummary takes another path from the sources

html_theme = "furo"
html_title = f"heatmover {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["heatmover.css"]
html_js_files = ["search-in-files.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a63a1c", "color-brand-content": "#a63a1c"},
    "dark_css_variables": {"color-brand-primary": "#ff9d76", "color-brand-content": "#ff9d76"},
}
pygments_style = "default"  # enough contrast, which check_site.py measures
pygments_dark_style = "github-dark"

myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Not "cache": its key is the page's own code, so a page would keep showing results that a changed
# heatmover no longer gives.
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

# One page per public name, written into reference/generated at every build and kept out of git.
autosummary_generate = True
autosummary_context = {"callables": callable_values()}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# `Graph.place` in a docstring is a link where there is such an object, and code where there is none.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
# Attributes as fields of the class; as objects they would clash with documented properties.
napoleon_use_ivar = True
# Without it napoleon does not escape the last underscore of `max_scale_`, and reStructuredText takes it for a link's.
strip_signature_backslash = True

# Lists of the objects that other projects document, kept here so that no network is needed: make_inventories.py.
intersphinx_mapping = {
    name: (address, str(HERE / "inventories" / f"{name}.inv"))
    for name, address in {
        "python": "https://docs.python.org/3",
        "numpy": "https://numpy.org/doc/stable",
        "scipy": "https://docs.scipy.org/doc/scipy",
        "sklearn": "https://scikit-learn.org/stable",
        "pandas": "https://pandas.pydata.org/docs",
        "matplotlib": "https://matplotlib.org/stable",
        "anndata": "https://anndata.readthedocs.io/en/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
    }.items()
}

copybutton_exclude = ".linenos, .gp, .go"
