"""The truth of an index of a folder: a SQLite database, its seals, its lock, and what is kept of it in memory."""
