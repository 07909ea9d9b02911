"""``python -m khaljit`` is the command ``khaljit``."""

from khaljit.cli import main

main()
