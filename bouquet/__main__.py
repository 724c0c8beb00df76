"""``python -m bouquet``."""

from bouquet.cli.main import main

main()
