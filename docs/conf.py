"""How Sphinx builds the pages: ``make docs``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "_ext"))

from fsm_provider import __version__

project = "airflow-provider-fsm"
author = "the authors of airflow-provider-fsm"
copyright = "the authors of airflow-provider-fsm"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "listings"]
exclude_patterns = ["_ext"]

myst_heading_anchors = 4

autodoc_default_options = {
    "exclude-members": "readers, records, options, execute, execute_complete, poke, on_kill"
}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False

nitpick_ignore_regex = [
    # Airflow's own names: documented elsewhere, and the build must not need the network.
    (r"py:(class|exc)", r"airflow\..*|AirflowOptionalProviderFeatureException"),
    # A base without anything of its own to tell.
    (r"py:class", r"fsm_provider\.api\.errors\._DescribedError"),
]

html_theme = "furo"
html_title = f"airflow-provider-fsm {__version__}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f6f3e", "color-brand-content": "#2f6f3e"},
    "dark_css_variables": {"color-brand-primary": "#8fc99c", "color-brand-content": "#8fc99c"},
}
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
