"""Serving an index: `Service` does the work, `create_app` gives it an HTTP API, `page` a page to look at."""
