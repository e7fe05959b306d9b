"""The site: Sphinx reads the Markdown of docs/ as it stands. ``make docs`` builds it; docs/decisions.md says why so."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vitviz import __version__  # noqa: E402

project = "vitviz"
author = "The vitviz authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs.site.blocks"]
root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/performance/*.md", "assets/README.md", "checkpoints/README.md", "tests/data/README.md"),
    *("checkpoints/recipe/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
]
# Folders that are not even looked through.
exclude_patterns = [".venv", ".git", ".ci", "build", "dist", "vitviz", "benchmarks", "tests/artefacts", "runs"]

myst_heading_anchors = 4
myst_all_links_external = False
# Every page begins with its own heading; tables of a document may come first.
suppress_warnings = ["myst.header"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "vitviz"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["root", str(ROOT / "build" / "explorers")]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
pygments_style = "default"
pygments_dark_style = "github-dark"
