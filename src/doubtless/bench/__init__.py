"""Benchmarks: a suite of methods over seeds, each run trained once and never again, one comparison out."""

from doubtless.bench.plan import Job, plan_jobs
from doubtless.bench.runner import run_suite
from doubtless.bench.suite import Suite, load_suite

__all__ = ["Suite", "load_suite", "Job", "plan_jobs", "run_suite"]
