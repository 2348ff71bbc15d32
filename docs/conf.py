"""Sphinx configuration. The build needs no network and fails on every warning (see the Makefile)."""

from importlib.metadata import version as installed_version

project = "heatmover"
author = "The heatmover developers"
copyright = "The heatmover developers"
release = version = installed_version("heatmover")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = [
    "_build",
    "jupyter_execute",
    "results/numbers",  # parts that the page of results includes
]

html_theme = "furo"
html_title = "heatmover"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Not "cache": its key is the page's own code, so a page would keep showing results that a changed
# heatmover no longer gives.
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

# The reference pages name every object themselves; no stub files are written into the sources.
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = False
napoleon_use_rtype = False
# Attributes as fields of the class; as objects they would clash with documented properties.
napoleon_use_ivar = True
