"""The report of one run: everything `Evaluation` found, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from doubtless.evaluation.result import Evaluation
from doubtless.files import write_text
from doubtless.report.figures import evaluation_figures, training_figures
from doubtless.report.images import ImageLookup
from doubtless.report.markup import json_block
from doubtless.report.page import Section, gallery, page, provenance
from doubtless.report.projection import EmbeddingMap, draw_map
from doubtless.report.sections import (
    baseline_section,
    certainty_section,
    key_figures,
    lead_sentence,
    measure_tables,
    protocol_section,
)

NO_VERSIONS: Mapping[str, str] = MappingProxyType({})


def write_report(
    path: str | Path,
    *,
    title: str,
    evaluation: Evaluation,
    config: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]] = (),
    versions: Mapping[str, str] = NO_VERSIONS,
    command: str | None = None,
    images: ImageLookup | None = None,
    embedding_map: EmbeddingMap | None = None,
    label_names: Sequence[str] | None = None,
    of_method: Sequence[Section] = (),
) -> None:
    """Writes the report of one run: tables, figures and pictures in one HTML file, the numbers as JSON inside.

    log            one mapping an epoch: epoch, train_loss, val_recall@1, …
    images         where the pictures of queries and gallery come from; without it there is no grid of examples
    embedding_map  from `doubtless.report.embedding_map`; without it there is no map
    label_names    names of the labels 0, 1, …
    of_method      what only this method has to show (`doubtless.report.method_figures`)

    The same input gives the same file, byte for byte. The numbers are in the element ``doubtless-metrics`` in
    the form of `Evaluation.to_json`.

    >>> write_report("run/report.html", title="Fashion", evaluation=evaluation, config=config)   # doctest: +SKIP
    """
    drawn_map = [draw_map(embedding_map, names=label_names)] if embedding_map is not None else []
    sections = [
        Section("key-figures", "Key figures", key_figures(evaluation)),
        Section("figures", "Figures", gallery(evaluation_figures(evaluation))),
        Section("examples", "Examples", certainty_section(evaluation, images=images, names=label_names)),
        Section("measures", "All measures", measure_tables(evaluation)),
        Section("baselines", "Learned, combined and free uncertainties", baseline_section(evaluation)),
        Section("map", "Map", "".join(drawn_map)),
        *of_method,
        Section("training", "Training", gallery(training_figures(log))),
        Section("protocol", "Protocol", protocol_section(evaluation)),
        Section("provenance", "Made with", provenance(config=config, versions=versions, command=command)),
    ]
    data = json_block(evaluation.to_json(), identifier="doubtless-metrics")
    write_text(path, page(title=title, lead=lead_sentence(evaluation), sections=sections, data=data))
