"""Sphinx settings of the documentation site: `make docs` builds it into build/docs, with warnings as errors."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from pydantic import BaseModel
from sphinx.application import Sphinx

from heed.settings import format_setting
from heed.version import __version__

project = "heed"
copyright = "the heed authors, Apache-2.0"  # noqa: A001 - Sphinx's name
release = __version__
html_title = f"heed {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["pictures/*"]
myst_heading_anchors = 3  # a page can link to a section: training.md#resuming
default_role = "code"  # docstrings mark code with single backticks

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # a default is shown as it is written
maximum_signature_line_length = 88

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False


def settings_as_a_table(_app: Sphinx, _what: str, _name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Below the docstring of a settings class: each setting, its default, and the sentence that describes it."""
    if not (isinstance(obj, type) and issubclass(obj, BaseModel)):
        return
    lines += [".. list-table::", "   :header-rows: 1", "   :widths: 25 15 60", "", "   * - setting", "     - default"]
    lines += ["     - meaning"]
    for name, field in obj.model_fields.items():
        value = field.get_default(call_default_factory=True)
        default = "required" if field.is_required() else f"``{format_setting(value)}``"
        meaning = re.sub(r"([*|\\])", r"\\\1", field.description or "")  # plain text in reStructuredText
        lines += [f"   * - ``{name}``", f"     - {default}", f"     - {meaning}"]
    lines.append("")


def without_signature(_app: Sphinx, _what: str, _name: str, obj: Any, *_rest: Any) -> tuple[str, str] | None:
    """The table of a settings class says what its signature would."""
    return ("", "") if isinstance(obj, type) and issubclass(obj, BaseModel) else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", settings_as_a_table)
    app.connect("autodoc-process-signature", without_signature)
