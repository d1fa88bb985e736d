"""Reports: one run, or several methods side by side, each as one self-contained HTML file."""

from doubtless.report.comparison import (
    Cell,
    ComparisonTable,
    MethodResult,
    compare_methods,
    redraw_comparison,
    write_comparison,
)
from doubtless.report.images import EmbeddingMap, ImageLookup, embedding_map
from doubtless.report.sections import write_report

__all__ = [
    "write_report",
    "write_comparison",
    "redraw_comparison",
    "compare_methods",
    "embedding_map",
    "ImageLookup",
    "EmbeddingMap",
    "MethodResult",
    "ComparisonTable",
    "Cell",
]
