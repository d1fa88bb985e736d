"""`python -m doubtless` is the command line."""

from doubtless.cli import main

main()
