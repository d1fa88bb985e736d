"""The figures of proxy runs: the right images, the logged roles, surfaces with the shapes their formulas have."""

from __future__ import annotations

import math

import numpy as np
import torch

from doubtless.embedding import Embedding
from doubtless.evaluation.result import Evaluation
from doubtless.methods import DataSpec
from doubtless.methods.configuration import make_config
from doubtless.methods.proxy import Proxy
from doubtless.report.images import ImageLookup, data_uri
from doubtless.report.method_figures import Context, method_sections
from doubtless.report.method_figures.proxy import CELLS, PROXY_ANGLE, REACH, role_figures, surface_values

LOG = [
    {"epoch": epoch, **{f"train_{role}_{third}": 0.1 * (epoch + 1) for role in ("flatness", "weight")}}
    for epoch in range(3)
    for third in ("short",)
]


def a_context(items: int = 40) -> Context:
    config = make_config({"method": "proxy", "data": {"source": "digits"}, "model": {"dim": 4}})
    method = Proxy(config, DataSpec(channels=1, size=12, label_names=["<a>", "b"]))
    images = np.arange(items, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8)
    length = torch.linspace(1, 5, items)  # image i is the i-th shortest
    location = length[:, None] * torch.nn.functional.normalize(torch.randn(items, 4), dim=1)
    return Context(
        method,
        Evaluation({}, {}, {}, {}, {}),
        Embedding.vmf(location, length),
        torch.arange(items) % 2,
        ImageLookup.from_arrays(images),
        ["<a>", "b"],
        log=LOG,
    )


def test_sections_show_shortest_and_longest_images() -> None:
    context = a_context()
    sections = {section.identifier: section.body for section in method_sections(context)}
    assert list(sections) == ["length", "roles", "surfaces"]
    body = sections["length"]
    overall, by_class = body.split("<h3>By class")
    shown = [data_uri(context.images.query(row)) in overall for row in range(40)]
    assert shown == [row < 12 or row >= 28 for row in range(40)]
    assert overall.index(data_uri(context.images.query(0))) < overall.index(
        data_uri(context.images.query(39))
    )
    assert by_class.count("<figure") == 2
    assert "&lt;a&gt;" in by_class
    assert "<a>" not in body


def test_roles_come_from_the_log_and_an_older_log_has_none() -> None:
    figures = role_figures([{name: str(value) for name, value in row.items()} for row in LOG])
    assert len(figures) == 2
    assert all("shortest third" in drawn for drawn in figures)
    assert role_figures([{"epoch": 0, "train_loss": 1.0}]) == []


def test_surfaces_have_the_shapes_of_their_formulas() -> None:
    middle = (torch.arange(CELLS, dtype=torch.float64) + 0.5) * (2 * REACH / CELLS) - REACH
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    angle = torch.atan2(y, x)
    torch.testing.assert_close(surface_values("cosine", "point"), torch.cos(angle - PROXY_ANGLE))
    px, py = 5 * math.cos(PROXY_ANGLE), 5 * math.sin(PROXY_ANGLE)
    torch.testing.assert_close(surface_values("l2", "point"), -((x - px) ** 2 + (y - py) ** 2))
    # The density of a point knows no length, the expected likelihood does.
    half = CELLS // 2
    for similarity, differs in (("log-likelihood", False), ("elk", True)):
        values = surface_values(similarity, "vmf")
        diagonal = torch.stack([values[half + step, half + step] for step in (4, 20)])
        assert bool((diagonal[0] - diagonal[1]).abs() > 1e-6) == differs
    assert all(surface_values(*row).isfinite().all() for row in [("elk", "nivmf"), ("kl", "vmf")])
