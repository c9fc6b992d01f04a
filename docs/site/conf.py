"""Configuration of Sphinx: `make docs`, then open build/site/index.html.

The pages are the repository's Markdown files as a code host shows them. What only a site needs (a
menu, pages of source files, a reference made from docstrings) is added here and in the other
modules of this folder.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from fedwmsam.version import __version__  # noqa: E402  (found through the path above)

project = "fedwmsam"
release = __version__
version = __version__
copyright = "The fedwmsam developers, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "commands", "docstrings", "menu", "source_pages"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/**.rst",
    "benchmarks/README.md",
    "examples/**.md",
    "notebooks/README.md",
    "tests/data/reference_vectors/README.md",
]
exclude_patterns = ["**/.*", "build"]  # not to walk through environments

myst_heading_anchors = 4  # the anchors that code hosts make
myst_links_external_new_tab = False

default_role = "code"  # docstrings write `names` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_title = f"fedwmsam {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "tango"
pygments_dark_style = "native"
