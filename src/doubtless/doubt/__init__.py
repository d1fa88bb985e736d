"""One doubt from several sources, with its parts."""
