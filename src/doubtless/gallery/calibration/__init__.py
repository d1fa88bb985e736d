"""Calibration of a gallery: fitted on its items or on queries, kept with it, followed while it changes."""
