"""One variance scale chosen on validation images: the same for every family, for the consensus only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, choose_scale, evaluate, scale
from doubtless.laplace import negative_consensus_ece, negative_consensus_ece_of_scales
from doubtless.search import Positions

CLASSES = 8


def pictures(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Locations (n, 6) around class centres, so close that some lie with their neighbours; labels (n,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    centres = torch.randn(CLASSES, 6, generator=torch.Generator().manual_seed(9))
    return centres[labels] + 0.7 * torch.randn(n, 6, generator=generator), labels


def make(family: str, location: Tensor, spread: float) -> Embedding:
    """With a spread (variance) that is the same for all."""
    n = len(location)
    if family == "vmf":
        return Embedding.vmf(location, torch.full((n,), 1 / spread))
    if family == "empirical":
        noise = torch.randn(10, *location.shape, generator=torch.Generator().manual_seed(5))
        return Embedding.empirical(location + spread**0.5 * noise)
    kinds = {"gaussian": Embedding.gaussian, "projected-gaussian": Embedding.projected_gaussian}
    return kinds[family](location, torch.full((n, 1), spread))


FAMILIES = ["gaussian", "projected-gaussian", "vmf", "empirical"]


@pytest.mark.parametrize("family", FAMILIES)
def test_variances_off_by_a_thousand_are_put_right(family: str) -> None:
    """The ECE of other images at the scale that validation images choose, whatever the variances were."""
    location, labels = pictures(400, 0)
    test, test_labels = pictures(400, 1)
    found = []
    for spread in (3e-4, 0.3):
        chosen = choose_scale(make(family, location, spread), labels)
        assert chosen is not None
        assert max(chosen.trials.values()) == chosen.trials[chosen.scale]
        options = EvaluationOptions(bootstrap=0, clusters=False, scale=chosen.scale)
        found.append((chosen.scale, evaluate(make(family, test, spread), test_labels, options=options)))
    (up, narrow), (_, wide) = found
    assert up > 10  # hardly any draw leaves its place
    assert narrow["ece_tuned"] < narrow["ece"] / 2
    assert narrow["ece_tuned"] < narrow["ece_tuned_floor"] + 0.05
    assert abs(narrow["ece_tuned"] - wide["ece_tuned"]) < 0.04
    assert narrow["scale"] == up


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_scaled_embeddings_one_by_one(family: str) -> None:
    location, labels = pictures(60, 0)
    embedding, scales = make(family, location.double(), 0.05), [0.1, 1.0, 20.0]
    together = negative_consensus_ece_of_scales(
        embedding, labels, scales=scales, generator=torch.Generator().manual_seed(3), draws=30
    )
    for number, value in zip(scales, together.tolist(), strict=True):
        if family in ("projected-gaussian", "empirical") and number != 1:
            continue  # alone their mean direction, and so the gallery, moves with the scale
        alone = negative_consensus_ece(
            embedding.scaled(number), labels, draws=30, generator=torch.Generator().manual_seed(3)
        )
        assert value == pytest.approx(alone, abs=1e-12), number


def test_the_scale_is_for_the_consensus_only() -> None:
    location, labels = pictures(120, 0)
    embedding = make("projected-gaussian", location, 0.02)
    plain = evaluate(embedding, labels, options=EvaluationOptions(bootstrap=5))
    tuned = evaluate(embedding, labels, options=EvaluationOptions(bootstrap=5, scale=7.0))
    assert tuned.measures.keys() - plain.measures.keys() == {"ece_tuned", "ece_tuned_floor", "scale"}
    assert {name: tuned.measures[name] for name in plain.measures} == plain.measures
    assert tuned.baselines == plain.baselines
    assert tuned["ece_tuned"] != tuned["ece"]
    assert tuned.measures["ece_tuned"].low is not None
    assert set(tuned.curves["reliability"]) == {"consensus", "tuned"}
    again = Evaluation.from_json(tuned.to_json())
    assert again["scale"] == 7.0
    same = evaluate(embedding, labels, options=EvaluationOptions(bootstrap=0, scale=1.0))
    assert same["ece_tuned"] == same["ece"]
    assert same["ece_tuned_floor"] == same["ece_floor"]


def test_a_larger_gallery_of_the_same_labels_is_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among four times as many neighbours draws agree less: the scale chosen for them is smaller, and better."""
    location, labels = pictures(400, 0)
    few = choose_scale(make("gaussian", location, 0.1), labels, meant_for=1600)
    assert few is not None
    assert few.meant_for is None  # so few images cannot tell
    monkeypatch.setattr(scale, "ENOUGH", 400)
    more = choose_scale(make("gaussian", location, 0.1), labels, meant_for=10**6)
    assert more is not None
    assert more.meant_for == 1600  # further than that they cannot tell
    assert more.scale < few.scale
    test, test_labels = pictures(1600, 1)
    found = [
        evaluate(
            make("gaussian", test, 0.1),
            test_labels,
            options=EvaluationOptions(bootstrap=0, clusters=False, scale=chosen.scale),
        )["ece_tuned"]
        for chosen in (more, few)
    ]
    assert found[0] < found[1]


def test_an_end_of_the_grid_is_not_the_end() -> None:
    location, labels = pictures(300, 0)
    chosen = choose_scale(make("gaussian", location, 1e-6), labels)
    assert chosen is not None
    assert chosen.scale > 10**scale.DECADES
    assert chosen.describe()["trials"] == len(chosen.trials) > 25
    ordinary = choose_scale(make("gaussian", location, 0.3), labels)
    assert ordinary is not None
    assert len(ordinary.trials) == 2 * scale.DECADES * scale.PER_DECADE + 1 + scale.REFINED - 1


def test_images_whose_label_nobody_shares_are_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    location, labels = pictures(80, 0)
    labels = torch.cat([labels[:60], torch.arange(100, 120)])
    chosen = choose_scale(make("gaussian", location, 0.1), labels)
    assert chosen is not None
    assert chosen.images == 60
    monkeypatch.setattr(scale, "QUERIES", 25)
    fewer = choose_scale(make("gaussian", location, 0.1), labels)
    assert fewer is not None
    assert fewer.images == 25


def test_points_have_no_scale_and_what_cannot_vote_is_said() -> None:
    location, labels = pictures(40, 0)
    assert choose_scale(Embedding.point(location), labels) is None
    shaky = make("gaussian", location, 0.1)
    with pytest.raises(InputError, match="20 validation images"):
        choose_scale(shaky[:5], labels[:5])
    with pytest.raises(InputError, match="shares its label"):
        choose_scale(shaky, torch.arange(40))
    with pytest.raises(InputError, match="positions"):
        choose_scale(shaky, Positions(location[:, :2].double(), 25.0))
    with pytest.raises(InputError, match="above 0"):
        EvaluationOptions(scale=0.0)
