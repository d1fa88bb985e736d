"""Several photos of one thing: one answer, surer than of one photo, and calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubtless.calibration.distribution import Distribution
from doubtless.calibration.kept_searches import Found, Items, KeptSearches
from doubtless.calibration.together import Pooling, fit_pooling, groups_of, log_odds
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery

LABELS, PER, DIM, NOISE = 24, 12, 10, 0.35
CENTRE = torch.nn.functional.normalize(
    torch.randn(2 * LABELS, DIM, generator=torch.Generator().manual_seed(1)), dim=1
)


def photos(label: Tensor, seed: int) -> Embedding:
    noise = torch.randn(len(label), DIM, generator=torch.Generator().manual_seed(seed))
    return Embedding.point(CENTRE[label] + NOISE * noise)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    label = torch.arange(LABELS * PER) % LABELS
    names = [f"thing {number}" for number in label.tolist()]
    place = tmp_path_factory.mktemp("together") / "shop"
    with Gallery.create(place, embedding=photos(label, 0), labels=names) as gallery:
        gallery.calibrate(target_error=0.2)
        yield gallery


def test_three_photos_say_more_than_one(shop: Gallery) -> None:
    truth = torch.arange(60) % LABELS
    three = [photos(truth, seed) for seed in (5, 6, 7)]
    alone = [answer.labels[0].label for answer in shop.ask(three[0])]
    asked = [
        shop.ask(Embedding.cat([one[place : place + 1] for one in three]), together=True)
        for place in range(len(truth))
    ]
    names = [f"thing {number}" for number in truth.tolist()]
    right = [answer.labels[0].label == name for answer, name in zip(asked, names, strict=True)]
    before = [first == name for first, name in zip(alone, names, strict=True)]
    assert sum(right) > sum(before)
    wrong = sum(answer.label not in (None, name) for answer, name in zip(asked, names, strict=True))
    assert wrong <= 0.2 * sum(answer.decision == "answer" for answer in asked)
    for answer in asked:
        assert 0.9 < sum(one.probability for one in answer.labels) + (answer.none or 0) < 1 + 1e-6
        assert len({hit.id for hit in answer.hits}) == len(answer.hits) == 10


def test_one_photo_together_is_that_photo(shop: Gallery) -> None:
    one = photos(torch.tensor([3]), 9)
    assert shop.ask(one, together=True) == shop.ask(one)[0]


def test_an_answer_to_several_photos_can_be_judged(shop: Gallery) -> None:
    several = photos(torch.tensor([3, 3, 3]), 9)
    answer = shop.ask(several, together=True)
    assert answer.id is not None
    assert answer.id not in {alone.id for alone in shop.ask(several)}
    assert answer.query is not None
    assert len(answer.query) == 1


def test_judges_of_photos_are_kept_and_limited(shop: Gallery) -> None:
    assert shop.judge_of_photos(2) is shop.judge_of_photos(2)
    assert shop.judge_of_photos(2) is not shop.judge_of_photos(3)
    many = shop.ask(photos(torch.zeros(16, dtype=torch.long), 4), together=True)
    assert many.decision == "abstain"
    assert "Between 2 and 14 photos" in many.reason
    with pytest.raises(InputError, match="by the gallery's own score"):
        shop.ask(photos(torch.zeros(2, dtype=torch.long), 4), together=True, score="expected-distance")


def test_what_was_not_calibrated_cannot_pool(tmp_path: Path) -> None:
    with (
        Gallery.create(tmp_path / "new", embedding=photos(torch.arange(6), 0)) as gallery,
        pytest.raises(InputError, match="calibrated on its labels"),
    ):
        gallery.ask(photos(torch.arange(2), 1), together=True)


def test_pooling_is_bayes_rule_for_independent_photos() -> None:
    generator = torch.Generator().manual_seed(0)
    prior = torch.tensor([0.3, 0.3, 0.4], dtype=torch.double)  # two labels, none
    likelihood = torch.rand(2, 3, generator=generator, dtype=torch.double)  # of two photos
    each = prior * likelihood
    each = each / each.sum(1, keepdim=True)
    both = prior * likelihood.prod(0)
    both = both / both.sum()
    found = Distribution(torch.tensor([[4, 9], [4, 9]]), each[:, :2], each[:, 2])
    pooled = Pooling(1.0, 1.0, -float((prior[0] / prior[2]).log()), 1e-9)(found, 2)
    assert pooled.label.tolist() == [[4, 9]]
    assert torch.allclose(torch.cat([pooled.probability[0], pooled.none]), both, atol=1e-6)
    same = Pooling(0.5, 0.5, 0.0, 1e-9)(Distribution(found.label, each[[0, 0], :2], each[[0, 0], 2]), 2)
    assert torch.allclose(same.probability[0], each[0, :2], atol=1e-6)  # twice the same photo says no more


def test_a_label_that_one_photo_missed_is_not_lost() -> None:
    chances = torch.tensor([[0.5, 0.0], [0.3, 0.3]], dtype=torch.double)
    found = Distribution(
        torch.tensor([[4, -1], [9, 4]]), chances, torch.tensor([0.5, 0.4], dtype=torch.double)
    )
    label, odds, there = log_odds(found, 2, 0.01)
    assert label.tolist() == [[4, 9]]
    assert bool(there.all())
    expected = torch.tensor([[0.5 * 0.3, 0.01 * 0.3]], dtype=torch.double) / (0.5 * 0.4)
    assert torch.allclose(odds.sum(2), expected.log())


def told(true: torch.Tensor, noise: torch.Tensor, generator: torch.Generator) -> Distribution:
    """What queries of label 0, 1 or none (n,) are told: log-odds of ±2 that point the right way, and noise (n,)."""
    odds = torch.stack([torch.where(true == name, 2.0, -2.0) for name in (0, 1)], dim=1).double()
    odds = odds + noise.unsqueeze(1) * torch.randn(len(true), 2, generator=generator, dtype=torch.double)
    shares = torch.cat([odds, torch.zeros(len(true), 1, dtype=torch.double)], dim=1).softmax(1)
    return Distribution(torch.tensor([[0, 1]]).repeat(len(true), 1), shares[:, :2], shares[:, 2])


@pytest.mark.parametrize("useless", ["photos", "mean"])
def test_what_says_nothing_counts_for_nothing(useless: str) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(600) % 2
    both = torch.cat([true, torch.full((300,), -1)]).repeat_interleave(3)  # two photos and their mean
    is_mean = torch.arange(len(both)) % 3 == 2
    noise = torch.where(is_mean == (useless == "mean"), 30.0, 1.5).double()
    each = told(both, noise, generator)
    rule = fit_pooling(each[: 3 * 600], true, each[3 * 600 :], count=3, unknown=0.3)
    speaks, silent = (rule.mean, rule.each) if useless == "photos" else (rule.each, rule.mean)
    assert 0 <= silent < 0.05
    assert speaks > 0.5
    loss = [
        -Pooling(rule.each, rule.mean, rule.constant + more, rule.floor)(each, 3)
        .outcome(both[::3]).clamp_min(1e-9).log()[:600].mean() * 0.7
        - Pooling(rule.each, rule.mean, rule.constant + more, rule.floor)(each, 3).none[600:].log().mean() * 0.3
        for more in (-0.2, 0.0, 0.2)
    ]  # fmt: skip
    assert loss[1] < min(loss[0], loss[2])


def test_groups_are_of_one_label_and_leave_an_item() -> None:
    label = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2, 2])
    row = torch.arange(10)
    items = Items(row, label, lambda rows: torch.zeros(len(rows), 2))
    nothing = Found(row.new_empty(10, 0), torch.empty(10, 0))
    queries = KeptSearches(row, label, torch.zeros(10), nothing, nothing)
    groups = groups_of(queries, items, 2)
    assert sorted(label[groups[:, 0]].tolist()) == [0, 0, 2]
    assert bool((label[groups] == label[groups[:, :1]]).all())
    assert len(groups.flatten().unique()) == groups.numel()
