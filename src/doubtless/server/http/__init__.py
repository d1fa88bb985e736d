"""The HTTP API over a service."""
