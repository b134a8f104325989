"""`python -m sendonce.cli` is `sendonce`."""

from sendonce.cli.main import main

main()
