"""Sets Sphinx up for the site of the docs.

`make docs` runs it, on the pages of tests/house/site.py.
"""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "raftlog"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "raftlog"
html_copy_source = False
html_show_sphinx = False
templates_path = ["."]
html_last_updated_fmt = None


def setup(app: Sphinx) -> None:
    """A drawing in Mermaid stays text: its program would come from another host."""
    app.add_lexer("mermaid", TextLexer)
