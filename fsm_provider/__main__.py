"""The commands of the provider: ``python -m fsm_provider``."""

import sys

from fsm_provider.commands.cli import main

sys.exit(main())
