"""Two pictures: the same, different, or not to be told, under a promise of its own."""
