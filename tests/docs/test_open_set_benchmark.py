"""benchmarks/open_set.py counts what it says, on a small gallery: its numbers against plain loops."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy.stats import binom

from doubtless.calibration.distribution import Distribution
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("open_set")
        for name in ("open_set", "open_set_measures", "open_set_page", "divisions", "frozen_features"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def measures(script: ModuleType) -> ModuleType:
    return sys.modules["open_set_measures"]


@pytest.fixture(scope="module")
def photos(script: ModuleType) -> Any:
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(24).repeat_interleave(10)
    label = torch.cat([label, torch.arange(24, 30)])  # and six labels of one photo
    centre = torch.randn(30, 6, generator=generator)
    vectors = centre[label] + 0.5 * torch.randn(len(label), 6, generator=generator)
    return script.Photos(torch.nn.functional.normalize(vectors, dim=1), label)


@pytest.fixture(scope="module")
def record(script: ModuleType, photos: Any) -> dict[str, Any]:
    return script.measure(photos, 3)


@pytest.fixture
def asked(measures: ModuleType) -> Any:
    generator = torch.Generator().manual_seed(1)
    known = torch.rand(40, generator=generator).double().mul(20).round() / 20  # with ties
    unknown = torch.rand(30, generator=generator).double().mul(20).round() / 20
    correct = torch.rand(40, generator=generator) > known * 0.8
    return measures.Asked(known, correct, unknown, torch.tensor([5] * 20 + [7] * 9 + [9]))


def risk_by_loop(asked: Any, threshold: float, share: float) -> tuple[float | None, float]:
    """R and coverage, query by query."""
    wrong = answered = 0.0
    for uncertainty, right in zip(asked.known.tolist(), asked.correct.tolist(), strict=True):
        if uncertainty <= threshold:
            answered += (1 - share) / len(asked.known)
            wrong += 0.0 if right else (1 - share) / len(asked.known)
    labels = asked.unknown_label.tolist()
    for uncertainty, label in zip(asked.unknown.tolist(), labels, strict=True):
        if uncertainty <= threshold:
            part = share / len(set(labels)) / labels.count(label)
            answered, wrong = answered + part, wrong + part
    return (wrong / answered if answered else None), answered


def test_divisions_part_labels_and_photos(script: ModuleType, photos: Any) -> None:
    kept = []
    for seed in range(20):
        division = script.divide(photos.labels, seed)
        rows = torch.cat([division.gallery, division.known, division.unknown])
        assert rows.sort().values.tolist() == list(range(len(photos.labels)))
        gallery, known, unknown = (photos.labels[part] for part in vars(division).values())
        assert len(gallery.unique()) == 15
        assert set(known.tolist()) <= set(gallery.tolist())
        assert not set(unknown.tolist()) & set(gallery.tolist())
        assert not set(known.tolist()) & set(range(24, 30))  # a single photo is in the gallery
        many = gallery[gallery < 24]
        kept.append(len(many) / (10 * len(many.unique())))
    assert 0.69 < sum(kept) / len(kept) < 0.71
    assert (
        script.divide(photos.labels, 0).gallery.tolist() == script.divide(photos.labels, 0).gallery.tolist()
    )


def test_the_share_in_the_gallery_is_kept_on_average_where_labels_are_small(script: ModuleType) -> None:
    labels = torch.arange(2000).repeat_interleave(3)
    gallery = script.divide(labels, 0).gallery
    assert abs(len(gallery) / 3000 - 0.7) < 0.01
    assert labels[gallery].unique(return_counts=True)[1].unique().tolist() == [2, 3]


def test_searches_leave_out_what_they_should(script: ModuleType, photos: Any) -> None:
    gallery = script.divide(photos.labels, 0).gallery
    searches = script.own_searches(photos, gallery)
    own = searches.sample.row
    assert not (searches.present.row == own.unsqueeze(1)).any()
    assert set(searches.label.tolist()) == set(photos.labels[gallery].tolist()) - set(range(24, 30))
    assert not (searches.absent.label == searches.removed.unsqueeze(1)).any()
    assert len(searches.absent) == len(gallery)
    first = photos.similarity[gallery[own[0]]][gallery].clone()
    first[own[0]] = -torch.inf
    assert searches.present.row[0, 0] == first.argmax()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("threshold", [-1.0, 0.2, 0.55, 1.0])
def test_risk_and_coverage_are_those_of_a_loop(asked: Any, share: float, threshold: float) -> None:
    answered = torch.cat([asked.known, asked.unknown]) <= threshold
    risk, coverage = risk_by_loop(asked, threshold, share)
    found = asked.came_to(answered, share, 0.3)
    assert found["coverage"] == pytest.approx(coverage)
    if risk is None:
        assert found["risk"] is None
        assert not found["broken"]
        assert not found["surely"]
    else:
        assert found["risk"] == pytest.approx(risk)
        assert found["broken"] == (risk > 0.3)


def test_without_unknowns_surely_broken_is_the_binomial_test(asked: Any) -> None:
    answered = torch.cat([asked.known, asked.unknown]) <= 0.6
    known = answered[:40]
    wrong, count = int((known & ~asked.correct).sum()), int(known.sum())
    verdicts = set()
    for bound in torch.linspace(0.01, 0.9, 60).tolist():
        expected = binom.sf(wrong - 1, count, bound) < 0.05
        assert asked.came_to(answered, 0.0, bound)["surely"] == expected
        verdicts.add(bool(expected))
    assert verdicts == {False, True}


def test_the_chance_of_as_many_is_that_of_the_binomial(measures: ModuleType) -> None:
    for wrong in range(6):
        assert measures.chance_of_as_many(wrong, 5, 0.3) == pytest.approx(binom.sf(wrong - 1, 5, 0.3))
    assert measures.chance_of_as_many(2, 2, 1.0) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_oracle_is_the_best_of_all_thresholds(measures: ModuleType, asked: Any, share: float) -> None:
    best = 0.0
    for threshold in {*asked.known.tolist(), *asked.unknown.tolist()}:
        risk, coverage = risk_by_loop(asked, threshold, share)
        if risk is not None and risk <= 0.3:
            best = max(best, coverage)
    assert measures.oracle_coverage(asked, share, 0.3) == pytest.approx(best)
    assert best > 0


def test_auroc_is_that_of_all_pairs(measures: ModuleType, asked: Any) -> None:
    weight = asked.weight(0.5).tolist()
    score = [*asked.known.tolist(), *asked.unknown.tolist()]
    right = [*asked.correct.tolist(), *[False] * 30]
    total = good = 0.0
    for i in range(70):
        for j in range(70):
            if right[i] and not right[j]:
                total += weight[i] * weight[j]
                good += weight[i] * weight[j] * ((score[i] < score[j]) + (score[i] == score[j]) / 2)
    assert measures.auroc(asked, 0.5) == pytest.approx(good / total)


def test_a_promise_is_held_at_the_threshold_that_keeps_it(measures: ModuleType) -> None:
    score = torch.linspace(1, 0, 4000).double()
    label = torch.arange(4000) % 200
    promise = Promise.of(Outcomes(score, score > 0.4, label, score / 2, label), Terms())
    asked = measures.Asked(1 - score, score > 0.4, 1 - score / 2, label)
    found = measures.held(asked, promise)
    assert found["met"]
    assert found["bound"] == 0.05
    assert found["known_answered"] == pytest.approx(float((score >= promise.threshold).double().mean()))
    assert found["coverage"] <= found["oracle"]
    assert not found["broken"]


def test_expected_error_is_that_of_bins(measures: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(60, generator=generator).double()
    outcome = torch.rand(60, generator=generator) < 0.5
    order = chance.argsort()
    expected = 0.0
    for part in range(15):
        rows = order[4 * part : 4 * part + 4]
        expected += abs(float((chance[rows] - outcome[rows].double()).sum())) / 60
    assert measures.expected_error(chance, outcome) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_mixture_has_its_share_of_unknown_queries(measures: ModuleType, asked: Any, share: float) -> None:
    rows = measures.mixture(asked, share, seed=0)
    assert len(rows.unique()) == len(rows)
    assert float((rows >= 40).double().mean()) == pytest.approx(share, abs=0.02)
    assert len(rows) >= 40


def test_a_distribution_that_is_right_has_the_error_of_a_perfect_one(measures: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(12000, 4, generator=generator).double().pow(3)
    table = table / table.sum(1, keepdim=True)
    label = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(12000)])
    drawn = torch.multinomial(table, 1, generator=generator).squeeze(1)
    truth = torch.cat([label, torch.full((12000, 1), -1)], dim=1).gather(1, drawn.unsqueeze(1)).squeeze(1)
    order = (truth < 0).to(torch.uint8).argsort(stable=True)  # the known ones first
    found = Distribution(label[order], table[order, :3], table[order, 3])
    truth, known = truth[order], int((truth >= 0).sum())
    zeros, unknown = torch.zeros(known), torch.zeros(12000 - known)
    asked = measures.Asked(zeros, zeros.bool(), unknown, torch.arange(12000 - known))
    share = 1 - known / 12000
    errors = measures.calibration_errors(found, truth, asked, share, seed=0)
    assert set(errors) == {"top", "first", "second", "none"}
    for one in errors.values():
        assert abs(one["error"] - one["perfect"]) < 0.01
        assert sum(abs(value) for value in one["bins"]) < 0.02
    # A label that is not among the hits counts as none; the probabilities of none are then too small.
    wrong = measures.calibration_errors(found, torch.full_like(truth, 99), asked, share, seed=0)
    too_small = float(1 - found.none.mean())
    assert sum(wrong["none"]["bins"]) == pytest.approx(-too_small)
    assert wrong["none"]["error"] == pytest.approx(too_small, abs=0.01)


def test_a_division_is_measured_and_written(
    script: ModuleType, photos: Any, record: dict[str, Any], tmp_path: Path
) -> None:
    assert set(record["promise"]) == {
        f"{share}/{target}" for share in ("0", "0.1", "0.5") for target in ("0.05", "0.1")
    }
    for promise in record["promise"].values():
        assert promise["old"]["coverage"] <= 1
        assert promise["oracle"] <= 1
    assert record["top1"]["label"] > 0.5
    assert record["known"] + record["unknown"] + record["gallery"] == len(photos.labels)
    for name in ("cub-frozen", "cub-trained"):
        lines = [json.dumps(record | {"seed": seed}) for seed in range(2)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    sys.modules["open_set_page"].write_results(tmp_path, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "open-set.json").read_text())["sets"]["cub-frozen"]
    assert found["divisions"] == 2
    assert found["top1"]["label"] == pytest.approx(record["top1"]["label"], abs=1e-5)
    assert "CUB, 100 test species, frozen" in (tmp_path / "out" / "README.md").read_text()


def test_measured_divisions_are_not_measured_again(
    script: ModuleType, photos: Any, record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []

    def measure(_photos: Any, seed: int) -> dict[str, Any]:
        asked_for.append(seed)
        return record | {"seed": seed}

    monkeypatch.setattr(script, "measure", measure)
    path = tmp_path / "divisions" / "toy.jsonl"
    script.measured(photos, path, 2)
    script.measured(photos, path, 3)
    assert len(path.read_text().splitlines()) == 3
    assert asked_for == [0, 1, 2]


def test_means_leave_out_what_there_is_none_of(script: ModuleType) -> None:
    averaged = sys.modules["open_set_page"].averaged
    assert averaged([{"a": 1.0, "b": [True, None]}, {"a": None, "b": [False, None]}]) == {
        "a": 1.0,
        "b": [0.5, None],
    }


def test_a_run_gives_its_test_part_once(script: ModuleType, tiny_run: Path, tmp_path: Path) -> None:
    assert script.trained_photos("toy", tmp_path, None) is None
    made = script.trained_photos("toy", tmp_path, str(tiny_run))
    assert torch.allclose(made.vectors.norm(dim=1), torch.ones(len(made.labels)))
    kept = script.trained_photos("toy", tmp_path, None)
    assert torch.equal(kept.labels, made.labels)
    some = script.Photos(made.vectors[:1], made.labels[:1])
    assert script.same_classes(made, some).labels.unique().tolist() == [int(made.labels[0])]


def test_the_page_is_what_the_numbers_say(script: ModuleType) -> None:
    results = BENCHMARKS / "results" / "open-set"
    sets = json.loads((results / "open-set.json").read_text())["sets"]
    assert sys.modules["open_set_page"].page(sets) == (results / "README.md").read_text()


@pytest.mark.parametrize(("spread", "above"), [(0.0, 0.0), (0.012, 0.2)])
def test_the_true_risk_is_told_from_counting(script: ModuleType, spread: float, above: float) -> None:
    """True risks of .04 around which 400 answers are counted: a bound of .05 is exceeded as often as drawn."""
    generator = torch.Generator().manual_seed(0)
    true = (0.04 + spread * torch.randn(4000, generator=generator, dtype=torch.double)).clamp(0.001, 1)
    counted = torch.binomial(torch.full_like(true, 400), true, generator=generator) / 400
    promises = [{"risk": one, "answers": 400, "bound": 0.05} for one in counted.tolist()]
    estimate = sys.modules["open_set_page"].truly_broken(promises)
    assert float((counted > 0.05).double().mean()) > 0.1  # as counted it is broken often, true or not
    assert abs(estimate - above) < 0.04
