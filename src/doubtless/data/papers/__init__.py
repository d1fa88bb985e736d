"""The papers' data sets in the layouts they are published in, one file per set, with their standard splits."""

from doubtless.data.papers.cars196 import CARS196
from doubtless.data.papers.cub200 import CUB200
from doubtless.data.papers.layout import Layout, Paper, count_parts
from doubtless.data.papers.lfw import LFW
from doubtless.data.papers.msls import MSLS
from doubtless.data.papers.sop import SOP

PAPERS: dict[str, Paper] = {"cub200": CUB200, "cars196": CARS196, "sop": SOP, "lfw": LFW, "msls": MSLS}

__all__ = ["PAPERS", "Paper", "Layout", "count_parts"]
