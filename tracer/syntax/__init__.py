"""From the source of a function to what the tracer runs in its place.

The modules in here are loaded where a function is rewritten, so not by a process that finds all of
its functions kept.
"""

from typing import Final

HOOKS: Final = "_kj"
"""The variable that holds the hooks (`khaljit.tracer.hooks`)."""
