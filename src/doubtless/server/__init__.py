"""Serving a gallery: `service` does the work, `http` gives it an API, `page` a page to look at."""
