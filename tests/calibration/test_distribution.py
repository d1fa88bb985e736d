"""One distribution over labels and none of these: formulas against loops, scipy and counting; edges; no leaks."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from doubtless.calibration.choice import ConditionalLogit, shares
from doubtless.calibration.distribution import (
    AT_FITTING,
    Distribution,
    LabelDistribution,
    Weights,
    none_features,
    shift_of_none,
)
from doubtless.calibration.evidence import evidence as evidence_module
from doubtless.calibration.evidence.background import Background
from doubtless.calibration.evidence.evidence import NARROW, WIDE, LabelHits, Statistics, columns, evidence
from doubtless.calibration.evidence.within import PRIOR_ITEMS, LabelSpread, WithinMetric
from doubtless.calibration.searches import FittedDistribution, Sample, Searches, fit_distribution
from doubtless.errors import InputError

LABELS, EACH, DIM, DEPTH = 24, 8, 12, 20


def made(labels: int, each: int, *, noise: float = 0.35, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors around a centre per label, wider in some directions than in others."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.nn.functional.normalize(torch.randn(labels, DIM, generator=generator), dim=1)
    label = torch.arange(labels).repeat_interleave(each)
    wide = torch.linspace(0.3, 1.5, DIM)
    around = centre[label] + noise * wide * torch.randn(len(label), DIM, generator=generator)
    return torch.nn.functional.normalize(around, dim=1), label


def found(score: Tensor, label: Tensor, queries: Tensor, k: int = DEPTH) -> LabelHits:
    best = score.topk(k)
    there = best.values.isfinite()
    return LabelHits(torch.where(there, label[best.indices], -1), best.values, best.indices, queries)


def searches_of(items: Tensor, label: Tensor, *, vectors: bool = True) -> Searches:
    score = items @ items.T
    present = found(score.clone().fill_diagonal_(-torch.inf), label, items)
    absent = found(score.masked_fill(label.unsqueeze(0) == label.unsqueeze(1), -torch.inf), label, items)
    if not vectors:
        present, absent = (LabelHits(hits.label, hits.score) for hits in (present, absent))
        return Searches(present, label, absent, label)
    sample = Sample(items, label, torch.arange(len(label)))
    return Searches(present, label, absent, label, lambda rows: items[rows], sample)


@pytest.fixture(scope="module")
def gallery() -> tuple[Tensor, Tensor]:
    items, label = made(2 * LABELS, EACH)
    return items[: LABELS * EACH], label[: LABELS * EACH]


@pytest.fixture(scope="module")
def fitted(gallery: tuple[Tensor, Tensor]) -> FittedDistribution:
    return fit_distribution(searches_of(*gallery))


@pytest.fixture(scope="module")
def outside(gallery: tuple[Tensor, Tensor]) -> tuple[LabelHits, Tensor]:
    """Hits of new photos: of the gallery's labels, then of labels that are not in it; and their labels, or −1."""
    items, label = gallery
    every, codes = made(2 * LABELS, 3 * EACH)  # the same centres, since they are drawn first
    queries = every[torch.arange(len(every)) % 3 > 0]
    truth = codes[torch.arange(len(every)) % 3 > 0]
    truth = torch.where(truth < LABELS, truth, -1)
    return found(queries @ items.T, label, queries), truth


class TestEvidence:
    def test_equals_loops_over_queries_and_labels(self) -> None:
        items, label = made(5, 4)
        label = label.clone()
        label[3] = -1  # an item without a label
        queries, _ = made(5, 1, seed=3)
        hits = found(queries @ items.T, label, queries, k=9)
        spread = LabelSpread.fit(torch.rand(20, generator=torch.Generator().manual_seed(1)), label)
        metric = WithinMetric.fit(items, label)
        given = evidence(hits, Statistics(0.1, spread, metric), vectors=lambda rows: items[rows])
        for q in range(len(queries)):
            seen = [code for code in dict.fromkeys(hits.label[q].tolist()) if code >= 0]
            assert [code for code in given.label[q].tolist() if code >= 0] == seen
            kept = [float(s) / 0.1 for s, code in zip(hits.score[q], hits.label[q], strict=True) if code >= 0]
            assert given.scores["first"][q] == pytest.approx(max(kept))
            assert given.scores["last"][q] == pytest.approx(min(kept))
            for m, code in enumerate(seen):
                rows = hits.row[q][hits.label[q] == code]
                scores = [float(s) / 0.1 for s in hits.score[q][hits.label[q] == code]]
                assert given.table["best"][q, m] == pytest.approx(max(scores))
                for name, width in (("narrow", NARROW), ("wide", WIDE)):
                    expected = width * math.log(sum(math.exp(s / width) for s in scores))
                    assert given.table[name][q, m] == pytest.approx(expected, rel=1e-6)
                z, mean = metric(queries[q]), metric(items[rows]).mean(0)
                factor = len(rows) / (len(rows) + 1)
                expected = -float((z - mean).square().sum()) * factor
                assert given.table["distance"][q, m] == pytest.approx(expected, rel=1e-4)
                cosine = float(z @ mean / (z.norm() * mean.norm()))
                assert given.table["cosine"][q, m] == pytest.approx(cosine, abs=1e-5)

    def test_what_is_asked_beside_a_query_does_not_matter(self) -> None:
        # Among many queries items are fewer than means and go through the metric first; of one query means do.
        items, label = made(5, 4)
        queries, _ = made(5, 30, seed=3)
        hits = found(queries @ items.T, label, queries, k=9)
        by = Statistics(0.1, LabelSpread.fit(torch.ones(20), label), WithinMetric.fit(items, label))
        together = evidence(hits, by, vectors=lambda rows: items[rows])
        for q in range(0, len(queries), 29):
            alone = evidence(hits[q : q + 1], by, vectors=lambda rows: items[rows])
            width = alone.label.shape[1]
            for name, value in alone.table.items():
                assert torch.allclose(value, together.table[name][q : q + 1, :width], rtol=0, atol=1e-11)

    def test_a_label_far_behind_keeps_a_finite_kernel(self) -> None:
        hits = LabelHits(torch.tensor([[0, 1]]), torch.tensor([[1.0, -1.0]]))
        given = evidence(hits, Statistics(1e-3, LabelSpread.fit(torch.ones(2), torch.tensor([0, 1]))))
        assert given.table["narrow"].tolist() == [[1000.0, -1000.0]]

    def test_columns_number_labels_by_their_first_hit(self) -> None:
        hits = LabelHits(torch.tensor([[4, -1, 4, 2], [-1, -1, -1, -1]]), torch.zeros(2, 4))
        slot, label = columns(hits)
        assert label.tolist() == [[4, 2], [-1, -1]]
        assert slot[0, [0, 2, 3]].tolist() == [0, 0, 1]

    def test_vectors_of_a_metric_must_be_given(self) -> None:
        hits = LabelHits(torch.tensor([[0]]), torch.tensor([[0.5]]))
        spread = LabelSpread.fit(torch.ones(1), torch.tensor([0]))
        with pytest.raises(InputError, match="fitted with vectors"):
            evidence(hits, Statistics(1.0, spread, WithinMetric(torch.zeros(2), torch.eye(2))))

    def test_shapes_are_checked(self) -> None:
        with pytest.raises(InputError, match="one shape"):
            LabelHits(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2))
        with pytest.raises(InputError, match="rows the vectors"):
            LabelHits(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3), query=torch.zeros(2, 4))


class TestWithin:
    def test_the_metric_is_an_inverse_root_of_the_shrunk_covariance(self) -> None:
        items, label = made(6, 5)
        metric = WithinMetric.fit(items, label, shrinkage=0.3)
        covariance = torch.zeros(DIM, DIM, dtype=torch.double)
        for code in range(6):
            inside = items[label == code].double()
            covariance += (inside - inside.mean(0)).T @ (inside - inside.mean(0))
        covariance /= len(items) - 6
        wanted = 0.7 * covariance + 0.3 * covariance.trace() / DIM * torch.eye(DIM)
        transform = metric.transform.double()
        white = transform.T @ wanted @ transform
        assert torch.allclose(white, torch.eye(DIM, dtype=torch.double), atol=1e-4)

    def test_fewer_items_than_directions_leave_a_finite_metric(self) -> None:
        items, label = made(2, 3)
        metric = WithinMetric.fit(items, label, shrinkage=0.0)
        inside = items - torch.stack([items[label == code].mean(0) for code in (0, 1)])[label]
        assert bool(metric.transform.isfinite().all())
        white = (inside @ metric.transform).double()
        assert torch.linalg.eigvalsh(white.T @ white / 4)[-4:].tolist() == pytest.approx([1.0] * 4, abs=1e-2)

    def test_one_item_per_label_leaves_the_plain_metric(self) -> None:
        items, _ = made(6, 1)
        assert torch.equal(WithinMetric.fit(items, torch.arange(6)).transform, torch.eye(DIM))

    def test_the_spread_of_a_label_is_drawn_to_all_labels(self) -> None:
        value, label = torch.tensor([0.5, 0.7, 0.9, 0.2]), torch.tensor([0, 0, 1, 1])
        mean, deviation = LabelSpread.fit(value, label).of(torch.tensor([[0, 1, 5]]))
        whole = value.double()
        for m, own in ((0, whole[:2]), (1, whole[2:]), (2, whole[:0])):
            expected = (own.sum() + PRIOR_ITEMS * whole.mean()) / (len(own) + PRIOR_ITEMS)
            apart = (own - expected).square().sum() + PRIOR_ITEMS * (
                whole.var(correction=0) + (whole.mean() - expected) ** 2
            )
            assert mean[0, m] == pytest.approx(float(expected))
            assert deviation[0, m] == pytest.approx(float((apart / (len(own) + PRIOR_ITEMS)).sqrt()))

    def test_without_equals_a_fit_that_never_had_it_but_for_the_average(self) -> None:
        value, label = torch.tensor([0.5, 0.7, 0.9, 0.2, -torch.inf]), torch.tensor([0, 0, 1, 1, 1])
        spread = LabelSpread.fit(value, label)
        left, _ = spread.of(label.unsqueeze(1), without=(label, value))
        for i in range(5):
            own = value[(label == label[i]) & (torch.arange(5) != i) & value.isfinite()].double()
            expected = (own.sum() + PRIOR_ITEMS * spread.mean) / (len(own) + PRIOR_ITEMS)
            assert left[i, 0] == pytest.approx(float(expected))


class TestChoice:
    def test_the_optimum_is_scipys(self) -> None:
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(60, 5, 3, generator=generator, dtype=torch.double)
        there = torch.rand(60, 5, generator=generator) < 0.7
        there[:, 0] = True
        gumbel = -torch.rand(60, 5, generator=generator, dtype=torch.double).log().neg().log().neg()
        utility = table @ torch.tensor([1.0, -2.0, 0.0], dtype=torch.double) - gumbel
        chosen = utility.masked_fill(~there, -torch.inf).argmax(1)
        fitted = ConditionalLogit.fit(table, there, chosen)
        standard = (table - fitted.mean) / fitted.scale

        def cost(weight: Tensor) -> Tensor:
            utility = (standard @ weight).masked_fill(~there, -torch.inf)
            taken = utility.gather(1, chosen.unsqueeze(1)).squeeze(1)
            return (utility.logsumexp(1) - taken).sum() + 0.5 * weight @ weight

        best = minimize(lambda w: float(cost(torch.tensor(w))), [0.0] * 3, tol=1e-10)
        assert fitted.weight.tolist() == pytest.approx(best.x.tolist(), abs=1e-4)
        weight = fitted.weight.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(cost(weight), weight)
        assert float(gradient.abs().max()) < 1e-7

    def test_bounded_weights_are_the_optimum_within_their_bounds(self) -> None:
        """Two columns that say nearly the same, and nothing but noise: unbounded, one of them would be negative."""
        generator = torch.Generator().manual_seed(1)
        cosine = torch.rand(200, 6, 1, generator=generator, dtype=torch.double)
        table = torch.cat([torch.randn(cosine.shape, generator=generator), cosine, cosine.square()], dim=2)
        there = torch.ones(200, 6, dtype=torch.bool)
        chosen = (
            (6 * cosine - 5 * cosine.square()).squeeze(2).softmax(1).multinomial(1, generator=generator)[:, 0]
        )
        rising = torch.tensor([False, True, True])
        free, fitted = (ConditionalLogit.fit(table, there, chosen, rising=one) for one in (None, rising))
        assert float(free.weight[2]) < 0
        assert float(fitted.weight[2]) == 0
        standard = (table - fitted.mean) / fitted.scale

        def cost(weight: Tensor) -> Tensor:
            utility = standard @ weight
            return (utility.logsumexp(1) - utility[torch.arange(200), chosen]).sum() + 0.5 * weight @ weight

        best = minimize(
            lambda w: float(cost(torch.tensor(w))),
            [0.1] * 3,
            bounds=[(None, None), (0, None), (0, None)],
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        assert fitted.weight.tolist() == pytest.approx(best.x.tolist(), abs=1e-4)

    def test_separable_choices_have_finite_weights(self) -> None:
        table = torch.tensor([[[1.0], [0.0]]]).expand(50, 2, 1)
        fitted = ConditionalLogit.fit(
            table, torch.ones(50, 2, dtype=torch.bool), torch.zeros(50, dtype=torch.long)
        )
        assert bool(fitted.weight.isfinite().all())
        assert float(shares(fitted(table), torch.ones(50, 2, dtype=torch.bool))[0, 0]) > 0.9

    def test_what_does_not_exist_cannot_be_chosen(self) -> None:
        there = torch.tensor([[True, False]])
        with pytest.raises(InputError, match="does not exist"):
            ConditionalLogit.fit(torch.zeros(1, 2, 1), there, torch.tensor([1]))
        with pytest.raises(InputError, match="got shapes"):
            ConditionalLogit.fit(torch.zeros(0, 2, 1), there[:0], torch.zeros(0, dtype=torch.long))


class TestShift:
    @pytest.mark.parametrize("missed", [0.0, 0.2])
    def test_equals_counting_in_a_world_with_that_share(self, missed: float) -> None:
        """Queries of one appearance x: counted at the fitted share, shifted, is counted elsewhere."""
        found_with_x, none_with_x = 0.3, 0.7  # P(x | found), P(x | none), the same in every world

        def counted(unknown: float) -> float:
            none = unknown + (1 - unknown) * missed
            return none * none_with_x / (none * none_with_x + (1 - none) * found_with_x)

        fitted = math.log(counted(AT_FITTING) / (1 - counted(AT_FITTING)))
        for unknown in (0.01, 0.1, 0.5, 0.9):
            odds = fitted + shift_of_none(unknown, missed=missed)
            assert 1 / (1 + math.exp(-odds)) == pytest.approx(counted(unknown))

    def test_no_unknown_and_nothing_missed_is_never_none(self) -> None:
        assert shift_of_none(0.0) == -math.inf

    @pytest.mark.parametrize("unknown", [-0.1, 1.0, math.nan])
    def test_shares_are_checked(self, unknown: float) -> None:
        with pytest.raises(InputError, match="share of unknown"):
            shift_of_none(unknown)

    def test_moves_none_alone(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        few, many = (
            fitted.model(outside[0], vectors=lambda rows: items[rows], unknown=share) for share in (0.1, 0.5)
        )
        assert bool((few.none < many.none).all())
        within = [answer.probability / (1 - answer.none).unsqueeze(1) for answer in (few, many)]
        rounding = 1e-9 / float((1 - many.none).min())  # probabilities are told with nine decimals
        assert torch.allclose(*within, rtol=0, atol=rounding)


class TestDistribution:
    def test_is_right_more_often_and_keeps_its_word(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        hits, truth = outside
        answer = fitted.model(hits, vectors=lambda rows: items[rows], unknown=0.5)
        label, chance = answer.first
        known = truth >= 0
        assert (label == truth)[known].double().mean() >= (hits.label[:, 0] == truth)[known].double().mean()
        assert float(chance.mean()) == pytest.approx(float((label == truth).double().mean()), abs=0.06)
        assert float(answer.none.mean()) == pytest.approx(0.5, abs=0.06)
        assert float(answer.none[~known].mean()) > float(answer.none[known].mean()) + 0.2

    def test_sums_to_one_and_holds_no_other_labels(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        answer = fitted.model(outside[0], vectors=lambda rows: items[rows])
        total = answer.probability.sum(1) + answer.none
        assert torch.allclose(total, torch.ones_like(total), atol=1e-12)
        assert bool((answer.probability >= 0).all())
        assert bool((answer.probability[answer.label < 0] == 0).all())
        for found_labels, given in zip(outside[0].label.tolist(), answer.label.tolist(), strict=True):
            assert set(found_labels) == set(given) - {-1}

    def test_order_of_hits_does_not_matter(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        hits = outside[0]
        tied = LabelHits(hits.label, hits.score.clone().fill_(0.6), hits.row, hits.query)
        order = torch.randperm(DEPTH, generator=torch.Generator().manual_seed(4))
        mixed = LabelHits(tied.label[:, order], tied.score[:, order], tied.row[:, order], tied.query)
        plain, turned = (fitted.model(each, vectors=lambda rows: items[rows]) for each in (tied, mixed))
        assert torch.allclose(plain.of(hits.label), turned.of(hits.label), atol=1e-6)
        assert torch.allclose(plain.none, turned.none, atol=1e-6)

    def test_queries_do_not_see_each_other(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        whole = fitted.model(outside[0], vectors=lambda rows: items[rows])
        for q in (0, 7):
            alone = fitted.model(outside[0][torch.tensor([q])], vectors=lambda rows: items[rows])
            assert torch.allclose(alone.none, whole.none[q], atol=1e-6)
            assert torch.allclose(alone.first[1], whole.first[1][q], atol=1e-6)

    @pytest.mark.parametrize("share", [0.0, 0.1])
    def test_nothing_labelled_is_none(self, fitted: FittedDistribution, share: float) -> None:
        query = torch.zeros(2, DIM)
        unlabelled = LabelHits(
            torch.full((2, 3), -1), torch.rand(2, 3), torch.zeros(2, 3, dtype=torch.long), query
        )
        nothing = LabelHits(
            torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.long), query
        )
        for hits in (unlabelled, nothing):
            answer = fitted.model(hits, vectors=lambda rows: torch.zeros(len(rows), DIM), unknown=share)
            assert answer.none.tolist() == [1.0, 1.0]
            assert float(answer.probability.sum()) == 0.0
            assert answer.first[0].tolist() == [-1, -1]

    def test_fewer_hits_than_k_equal_a_search_that_stops_there(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        hits = outside[0]
        gone = torch.arange(DEPTH) >= 6
        short = LabelHits(*(value[:, :6] for value in (hits.label, hits.score, hits.row)), hits.query)
        padded = LabelHits(
            hits.label.masked_fill(gone, -1),
            hits.score.masked_fill(gone, -torch.inf),
            hits.row.masked_fill(gone, -1),
            hits.query,
        )
        one, other = (fitted.model(each, vectors=lambda rows: items[rows]) for each in (short, padded))
        assert torch.allclose(one.none, other.none, atol=1e-6)
        assert torch.allclose(one.of(short.label), other.of(short.label), atol=1e-6)

    def test_one_label_shares_with_none_alone(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        hits = LabelHits(
            torch.zeros_like(outside[0].label), outside[0].score, outside[0].row, outside[0].query
        )
        answer = fitted.model(hits, vectors=lambda rows: items[rows])
        assert answer.label.shape == (len(hits), 1)
        assert torch.allclose(answer.probability.squeeze(1), 1 - answer.none)

    def test_state_is_small_json_and_tensors_and_comes_back_equal(
        self, fitted: FittedDistribution, gallery: tuple[Tensor, Tensor], outside: tuple[LabelHits, Tensor]
    ) -> None:
        items, _ = gallery
        tensors, record = fitted.model.state()
        back = LabelDistribution.from_state(tensors, json.loads(json.dumps(record)))
        one, other = (model(outside[0], vectors=lambda rows: items[rows]) for model in (fitted.model, back))
        assert torch.equal(one.probability, other.probability)
        assert torch.equal(one.none, other.none)

    def test_what_it_gave_to_labels_and_outcomes(self) -> None:
        answer = Distribution(
            torch.tensor([[3, 8], [5, -1]]),
            torch.tensor([[0.5, 0.2], [0.6, 0.0]], dtype=torch.double),
            torch.tensor([0.3, 0.4], dtype=torch.double),
        )
        assert answer.of(torch.tensor([[8, 3, 4], [5, -1, 5]])).tolist() == [[0.2, 0.5, 0.0], [0.6, 0.0, 0.6]]
        assert answer.outcome(torch.tensor([8, 7])).tolist() == [0.2, 0.4]
        assert answer.outcome(torch.tensor([-1, -1])).tolist() == [0.3, 0.4]
        assert answer.first[0].tolist() == [3, 5]
        assert len(answer[torch.tensor([1])]) == 1

    def test_none_features_stay_finite_where_a_label_is_certain(self) -> None:
        hits = LabelHits(torch.tensor([[0, 1], [2, -1]]), torch.tensor([[1.0, -1.0], [1.0, -torch.inf]]))
        given = evidence(hits, Statistics(1e-4, LabelSpread.fit(torch.ones(3), torch.arange(3))))
        features = none_features(given, torch.tensor([[1e4, -1e4], [0.0, 0.0]], dtype=torch.double))
        assert bool(features.isfinite().all())


class TestFit:
    def test_is_deterministic(self, gallery: tuple[Tensor, Tensor], fitted: FittedDistribution) -> None:
        again = fit_distribution(searches_of(*gallery))
        for name, value in fitted.model.state()[0].items():
            assert torch.equal(value, again.model.state()[0][name]), name

    def test_present_and_absent_weigh_as_stated_whatever_their_numbers(
        self, gallery: tuple[Tensor, Tensor], fitted: FittedDistribution
    ) -> None:
        """The intercept is hardly penalised, so the mean of none is the share of none among weighted queries."""
        few = fitted.absent[torch.arange(0, LABELS * EACH, 5)]
        weights = Weights.fit(fitted.present, gallery[1], few)
        present, absent = (weights(given, unknown=AT_FITTING).none.mean() for given in (fitted.present, few))
        mean = (1 - AT_FITTING) * present + AT_FITTING * absent
        assert float(mean) == pytest.approx((1 - AT_FITTING) * weights.missed + AT_FITTING, abs=1e-4)

    def test_scores_alone_serve_without_vectors(self, gallery: tuple[Tensor, Tensor]) -> None:
        searches = searches_of(*gallery, vectors=False)
        model = fit_distribution(searches).model
        assert model.by.metric is None
        answer = model(searches.present)
        assert torch.allclose(answer.probability.sum(1) + answer.none, torch.ones(len(answer)).double())

    def test_labels_of_one_item_are_told_from_others(self) -> None:
        """They are found by nobody but by queries from outside, and hold none of the fit's label-wise numbers."""
        items, label = made(16, 4)
        lonely, _ = made(20, 1, seed=9)
        everything = torch.cat([items, lonely])
        codes = torch.cat([label, 16 + torch.arange(20)])
        model = fit_distribution(searches_of(everything, codes)).model
        answer = model(found(lonely @ everything.T, codes, lonely), vectors=lambda rows: everything[rows])
        assert bool((answer.first[0] == 16 + torch.arange(20)).all())
        assert model.weights.missed == pytest.approx(20 / 84, abs=0.1)

    def test_weights_of_a_fold_saw_nothing_of_its_labels(
        self, gallery: tuple[Tensor, Tensor], fitted: FittedDistribution
    ) -> None:
        """Wrong labels in one fold change every weight but those that answer for that fold."""
        items, label = gallery
        searches = searches_of(items, label)
        held = fitted.folds[0] == 0
        assert len(set(label[held].tolist()) & set(label[~held].tolist())) == 0
        assert bool((fitted.folds[0] == fitted.folds[1]).all())
        poisoned = fitted.present.table["narrow"].clone()
        poisoned[held] = -poisoned[held]
        rows = ~held
        present = type(fitted.present)(
            fitted.present.label, fitted.present.table | {"narrow": poisoned}, fitted.present.scores
        )
        same = Weights.fit(present[rows], searches.label[rows], fitted.absent[fitted.folds[1] != 0])
        assert torch.equal(same.choice.weight, fitted.others[0].choice.weight)
        other = Weights.fit(present, searches.label, fitted.absent)
        assert not torch.allclose(other.choice.weight, fitted.model.weights.choice.weight, atol=1e-3)

    def test_labels_that_are_noise_look_like_noise_when_unseen(self) -> None:
        """With random labels nothing can be known; in-sample weights may flatter, unseen ones must not."""
        generator = torch.Generator().manual_seed(0)
        items = torch.nn.functional.normalize(torch.randn(160, DIM, generator=generator), dim=1)
        label = torch.arange(40).repeat(4)
        present, absent = fit_distribution(searches_of(items, label)).unseen(unknown=0.5)
        assert float(present.none.mean()) == pytest.approx(float(absent.none.mean()), abs=0.05)
        label_given, chance = present.first
        right = (label_given == label).double().mean()
        assert float(chance.mean()) == pytest.approx(float(right), abs=0.08)

    def test_present_queries_are_measured_without_themselves_absent_ones_without_their_label(
        self, gallery: tuple[Tensor, Tensor], fitted: FittedDistribution
    ) -> None:
        """Evidence of a query stays the same when what it must not have seen of the sample is changed."""
        items, label = gallery
        searches = searches_of(items, label)
        changed = items.clone()
        changed[5] = -changed[5]
        assert searches.sample is not None
        sample = Sample(changed, label, searches.sample.row)
        other = fit_distribution(
            Searches(searches.present, label, searches.absent, label, searches.vectors, sample)
        )
        distance, before = other.present.table["distance"], fitted.present.table["distance"]
        assert torch.equal(distance[5], before[5])
        assert not torch.equal(distance[0], before[0]) or not torch.equal(distance[1], before[1])
        of_label = label == label[5]
        distance, before = other.absent.table["distance"], fitted.absent.table["distance"]
        assert torch.equal(distance[of_label], before[of_label])
        assert not torch.equal(distance[~of_label], before[~of_label])

    def test_vectors_are_looked_up_once_or_fold_by_fold_with_the_same_result(
        self, gallery: tuple[Tensor, Tensor], fitted: FittedDistribution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        items, label = gallery
        asked: list[int] = []

        def vectors(rows: Tensor) -> Tensor:
            asked.append(len(rows))
            return items[rows]

        searches = replace(searches_of(items, label), vectors=vectors)
        found = [fit_distribution(searches)]
        assert len(asked) == 2  # of the items that present queries found, and of those that absent ones did
        monkeypatch.setattr(evidence_module, "AT_ONCE", 0)
        found.append(fit_distribution(searches))
        assert len(asked) > 2 + 2 * len(fitted.others)
        for other in found:
            for name, values in fitted.present.table.items():
                assert torch.allclose(other.present.table[name], values, rtol=1e-9, atol=1e-9)
            for name, values in fitted.absent.table.items():
                assert torch.allclose(other.absent.table[name], values, rtol=1e-9, atol=1e-9)

    def test_what_cannot_be_fitted_is_said(self, gallery: tuple[Tensor, Tensor]) -> None:
        items, label = gallery
        searches = searches_of(items, label)
        one = torch.zeros(EACH, dtype=torch.long)
        few = searches.present[torch.arange(EACH)]
        lonely = Searches(few, one, LabelHits(torch.full_like(few.label, -1), few.score), one)
        with pytest.raises(InputError, match="two labels or more"):
            fit_distribution(lonely)
        with pytest.raises(InputError, match="found an item of it"):
            Searches(searches.present, label, searches.present, label)
        with pytest.raises(InputError, match="one label per query"):
            Searches(searches.present, label[:3], searches.absent, label)
        with pytest.raises(InputError, match="labelled sample"):
            Searches(searches.present, label, searches.absent, label, searches.vectors, None)


class TestBackground:
    def test_equals_the_cosines_with_every_item(self) -> None:
        items, _ = made(6, 5)
        queries, _ = made(4, 1, seed=2)
        mean, deviation = Background.fit(items)(queries)
        cosine = queries.double() @ items.double().T
        assert torch.allclose(mean, cosine.mean(1), atol=1e-6)
        assert torch.allclose(deviation, cosine.std(1, correction=0), atol=1e-6)

    def test_queries_are_measured_without_themselves_and_without_their_label(
        self, gallery: tuple[Tensor, Tensor]
    ) -> None:
        items, label = gallery
        fitted = fit_distribution(searches_of(items, label))
        moved = items.clone()
        moved[0] = torch.nn.functional.normalize(-items[0] + 0.1, dim=0)
        again = fit_distribution(
            replace(searches_of(items, label), sample=Sample(moved, label, torch.arange(len(label))))
        )
        same = (
            fitted.present.scores["all"] - again.present.scores["all"]
        ).abs() < 1e-9  # sums, less a fold's
        assert bool(same[0])  # an item that is elsewhere changes what others are measured by, not itself
        assert 0 < int(same.sum()) < len(label)
        own = label == label[0]
        unchanged = (fitted.absent.scores["all"] - again.absent.scores["all"]).abs() < 1e-9
        assert bool(unchanged[own].all())
        assert not bool(unchanged.all())

    def test_a_nearer_cosine_never_speaks_against_a_label(self, fitted: FittedDistribution) -> None:
        cosine = torch.linspace(-1, 1, 201, dtype=torch.double).unsqueeze(1)
        table = torch.cat([torch.zeros(201, 3, dtype=torch.double), cosine, -((1 - cosine) ** 2) / 2], dim=1)
        for weights in (fitted.model.weights, *fitted.others):
            utility = weights.choice(table)
            assert bool((utility.diff() >= 0).all())
            assert float(utility[-1]) > float(utility[0])

    def test_weights_saved_before_the_cosine_stood_there_twice_answer_alike(
        self, fitted: FittedDistribution, outside: tuple[LabelHits, Tensor], gallery: tuple[Tensor, Tensor]
    ) -> None:
        items, label = gallery
        there = fitted.present.there
        names = ("narrow", "wide", "distance", "cosine")
        table = torch.stack([fitted.present.table[name] for name in names], dim=2)
        right = (fitted.present.label == label.unsqueeze(1)) & there
        old = ConditionalLogit.fit(
            table[right.any(1)], there[right.any(1)], right[right.any(1)].int().argmax(1)
        )
        model = LabelDistribution(replace(fitted.model.weights, choice=old), fitted.model.by)
        given = evidence(outside[0], model.by, vectors=lambda rows: items[rows])
        utility = old(torch.stack([given.table[name] for name in names], dim=2))
        told = model(outside[0], vectors=lambda rows: items[rows])
        within = told.probability / (1 - told.none).unsqueeze(1)
        assert torch.allclose(within, shares(utility, given.there), atol=1e-6)

    def test_calibrations_saved_before_answer_as_before(
        self, fitted: FittedDistribution, outside: tuple[LabelHits, Tensor], gallery: tuple[Tensor, Tensor]
    ) -> None:
        items, _ = gallery
        by = replace(fitted.model.by, background=None)
        present, absent = (
            replace(
                given,
                scores={name: value for name, value in given.scores.items() if not name.startswith("all")},
            )
            for given in (fitted.present, fitted.absent)
        )
        before = LabelDistribution(Weights.fit(present, gallery[1], absent), by)
        tensors, record = before.state()
        del record["background"]
        opened = LabelDistribution.from_state(tensors, json.loads(json.dumps(record)))
        hits = outside[0]
        one, other = (model(hits, vectors=lambda rows: items[rows]) for model in (before, opened))
        assert torch.equal(one.probability, other.probability)
