"""Every score against all pairs written out, and an evaluation that searches by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from doubtless.config import EvaluationConfig
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import EvaluationOptions, evaluate
from doubtless.search.neighbors import nearest, nearest_by, ranked_by
from doubtless.search.scores import ScoreName, Search, gallery_vectors, query_vectors

SCORES_OF: list[tuple[str, ScoreName]] = [
    ("point", "direction"),
    ("gaussian", "direction"),
    ("gaussian", "expected-distance"),
    ("gaussian", "mutual-likelihood"),
    ("projected-gaussian", "expected-distance"),
    ("empirical", "expected-distance"),
    ("vmf", "expected-distance"),
    ("vmf", "expected-likelihood"),
]


def an_embedding(family: str, count: int, *, seed: int) -> Embedding:
    generator = torch.Generator().manual_seed(seed)
    location = torch.randn(count, 4, generator=generator, dtype=torch.double)
    variance = torch.rand(count, 4, generator=generator, dtype=torch.double) * 2
    if family == "gaussian":
        return Embedding.gaussian(location, variance)
    if family == "projected-gaussian":
        return Embedding.projected_gaussian(location, variance)
    if family == "empirical":
        return Embedding.empirical(torch.randn(6, count, 4, generator=generator).double() + location)
    if family == "vmf":
        return Embedding.vmf(torch.nn.functional.normalize(location, dim=1), 20 * variance[:, 0])
    return Embedding.point(location)


def by_hand(score: str, query: Embedding, item: Embedding) -> float:
    """One pair's score from its definition."""
    if score == "direction":
        return float((query.direction * item.direction).sum())
    if score == "expected-distance":
        return -float(query.expected_squared_distance(item)[0])
    if score == "mutual-likelihood":
        total = query.parameters["variance"] + item.parameters["variance"]
        density = torch.distributions.Normal(query.location, total.sqrt())
        return float(density.log_prob(item.location).sum())
    from doubtless.sphere import log_normalizer

    kappas = [part.parameters["concentration"] for part in (query, item)]
    sum_length = (kappas[0] * query.direction + kappas[1] * item.direction).norm(dim=1)
    logs = [log_normalizer(4, kappa) for kappa in (*kappas, sum_length)]
    return float((logs[0] + logs[1] - logs[2])[0])


@pytest.mark.parametrize(("family", "score"), SCORES_OF)
def test_order_is_that_of_all_pairs_written_out(family: str, score: ScoreName) -> None:
    queries, gallery = an_embedding(family, 5, seed=0), an_embedding(family, 30, seed=1)
    expected = torch.tensor(
        [[by_hand(score, queries[i], gallery[j]) for j in range(30)] for i in range(5)]
    ).argsort(dim=1, descending=True)
    search = Search(score, gallery)
    assert torch.equal(search.nearest(queries, k=30).index, expected)
    without = expected[:, 0]
    left_out = search.nearest(queries, k=29, exclude=without)
    assert torch.equal(left_out.index, expected[:, 1:])
    for rows, found in search.ranked(queries, depth=torch.tensor([3, 1, 30, 2, 7])):
        assert torch.equal(found.index, expected[rows, : found.index.shape[1]])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("family", "score"), SCORES_OF)
def test_devices_agree(family: str, score: ScoreName) -> None:
    queries, gallery = an_embedding(family, 5, seed=0), an_embedding(family, 30, seed=1)
    expected = Search(score, gallery).nearest(queries, k=30)
    search = Search(score, gallery.to("cuda"))
    found = search.nearest(queries.to("cuda"), k=30)
    assert torch.equal(found.index.cpu(), expected.index)
    assert search.cosines(queries.to("cuda"), found).is_cuda
    for rows, part in search.ranked(queries.to("cuda"), depth=torch.full((5,), 3)):
        assert torch.equal(part.index.cpu(), expected.index[rows.cpu(), :3])


def test_cosines_of_what_was_found_are_cosines() -> None:
    queries, gallery = an_embedding("gaussian", 5, seed=0), an_embedding("gaussian", 30, seed=1)
    search = Search("expected-distance", gallery)
    found = search.nearest(queries, k=4)
    every = queries.direction @ gallery.direction.T
    torch.testing.assert_close(search.cosines(queries, found), every.gather(1, found.index))


def test_expected_distance_is_one_inner_product() -> None:
    queries, gallery = an_embedding("gaussian", 5, seed=0), an_embedding("gaussian", 30, seed=1)
    product = query_vectors("expected-distance", queries) @ gallery_vectors("expected-distance", gallery).T
    distance = queries.pairwise_expected_squared_distance(gallery)
    constant = distance + 2 * product  # what is left belongs to the query alone
    torch.testing.assert_close(constant, constant[:, :1].expand_as(constant))


def test_any_score_finds_what_inner_products_find() -> None:
    rows = torch.nn.functional.normalize(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))
    rows[7] = rows[3]  # a tie
    everyone = torch.arange(40)

    def scores(chosen: Tensor) -> Tensor:
        return (rows[chosen].double() @ rows.double().T).float()

    expected = nearest(rows, rows, k=5, exclude=everyone)
    here = torch.device("cpu")
    found = nearest_by(scores, (40, 40), k=5, device=here, exclude=everyone)
    assert torch.equal(found.index, expected.index)
    assert len(nearest_by(scores, (0, 40), k=5, device=here).index) == 0
    with pytest.raises(InputError, match=r"k = 40 is larger than the gallery, which has 39 items"):
        list(ranked_by(scores, (40, 40), depth=torch.full((40,), 40), exclude=everyone))


def test_evaluation_searches_by_the_score() -> None:
    """Two classes at one place; only the variances tell which item is near in expectation."""
    location = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.1], [1.0, 0.1]])
    variance = torch.tensor([[0.1], [0.1], [9.0], [9.0]])
    labels = torch.tensor([0, 0, 1, 1])
    embedding = Embedding.gaussian(location, variance)
    options = EvaluationOptions(bootstrap=0, clusters=False, consensus_samples=0)
    by_direction = evaluate(embedding, labels, options=options)
    by_distance = evaluate(embedding, labels, options=replace(options, score="expected-distance"))
    assert by_direction["recall@1"] == 1
    assert by_distance["recall@1"] == 0.5  # a vague item is far from everyone, its own class included
    assert by_distance.protocol["score"] == "expected-distance"


def test_configurations_know_every_score() -> None:
    assert EvaluationConfig.model_fields["score"].annotation == ScoreName


def test_wrong_families_and_names_get_a_sentence() -> None:
    points = an_embedding("point", 3, seed=0)
    with pytest.raises(InputError, match=r"mutual-likelihood is for gaussian embeddings, got point"):
        Search("mutual-likelihood", points).nearest(points, k=1)
    with pytest.raises(InputError, match="did you mean 'expected-distance'"):
        Search("expected-distanc", points)  # type: ignore[arg-type]
