"""Settings of Sphinx for the pages that `tools/docs_site.py` lays out; `make docs` builds them."""

import re
from pathlib import Path

import numpydoc.xref

import consilience
from consilience.protocol.result import Result

project = "Consilience"
author = "the authors of Consilience"
version = release = consilience.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
highlight_language = "none"
nitpicky = True
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6

# Docstrings write names of parameters between single backticks.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
# Types that have a page lead there; what numpydoc links of other libraries would need a network.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    name: f"consilience.{name}" for name in consilience.__all__ if not name.startswith("_")
}
numpydoc.xref.DEFAULT_LINKS.clear()
copybutton_exclude = ".linenos, .gp"

html_theme = "pydata_sphinx_theme"
html_title = f"Consilience {release}"
html_context = {"default_mode": "auto"}
html_static_path = ["_own"]
html_css_files = ["style.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "Consilience"},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "search_bar_text": "Search these pages",
}
html_sidebars = {"index": [], "source/**": []}


def _plain_defaults(app, what, name, obj, options, signature, returned):  # noqa: PLR0913
    """Defaults whose text would be an address in memory, and names that are nobody's business."""
    if isinstance(obj, type) and issubclass(obj, Result):
        return "", returned  # nobody makes one, and its fields are its attributes
    if signature:
        signature = re.sub(r"<object object at 0x[0-9a-f]+>", "...", signature)
        signature = signature.replace("<factory>", "...")
        signature = re.sub(r", _\w+=[^,)]*", "", signature)
    return signature, returned


def setup(app):
    """Connect what stands above."""
    app.connect("autodoc-process-signature", _plain_defaults)
