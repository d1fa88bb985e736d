"""The page at `/`: plain files in `static`, which ask the API at /v1 and nobody else."""
