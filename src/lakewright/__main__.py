"""``python -m lakewright`` is the command line."""

from lakewright.cli.main import main

main()
