"""How Sphinx builds the pages: ``make docs``."""

import atexit
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

from fsm_provider import __version__

# Airflow, which autodoc imports, would make itself a home of the user's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="fsm-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
logging.getLogger("airflow").setLevel(logging.WARNING)

DOCS = Path(__file__).parent
sys.path += [str(DOCS / "_ext"), str(DOCS.parent)]

project = "airflow-provider-fsm"
author = "the authors of airflow-provider-fsm"
copyright = "the authors of airflow-provider-fsm"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "diagrams", "listings"]
exclude_patterns = ["_ext"]

myst_heading_anchors = 4
# The changelog is a page too; its headings begin below the page's.
suppress_warnings = ["myst.header"]

# What is copied from a console is the commands, without prompts and output.
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp"

# What Airflow calls, and nobody else.
FOR_AIRFLOW = (
    "option_parsers",
    "records",
    "options",
    "narrowing",
    "permanent",
    "may_have_written",
    "execute",
    "execute_complete",
    "resume_execution",
    "poke",
    "on_kill",
    "get_link",
    "get_ui_field_behaviour",
    "get_connection_form_widgets",
)
autodoc_default_options = {"exclude-members": ", ".join(FOR_AIRFLOW)}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False

nitpicky = True
nitpick_ignore_regex = [
    # Airflow's own names: documented elsewhere, and the build must not need the network.
    (r"py:(class|exc)", r"airflow\..*|AirflowOptionalProviderFeatureException"),
    # A base without anything of its own to document.
    (r"py:class", r"fsm_provider\.api\.errors\._DescribedError"),
]

# The reader's own Airflow, and the fake.
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)\b"]

html_theme = "furo"
html_title = f"airflow-provider-fsm {__version__}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f6f3e", "color-brand-content": "#2f6f3e"},
    "dark_css_variables": {"color-brand-primary": "#8fc99c", "color-brand-content": "#8fc99c"},
}
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
