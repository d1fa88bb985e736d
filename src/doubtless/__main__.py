"""`python -m doubtless` is the command line."""

from doubtless.cli import main

if __name__ == "__main__":  # a process forked for a benchmark imports this module again
    main()
