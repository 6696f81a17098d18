"""The commands of the provider: ``python -m fsm_provider``."""

import sys

from fsm_provider.cli import main

sys.exit(main())
