"""The front door: an index, its model, its calibration and its doubt, asked together."""
