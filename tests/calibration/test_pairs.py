"""Two pictures: pairs as they are drawn, what is around them, P(same) on fresh pairs, decisions and promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from doubtless.calibration.evidence.surroundings import (
    FAINT,
    SHARPNESS,
    Surroundings,
    search_among,
    surrounding_features,
)
from doubtless.calibration.features import PAIR, pair_features, stacked
from doubtless.calibration.open_risk import share_wrong
from doubtless.calibration.pairs.answer import NOTHING_PROMISED, answer_pair, decided
from doubtless.calibration.pairs.labelled import DEEP, LabelledPairs, Recipe, draw_pairs, sharing_nothing
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.calibration.pairs.promise import PairOutcomes, PairTerms, coupled, promised
from doubtless.calibration.promise import WORST
from doubtless.calibration.regression import ProbabilityModel
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics import match_brier, match_ece
from tests.gallery.galleries import gallery

LABELS, EACH = 160, 24


def clear(
    labels: int = LABELS, each: int = EACH, *, noise: float = 0.3, seed: int = 0
) -> tuple[Embedding, Tensor]:
    """Many labels whose photos are easy to tell apart, as points."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(labels, 12, generator=torch.Generator().manual_seed(7))
    label = torch.arange(labels * each) % labels
    return Embedding.point(centre[label] + noise * torch.randn(len(label), 12, generator=generator)), label


@pytest.fixture(scope="module")
def fitted() -> PairCalibrator:
    return PairCalibrator.fit(*clear(), recipe=Recipe(pairs=4000))


class TestDrawing:
    def test_pairs_are_drawn_evenly_and_never_with_themselves(self) -> None:
        labels = torch.tensor([0, 0, 0, 1, 1, 2])
        first, second = draw_pairs(labels, 6000, generator=torch.Generator().manual_seed(0))
        same = labels[first] == labels[second]
        assert bool(same[:6000].all())
        assert not bool(same[6000:].any())
        assert not bool((first == second).any())
        own = first[:6000]
        assert not bool((own == 5).any())  # alone in its class
        partners = second[:6000][own == 0].bincount(minlength=6).double()
        assert partners[[1, 2]].sum() == (own == 0).sum()
        assert 0.4 < float(partners[1] / partners.sum()) < 0.6
        partners = second[6000:][first[6000:] == 3].bincount(minlength=6).double()
        assert bool((partners[[0, 1, 2, 5]] / partners.sum() > 0.2).all())
        with pytest.raises(InputError, match="two classes"):
            draw_pairs(torch.zeros(4).long(), 3, generator=torch.Generator())

    @pytest.mark.parametrize("count", [1, 7, 40])
    def test_labels_take_turns_whatever_their_size(self, count: int) -> None:
        labels = torch.tensor([0] * 50 + [1, 1, 2, 2, 3])
        first, _ = draw_pairs(labels, count, generator=torch.Generator().manual_seed(0))
        for part in (first[:count], first[count:]):
            turns = labels[part].bincount(minlength=4)
            assert turns[3] == 0
            assert turns[:3].max() - turns[:3].min() <= 1

    def test_near_pairs_are_the_nearest_of_other_labels_by_a_loop(self) -> None:
        embedding, labels = gallery(150, points=True)
        pairs = LabelledPairs.drawn(
            embedding, labels, Recipe(pairs=40, near=0.25), generator=torch.Generator().manual_seed(0)
        )
        assert pairs.near.tolist() == [False] * 40 + [True] * 10 + [False] * 30
        assert pairs.same.tolist() == [True] * 40 + [False] * 40
        for pair in pairs.near.nonzero().flatten().tolist():
            cosine = embedding.direction @ pairs.first.direction[pair]
            cosine[labels == pairs.label[pair, 0]] = -2
            best = int(cosine.argmax())
            assert torch.allclose(embedding.direction[best], pairs.second.direction[pair])
            assert int(labels[best]) == int(pairs.label[pair, 1])

    def test_surroundings_leave_out_the_two_and_beyond_them_their_labels(self) -> None:
        embedding, labels = gallery(150, points=True)
        pairs = LabelledPairs.drawn(
            embedding, labels, Recipe(pairs=30), generator=torch.Generator().manual_seed(0)
        )
        for items, inside, beyond in zip(
            (pairs.first, pairs.second), pairs.around, pairs.beyond, strict=True
        ):
            for pair in range(60):
                cosine = embedding.direction @ items.direction[pair]
                both = torch.cat([pairs.first.direction[[pair]], pairs.second.direction[[pair]]])
                cosine[(embedding.direction @ both.T > 1 - 1e-6).any(1)] = -2
                order = cosine.argsort(descending=True)
                assert labels[order[:10]].tolist() == inside.label[pair].tolist()
                order = order[~torch.isin(labels[order], pairs.label[pair])]
                assert labels[order[:10]].tolist() == beyond.label[pair].tolist()

    def test_items_without_another_label_in_reach_get_a_random_partner(self) -> None:
        labels = torch.tensor([0] * (DEEP + 20) + [1, 1])
        rows = torch.zeros(len(labels), 4)
        rows[:, 0] = 1
        rows[labels == 1] = torch.tensor([0.0, 1, 0, 0])
        rows += 0.01 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
        pairs = LabelledPairs.drawn(
            Embedding.point(rows),
            labels,
            Recipe(pairs=20, near=1.0),
            generator=torch.Generator().manual_seed(0),
        )
        assert pairs.near.sum() == (pairs.label[20:, 0] == 1).sum()  # around the others are only their own
        assert not bool(pairs.same[20:].any())

    def test_queries_that_are_not_in_the_gallery_keep_all_that_is_around(self) -> None:
        from doubtless.calibration.pairs.labelled import Around

        embedding, labels = gallery(90, points=True)
        queries, asked = gallery(60, points=True, seed=3)
        pairs = LabelledPairs.drawn(
            queries,
            asked,
            Recipe(pairs=20, near=0.0),
            gallery=Around.items(embedding, labels),
            generator=torch.Generator().manual_seed(0),
        )
        found = search_among(embedding, labels)(pairs.first, 10)
        assert torch.equal(found.row, pairs.around[0].row)

    def test_pairs_apart_share_no_item(self) -> None:
        generator = torch.Generator().manual_seed(0)
        first, second = torch.randint(50, (2, 300), generator=generator)
        apart = sharing_nothing(first, second, generator=generator)
        used = [
            {one, other} for one, other in zip(first[apart].tolist(), second[apart].tolist(), strict=True)
        ]
        assert sum(len(pair) for pair in used) == len(set().union(*used))
        rest = set().union(*used)
        for one, other in zip(first[~apart].tolist(), second[~apart].tolist(), strict=True):
            assert rest & {one, other}  # nothing that could be added is left out

    @pytest.mark.parametrize(("name", "value"), [("near", 1.1), ("unknown", -0.1)])
    def test_shares_are_shares(self, name: str, value: float) -> None:
        with pytest.raises(InputError, match=f"share of {name} pairs"):
            Recipe(**{name: value})  # type: ignore[arg-type]


class TestSurroundings:
    def test_features_by_loops(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def some() -> Surroundings:
            score = torch.rand(6, 4, generator=generator, dtype=torch.double).sort(descending=True).values
            label = torch.randint(-1, 3, (6, 4), generator=generator)
            row = torch.arange(24).view(6, 4)
            row[1, 2:] = -1
            row[2] = -1
            return Surroundings(row, label.masked_fill(row < 0, -1), score.masked_fill(row < 0, -torch.inf))

        first, second = some(), some()
        cosine = torch.rand(6, generator=generator)
        found = surrounding_features(cosine, first, second)
        for pair in range(6):
            for name, sharp in (("agreement", SHARPNESS), ("even_agreement", 0.0)):
                votes: list[dict[int, float]] = []
                for one in (first, second):
                    there = [place for place in range(4) if one.row[pair, place] >= 0]
                    weight = [float((sharp * one.score[pair, place]).exp()) for place in there]
                    votes.append({})
                    for place, mass in zip(there, weight, strict=True):
                        code = int(one.label[pair, place])
                        votes[-1][code] = votes[-1].get(code, 0) + mass / sum(weight)
                wanted = sum(votes[0].get(code, 0) * votes[1].get(code, 0) for code in range(3))
                assert float(found[name][pair]) == pytest.approx(wanted)
                assert float(found[f"log_{name}"][pair]) == pytest.approx(np.log(wanted + FAINT))
            means = []
            for one in (first, second):
                score = one.score[pair][one.row[pair] >= 0]
                means.append(float(score.mean()) if len(score) else float(cosine[pair]))
            assert float(found["beyond_crowd_least"][pair]) == pytest.approx(float(cosine[pair]) - max(means))
            assert float(found["beyond_crowd_most"][pair]) == pytest.approx(float(cosine[pair]) - min(means))
        swapped = surrounding_features(cosine, second, first)
        assert all(torch.allclose(swapped[name], value) for name, value in found.items())
        assert all(bool(value.isfinite().all()) for value in found.values())

    def test_leaving_out_moves_the_next_ones_up(self) -> None:
        around = Surroundings(
            torch.tensor([[4, 5, 6, -1]]),
            torch.tensor([[0, 1, 0, -1]]),
            torch.tensor([[0.9, 0.8, 0.7, -torch.inf]], dtype=torch.double),
        )
        left = around.without(torch.tensor([[5, -2]]), first=3)
        assert left.row.tolist() == [[4, 6, -1]]
        assert left.label.tolist() == [[0, 0, -1]]
        assert around.without(torch.tensor([[9]]), torch.tensor([[0]]), first=2).row.tolist() == [[5, -1]]
        assert [value.tolist() for value in around.nearest_other(torch.tensor([0]))] == [[5], [1]]
        assert [value.tolist() for value in left.nearest_other(torch.tensor([0]))] == [[-1], [-1]]


class TestProbability:
    def test_pairs_are_calibrated_under_any_prior(self) -> None:
        embedding, labels = gallery(2000)
        first, second = draw_pairs(labels, 5000, generator=torch.Generator().manual_seed(0))
        pairs = PairCalibrator.fit_pairs(
            embedding[first], embedding[second], labels[first] == labels[second], group=labels[first]
        )
        fresh, asked = gallery(2000, seed=1)
        first, second = draw_pairs(asked, 6000, generator=torch.Generator().manual_seed(1))
        same = asked[first] == asked[second]
        even = pairs.probability(fresh[first], fresh[second])
        assert match_ece(even, same) < 0.03
        assert match_brier(even, same) < 0.2
        rare = torch.cat([torch.arange(600), torch.arange(6000, 12000)])  # one in eleven is the same
        chance = pairs.probability(fresh[first[rare]], fresh[second[rare]], prior=1 / 11)
        assert match_ece(chance, same[rare]) < 0.03
        assert match_ece(even[rare], same[rare]) > 0.06
        assert torch.allclose(
            pairs.probability(fresh[first], fresh[second]), pairs.probability(fresh[second], fresh[first])
        )
        again = PairCalibrator.from_state(*pairs.state())
        assert torch.equal(again.probability(fresh[first], fresh[second]), even)
        with pytest.raises(InputError, match="prior"):
            pairs.probability(fresh[:1], fresh[:1], prior=1.0)
        with pytest.raises(InputError, match="some that are the same"):
            PairCalibrator.fit_pairs(fresh[:5], fresh[:5], torch.ones(5).bool())
        assert float(pair_features(fresh[:1], fresh[:1])["distance"]) == pytest.approx(0, abs=1e-3)

    def test_fresh_pairs_with_near_ones_in_the_gallery(self) -> None:
        embedding, labels = gallery(1200)
        pairs = PairCalibrator.fit(embedding, labels, recipe=Recipe(pairs=2500, unknown=0.0))
        assert pairs.record["near"] == 0.5
        assert {"agreement", "query_uncertainty"} <= set(pairs.model.names)
        fresh = LabelledPairs.drawn(
            embedding, labels, Recipe(pairs=2500, unknown=0.0), generator=torch.Generator().manual_seed(5)
        )
        chance = pairs.probability(fresh.first, fresh.second, around=fresh.around)
        assert match_ece(chance, fresh.same) < 0.03
        blind = PairCalibrator.fit_pairs(fresh.first, fresh.second, fresh.same)
        assert match_brier(chance, fresh.same) < 0.95 * match_brier(
            blind.probability(fresh.first, fresh.second), fresh.same
        )
        with pytest.raises(InputError, match="must be searched for"):
            pairs.probability(fresh.first, fresh.second)

    def test_more_alike_is_never_less_likely_the_same(self) -> None:
        """Nearest others are chosen for being near: a free regression would hold likeness against two pictures."""
        embedding, labels = gallery(600)
        pairs = PairCalibrator.fit(embedding, labels, recipe=Recipe(pairs=1500))
        logistic = pairs.model.logistic
        assert logistic is not None
        slope = dict(zip(pairs.model.names, logistic.weight.tolist(), strict=True))
        for name, weight in slope.items():
            if name in ("distance", "expected_distance"):
                assert weight <= 0, name
            elif "uncertainty" not in name:
                assert weight >= 0, name
        assert max(slope.values()) > 0
        search = search_among(embedding, labels)
        one = embedding[[0]]
        for other in (one, embedding[[30]]):  # itself, and another of its label
            around = tuple(search(what, 20).without(torch.tensor([[0, 30]])) for what in (one, other))
            assert float(pairs.odds(one, one, around)) >= float(pairs.odds(one, other, around))  # type: ignore[arg-type]


class TestPromise:
    def test_couples_are_the_two_most_alike_and_each_label_is_in_one(self) -> None:
        generator = torch.Generator().manual_seed(0)
        label = torch.randint(20, (200, 2), generator=generator)
        label = label[label[:, 0] != label[:, 1]]
        odds = torch.randn(len(label), generator=generator)
        every = torch.arange(25)
        couple = coupled(odds, label, every)
        assert couple[20:].tolist() == [20, 21, 22, 23, 24]  # in no pair
        sizes = couple.bincount()
        assert int(sizes.max()) == 2
        best = label[odds.argmax()]
        assert couple[best[0]] == couple[best[1]] == best.min()

    @pytest.mark.parametrize("side", ["same", "different"])
    @pytest.mark.parametrize("prior", [0.5, 0.2])
    def test_the_error_of_drawn_labels_is_that_of_its_formula(
        self, fitted: PairCalibrator, side: str, prior: float
    ) -> None:
        promise = fitted.promise(side, prior=prior, target_error=0.2, known="drawn")  # type: ignore[arg-type]
        outcomes = fitted.outcomes
        assert outcomes is not None
        odds = torch.where(outcomes.unknown, outcomes.beyond, outcomes.odds)
        said = (odds if side == "same" else -odds) >= promise.fallback
        right = outcomes.same if side == "same" else ~outcomes.same
        wanted = share_wrong(
            0,
            float(said[right].double().mean()),
            float(said[~right].double().mean()),
            unknown=1 - prior if side == "same" else prior,
        )
        assert promise.error == pytest.approx(
            float(wanted), rel=0.2
        )  # labels weigh alike, nearly as pairs do
        assert promise.terms.known == "drawn"

    def test_pairs_of_the_gallery_are_counted_once_per_photo_and_thinned_to_the_prior(
        self, fitted: PairCalibrator
    ) -> None:
        outcomes = fitted.outcomes
        assert outcomes is not None
        even, rare = fitted.promise("same"), fitted.promise("same", prior=0.1)
        assert len(even.outcomes.score) == int(outcomes.apart.sum())
        assert float(rare.outcomes.correct.double().mean()) == pytest.approx(0.1, abs=0.04)
        assert len(even.outcomes.absent_score) == int((~outcomes.same).sum())
        assert even.terms.unknown == pytest.approx(0.05 / 0.95)
        often = fitted.promise("different", prior=0.9)
        assert float(often.outcomes.correct.double().mean()) == pytest.approx(0.1, abs=0.04)

    def test_a_side_that_is_less_likely_is_never_said(self, fitted: PairCalibrator) -> None:
        for side, sign in (("same", 1), ("different", -1)):
            promise = fitted.promise(side, prior=0.3, target_error=0.9)  # type: ignore[arg-type]
            limit = torch.tensor([sign * promise.threshold], dtype=torch.double)
            assert sign * (float(fitted.chance(limit, prior=0.3)) - 0.5) > 0

    def test_few_labels_promise_little_and_say_how_much(self) -> None:
        pairs = PairCalibrator.fit(*clear(6), recipe=Recipe(pairs=200))
        promise = pairs.promise("same")
        assert not promise.met
        assert 0.05 < promise.bound <= 1
        sentence = promised(promise, "same", pairs.terms)
        assert "cannot be promised from" in sentence
        assert "couples of labels" in sentence
        assert sentence.endswith(".")

    def test_it_is_kept_on_fresh_photos(self, fitted: PairCalibrator) -> None:
        """New photos of the same labels, counted."""
        embedding, labels = clear()
        photos, asked = clear(LABELS, 6, seed=11)
        assert fitted.promise("same").met
        assert fitted.promise("different").met
        search = search_among(embedding, labels)
        generator = torch.Generator().manual_seed(2)
        first, second = draw_pairs(asked, 3000, generator=generator)
        near, _ = search(photos[first[3000:4500]], DEEP).nearest_other(asked[first[3000:4500]])
        one = photos[first]
        other = Embedding.cat([photos[second[:3000]], embedding[near], photos[second[4500:]]])
        same = torch.arange(6000) < 3000
        there = search(one, 20), search(other, 20)
        own = torch.cat([there[0].itself, there[1].itself], 1)
        around = there[0].without(own), there[1].without(own)
        odds = fitted.odds(one, other, around)
        said_same = odds >= fitted.promise("same").threshold
        said_different = -odds >= fitted.promise("different").threshold
        assert not bool((said_same & said_different).any())
        assert float((said_same & ~same).sum() / said_same.sum()) <= 0.05
        assert float((said_different & same).sum() / said_different.sum()) <= 0.05
        assert float(said_same[:3000].double().mean()) > 0.5
        assert float(said_different[3000:].double().mean()) > 0.5

    def test_it_is_saved_and_opened(self, fitted: PairCalibrator) -> None:
        again = PairCalibrator.from_state(*fitted.state())
        assert again.terms == fitted.terms
        for side in ("same", "different"):
            before, after = fitted.promise(side, prior=0.3), again.promise(side, prior=0.3)
            assert (before.threshold, before.bound) == (after.threshold, after.bound)
        assert again.promise("same") is again.promise("same")  # worked out once

    def test_only_new_labels_without_a_gallery(self) -> None:
        pairs = PairCalibrator.fit(*clear(30), recipe=Recipe(pairs=300, unknown=1.0))
        assert pairs.terms.known == "drawn"
        assert "all labels are new" in promised(pairs.promise("same"), "same", pairs.terms)

    def test_an_error_that_is_none_is_refused(self) -> None:
        with pytest.raises(InputError, match="target_error"):
            PairTerms(target_error=1.0)


class TestAnswers:
    def test_decisions_and_reasons_never_contradict_each_other(self, fitted: PairCalibrator) -> None:
        generator = torch.Generator().manual_seed(0)
        seen = set()
        for _ in range(400):
            odds = float(4 * torch.randn((), generator=generator))
            prior = float(torch.tensor([0.02, 0.5, 0.9])[torch.randint(3, (), generator=generator)])
            target = float(torch.tensor([0.001, 0.05, 0.3])[torch.randint(3, (), generator=generator)])
            chance = float(fitted.chance(torch.tensor([odds], dtype=torch.double), prior=prior))
            decision, reason = decided(fitted, odds, chance, prior=prior, target_error=target)
            seen.add(decision)
            assert reason.endswith(".")
            assert reason.startswith(
                {"cannot-tell": "Cannot tell: "}.get(decision, f"{decision.capitalize()}. ")
            )
            if decision == "same":
                assert chance > 0.5
                assert "called the same are not the same" in reason
            elif decision == "different":
                assert chance < 0.5
                assert "called different are the same" in reason
            else:
                assert "not enough" in reason or "cannot be promised" in reason
            if decision != "cannot-tell":
                side = fitted.promise(decision, prior=prior, target_error=target)
                assert f"At most {side.bound:.1%} of the pairs" in reason
                assert side.met != (f"{target:.1%} cannot be promised" in reason)
                assert side.met or side.bound <= WORST
        assert seen == {"same", "different", "cannot-tell"}

    def test_old_calibrations_answer_as_before_and_promise_nothing(self) -> None:
        embedding, labels = gallery(400)
        first, second = draw_pairs(labels, 400, generator=torch.Generator().manual_seed(0))
        same = labels[first] == labels[second]
        features = pair_features(embedding[first], embedding[second])
        names = tuple(name for name in PAIR if name in features)
        model = ProbabilityModel.fit(stacked(features, names), same, names=names, method="stacked")
        record = {
            "model": model.record(),
            "share": 0.5,
            "fit": {},
        }  # as it was written before there were promises
        old = PairCalibrator.from_state(model.tensors("model."), record)
        assert old.outcomes is None
        assert not old.searches
        answer = answer_pair(embedding[[0]], embedding[[0]], old)
        assert answer.probability is not None
        assert answer.decision == ("same" if answer.probability > 0.5 else "different") == "same"
        assert answer.same is True
        assert NOTHING_PROMISED in answer.reason
        with pytest.raises(InputError, match="Nothing is promised"):
            old.promise("same")

    def test_without_a_calibration_nothing_is_told(self) -> None:
        point = Embedding.point(torch.tensor([[1.0, 0.0]]))
        answer = answer_pair(point, point, None)
        assert (answer.decision, answer.same, answer.probability) == ("cannot-tell", None, None)
        assert "not calibrated" in answer.reason

    def test_with_more_error_allowed_more_is_told(self, fitted: PairCalibrator) -> None:
        counts = []
        for target in (0.05, 0.1, 0.3):
            outcomes = fitted.outcomes
            assert isinstance(outcomes, PairOutcomes)
            told = 0
            for odds in outcomes.odds[:100].tolist():
                chance = float(fitted.chance(torch.tensor([odds], dtype=torch.double)))
                told += decided(fitted, odds, chance, prior=0.5, target_error=target)[0] != "cannot-tell"
            counts.append(told)
        assert counts[0] <= counts[1] <= counts[2]
        assert counts[2] > 50

    def test_where_the_target_cannot_be_promised_the_least_that_can_is(self, fitted: PairCalibrator) -> None:
        strict = replace(fitted, terms=replace(fitted.terms, target_error=0.0005), _promises={})
        assert fitted.outcomes is not None
        odds = float(fitted.outcomes.odds.max())
        chance = float(strict.chance(torch.tensor([odds], dtype=torch.double)))
        decision, reason = decided(strict, odds, chance, prior=0.5, target_error=None)
        assert decision == "same"
        least = strict.promise("same").bound
        assert 0.0005 < least <= WORST
        assert f"At most {least:.1%} of the pairs called the same" in reason
        assert "cannot be promised from" in reason

    def test_nothing_is_decided_where_hardly_anything_can_be_promised(self) -> None:
        pairs = PairCalibrator.fit(*clear(6), recipe=Recipe(pairs=200))
        assert pairs.promise("same").bound > WORST
        assert pairs.outcomes is not None
        odds = float(pairs.outcomes.odds.max())
        chance = float(pairs.chance(torch.tensor([odds], dtype=torch.double)))
        decision, reason = decided(pairs, odds, chance, prior=0.5, target_error=None)
        assert decision == "cannot-tell"
        assert "cannot be promised from" in reason
