"""docs/results.md and one page per data set, drawn from the JSON that `doubtless bench` wrote.

    python -m benchmarks.results_page

Only what stands between `<!-- tables -->` and `<!-- end -->` is written (on the front page `<!-- summary -->` and
`<!-- looks -->`), and figures of the text that name the cell they are of (`claims.py`); the text around is written
by hand, in the pages themselves. A data set that has not been run has an empty place.
"""
