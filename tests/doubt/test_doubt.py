"""The combined doubt: honest, in parts that add up, the same after saving, and at the edges of what is asked."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from safetensors.torch import load, save
from scipy.optimize import minimize
from torch import Tensor

from doubtless.doubt.doubt import Doubt
from doubtless.doubt.odds import error_weights, unseen_odds
from doubtless.doubt.parts import DoubtParts
from doubtless.doubt.queries import hits_with_truth
from doubtless.doubt.signals import PARTS, hit_signals, query_signals
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.logistic import PENALTY
from doubtless.metrics.ood import auroc
from doubtless.metrics.uncertainty import ausc, error_auroc
from doubtless.search import Positions
from doubtless.search.hits import Hits, hits_among

CLASSES, DIM = 8, 12


def maker(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=maker(seed))


def items(count: int, *, seed: int, noise: float = 0.45) -> tuple[Embedding, Tensor, Tensor]:
    """Gaussians of classes that overlap, noisier ones less sure; labels, and features one linear map before."""
    centers = draw(CLASSES, DIM, seed=99)
    labels = torch.randint(CLASSES, (count,), generator=maker(seed))
    spread = noise * (1 + 2 * torch.rand(count, 1, generator=maker(seed + 1000)))
    rows = centers[labels] + spread * draw(count, DIM, seed=seed + 2000)
    features = torch.cat([rows, 0.3 * draw(count, 20, seed=seed + 3000)], dim=1)
    return Embedding.gaussian(rows, spread.square()), labels, features


def out_of_distribution(count: int, *, seed: int) -> tuple[Embedding, Tensor]:
    """At home in the embedding, strange in the features before it."""
    embedding, _, features = items(count, seed=seed)
    features[:, DIM:] += 4 * draw(1, 20, seed=7)
    return embedding, features


@pytest.fixture(scope="module")
def gallery() -> tuple[Embedding, Tensor, Tensor]:
    return items(600, seed=1)


@pytest.fixture(scope="module")
def fitted(gallery: tuple[Embedding, Tensor, Tensor]) -> Doubt:
    embedding, labels, features = items(800, seed=2)
    from doubtless.doubt.novelty import Novelty

    known = Novelty.fit(gallery[2], generator=maker())
    return Doubt.fit(
        embedding, labels, gallery=gallery[0], gallery_labels=gallery[1], features=features, known=known
    )


def asked(
    doubt: Doubt, gallery: tuple[Embedding, Tensor, Tensor], queries: Embedding, features: Tensor
) -> tuple[DoubtParts, Hits]:
    hits = hits_among(queries, gallery[0], k=10, gallery_labels=gallery[1])
    return doubt.of(hits, features, queries=queries), hits


def test_one_doubt_knows_errors_and_out_of_distribution_at_once(
    fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]
) -> None:
    embedding, labels, features = items(1000, seed=3)
    found, hits = asked(fitted, gallery, embedding, features)
    strange, _ = asked(fitted, gallery, *out_of_distribution(500, seed=4))
    assert hits.label is not None
    correct = hits.label[:, 0] == labels
    assert 0.5 < float(correct.double().mean()) < 0.95
    signals = fitted.signals(hits, features, queries=embedding)
    best = {
        "error": max(error_auroc(value, correct) for value in signals.values()),
        "ausc": max(ausc(value, correct) for value in signals.values()),
    }
    assert error_auroc(found.total, correct) > best["error"] - 0.02
    assert ausc(found.total, correct) > best["ausc"] - 0.01
    assert auroc(found.total, strange.total) > 0.97
    assert strange.largest(0) == "novelty"


def test_parts_multiply_to_the_whole(fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]) -> None:
    embedding, _, features = items(200, seed=3)
    found, _ = asked(fitted, gallery, embedding, features)
    product = torch.ones(200, dtype=torch.double)
    for part in PARTS:
        assert float(found.parts[part].min()) >= 0
        product = product * (1 - found.parts[part])
    torch.testing.assert_close(1 - found.total, product, rtol=1e-9, atol=1e-12)
    assert bool((found.total <= 1).all())
    assert bool((found.parts["model"] == 0).all())  # a Gaussian's spread is read off the image


def test_a_larger_signal_never_lowers_the_doubt(
    fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]
) -> None:
    embedding, _, features = items(100, seed=3)
    hits = hits_among(embedding, gallery[0], k=10, gallery_labels=gallery[1])
    plain = fitted.of(hits, features, queries=embedding).total
    assert hits.label is not None
    contradicted = Hits(
        hits.row,
        hits.score,
        hits.expected_squared_distance,
        label=torch.cat([hits.label[:, :1], torch.full_like(hits.label[:, 1:], 77)], dim=1),
        query_uncertainty=hits.query_uncertainty,
    )
    more = fitted.of(contradicted, features, queries=embedding).total
    assert bool((more >= plain - 1e-12).all())
    assert bool((more > plain).any())


def test_the_reason_names_the_largest_part(fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]) -> None:
    embedding, _, features = items(100, seed=3)
    found, hits = asked(fitted, gallery, embedding, features)
    assert hits.label is not None
    named = {"gallery": "the gallery", "novelty": "novelty", "distance": "the distance", "image": "the image"}
    for query in range(100):
        sentence = found.reason(query)
        assert sentence.endswith(".")
        assert named[found.largest(query)] in sentence
        against = int((hits.label[query, 1:] != hits.label[query, 0]).sum())
        if found.largest(query) == "gallery" and against > 1:
            assert f"{against} of the first 10 hits disagree with the first" in sentence
    strange, _ = asked(fitted, gallery, *out_of_distribution(3, seed=4))
    assert "unlike what is known" in strange.reason(0)


def test_shuffled_labels_teach_nothing() -> None:
    embedding, labels, features = items(1500, seed=5)
    guessed = labels[torch.randperm(1500, generator=maker(1))]
    found = Doubt.fit(
        embedding, guessed, gallery=embedding[:700], gallery_labels=labels[:700], features=features
    )
    # Among 1,500 queries an AUROC of .5 deviates by some .016 (more for few right ones): four deviations.
    assert abs(found.record["error_auroc"] - 0.5) < 0.08
    honest = Doubt.fit(
        embedding, labels, gallery=embedding[:700], gallery_labels=labels[:700], features=features
    )
    assert honest.record["error_auroc"] > 0.65


def test_cross_fitting_does_not_look_at_its_own_group() -> None:
    ranks, groups = torch.rand(600, 3, generator=maker(), dtype=torch.double), torch.arange(600) % 30
    wrong = torch.rand(600, generator=maker(1)) < ranks[:, 0]
    odds = unseen_odds(ranks, wrong, prior=None, groups=groups, generator=maker(2))
    changed = wrong.clone()
    changed[groups == 4] = ~changed[groups == 4]
    again = unseen_odds(ranks, changed, prior=None, groups=groups, generator=maker(2))
    torch.testing.assert_close(again[groups == 4], odds[groups == 4])
    assert not torch.equal(again, odds)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_the_constrained_optimum(seed: int) -> None:
    ranks = torch.rand(300, 4, generator=maker(seed), dtype=torch.double)
    odds = 3 * ranks[:, 0] - 2 * ranks[:, 1] - 1
    wrong = torch.rand(300, generator=maker(seed + 10)) < torch.sigmoid(odds)
    prior = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.double)
    found = error_weights(ranks, wrong, prior=prior)
    x, y, ridge = ranks.numpy(), wrong.double().numpy(), [PENALTY] * 4 + [1e-6 * PENALTY]

    def cost(weights):
        import numpy as np

        z = x @ weights[:4] + weights[4]
        away = weights - np.append(prior.numpy(), 0)
        return np.logaddexp(0, z).sum() - y @ z + 0.5 * (np.array(ridge) * away**2).sum()

    best = minimize(
        cost, [0.0] * 5, bounds=[(0, None)] * 4 + [(None, None)], options={"ftol": 1e-14, "gtol": 1e-9}
    )
    assert float(cost(found.numpy())) <= best.fun + 1e-6
    assert bool((found[:-1] >= 0).all())
    assert float(found[1]) == 0  # what speaks the wrong way round is not listened to


def test_it_is_the_same_after_saving(fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]) -> None:
    embedding, _, features = items(50, seed=6)
    tensors, record = fitted.state()
    again = Doubt.from_state(load(save(tensors)), json.loads(json.dumps(record)))
    first, _ = asked(fitted, gallery, embedding, features)
    second, _ = asked(again, gallery, embedding, features)
    assert torch.equal(first.total, second.total)
    assert all(torch.equal(first.parts[part], second.parts[part]) for part in PARTS)
    with pytest.raises(InputError, match="newer doubtless"):
        Doubt.from_state(tensors, {**record, "schema": 2})


def test_no_argument_takes_an_out_of_distribution_image() -> None:
    """What is fitted on are known queries; nothing of the signature could carry anything else."""
    taken = set(inspect.signature(Doubt.fit).parameters) | set(
        inspect.signature(Doubt.for_gallery).parameters
    )
    inputs = {"embedding", "labels", "gallery", "gallery_labels", "features", "known"}
    assert taken == inputs | {"leverage", "score", "generator", "self"}
    assert inspect.signature(Doubt.fit).parameters["leverage"].annotation == "bool"


def test_another_gallery_keeps_weights_and_takes_its_own_tails(fitted: Doubt) -> None:
    embedding, labels, features = items(400, seed=8, noise=0.9)
    here = fitted.for_gallery(embedding, labels=labels, features=features)
    assert here.weights == fitted.weights
    rows = torch.arange(400)
    hits = hits_among(embedding, embedding, k=10, gallery_labels=labels, itself=rows)
    found = here.of(hits, features, queries=embedding, itself=rows)
    for name, chance in found.chances.items():
        assert float(chance.mean()) == pytest.approx(0.5, abs=0.01), name  # its own items are usual there
    elsewhere = fitted.of(hits, features, queries=embedding)
    assert float(elsewhere.chances["distance"].mean()) < 0.4
    shuffled = fitted.for_gallery(embedding, labels=labels, features=features[torch.randperm(400)])
    assert shuffled.weights == fitted.weights


def test_bare_vectors_without_labels() -> None:
    embedding = Embedding.point(draw(300, 8))
    doubt = Doubt.fit(embedding, None)
    assert doubt.record["mistakes"] is None
    queries = Embedding.point(torch.cat([draw(20, 8, seed=1), 50 + draw(20, 8, seed=2)]))
    found = doubt.of(hits_among(queries, embedding, k=10), queries=queries)
    assert found.disagreeing is None
    assert float(found.total[20:].min()) > float(found.total[:20].median())
    assert found.reason(0)


def test_places_count_hits_that_lie_elsewhere() -> None:
    centers = 1000 * draw(20, 2)
    which = torch.arange(400) % 20
    places = Positions(centers[which] + 5 * draw(400, 2, seed=1))
    embedding = Embedding.point(draw(20, 6, seed=2)[which] + 0.7 * draw(400, 6, seed=3))
    doubt = Doubt.fit(embedding, places)
    assert 0 < doubt.record["mistakes"] < 400
    rows = torch.arange(400)
    hits, positions = hits_with_truth(embedding, embedding, places, itself=rows)
    assert positions is not None
    found = doubt.of(hits, queries=embedding, positions=positions, itself=rows)
    correct = which[hits.row[:, 0]] == which
    assert error_auroc(found.total, correct) > 0.6
    gap = (positions[:, 1:] - positions[:, :1]).norm(dim=-1)
    assert torch.equal(found.disagreeing[0], (gap > 25).sum(1))  # type: ignore[index]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_fewer_than_ten_hits_and_one_query(k: int) -> None:
    embedding, labels, features = items(60, seed=9)
    doubt = Doubt.fit(embedding, labels, features=features)
    hits = hits_among(embedding[:1], embedding, k=k, gallery_labels=labels)
    found = doubt.of(hits, features[:1], queries=embedding[:1])
    assert found.total.shape == (1,)
    assert 0 <= float(found.total) <= 1
    assert found.reason(0)


def test_missing_hits_are_not_counted() -> None:
    row = torch.tensor([[3, 1, -1, -1]])
    score = torch.tensor([[0.9, 0.5, -torch.inf, -torch.inf]])
    hits = Hits(row, score, torch.where(row < 0, torch.inf, 1.0), label=torch.tensor([[2, 4, -1, -1]]))
    found = hit_signals(hits)
    short = hit_signals(hits.first(2))
    for name, value in found.items():
        torch.testing.assert_close(value, short[name], msg=name)
    assert float(found["disagreement"]) == 1.0


def test_a_query_that_found_nothing_is_all_doubt(
    fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]
) -> None:
    embedding, _, features = items(2, seed=3)
    hits = hits_among(embedding, gallery[0], k=10, gallery_labels=gallery[1])
    nothing = torch.tensor([[True], [False]])
    assert hits.label is not None
    emptied = Hits(
        hits.row.masked_fill(nothing, -1),
        hits.score.masked_fill(nothing, -torch.inf),
        hits.expected_squared_distance.masked_fill(nothing, torch.inf),
        label=hits.label.masked_fill(nothing, -1),
    )
    found = fitted.of(emptied, features, queries=embedding)
    assert float(found.total[0]) == 1
    assert "nothing was found" in found.reason(0)
    torch.testing.assert_close(found.total[1], fitted.of(hits, features, queries=embedding).total[1])
    bare = Hits(emptied.row, emptied.score, emptied.expected_squared_distance)
    assert all(bool(value.isfinite().all()) for value in hit_signals(bare).values())
    with pytest.raises(InputError, match="at least one hit"):
        hit_signals(hits.first(0))


def test_an_item_without_label_confirms_nothing() -> None:
    hits = Hits(
        torch.arange(3).view(1, 3),
        torch.tensor([[0.9, 0.8, 0.7]]),
        torch.ones(1, 3),
        label=torch.tensor([[-1, -1, 5]]),
    )
    assert float(hit_signals(hits)["disagreement"]) == 1.0


@pytest.mark.parametrize(
    ("embedding", "names"),
    [
        (Embedding.point(draw(4, 3)), {"image"}),
        (Embedding.gaussian(draw(4, 3), torch.ones(4, 1)), {"image"}),
        (Embedding.vmf(draw(4, 3), torch.tensor([0.0, 1.0, 2.0, 3.0])), {"image"}),
        (Embedding.projected_gaussian(draw(4, 3), torch.ones(4, 1)), {"image", "model"}),
        (Embedding.empirical(draw(5, 4, 3)), {"model"}),
    ],
)
def test_families_say_what_they_can(embedding: Embedding, names: set[str]) -> None:
    found = query_signals(embedding)
    assert set(found) == names
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_what_it_was_fitted_with_must_be_given(
    fitted: Doubt, gallery: tuple[Embedding, Tensor, Tensor]
) -> None:
    embedding, _, _ = items(5, seed=3)
    hits = hits_among(embedding, gallery[0], k=10, gallery_labels=gallery[1])
    with pytest.raises(InputError, match="fitted with"):
        fitted.of(hits)
    with pytest.raises(InputError, match="Features have"):
        fitted.of(hits, queries=embedding)
    with pytest.raises(InputError, match="at least 2"):
        Doubt.fit(embedding[:1], torch.zeros(1, dtype=torch.long))


def test_unit_vectors_have_no_length_to_doubt_by() -> None:
    rows = torch.nn.functional.normalize(draw(200, 6), dim=1)
    assert "image" not in Doubt.fit(Embedding.point(rows), torch.arange(200) % 4).tails
