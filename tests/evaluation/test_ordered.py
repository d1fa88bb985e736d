"""Queries by tenth, and known and other images in one order: curves against loops, the order against sorting."""

from __future__ import annotations

import pytest
import torch

from doubtless import Embedding
from doubtless.evaluation import Evaluation, EvaluationOptions, evaluate
from doubtless.evaluation.ordered import joint_order

QUICK = EvaluationOptions(bootstrap=0, consensus_samples=0, clusters=False)


def measured(*, others: int = 40, learned: bool = True) -> tuple[Evaluation, Embedding, Embedding]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat(15)
    rows = torch.eye(6)[labels] + 0.5 * torch.randn(90, 6, generator=generator)
    strange = torch.randn(others, 6, generator=generator)
    if learned:
        known = Embedding.gaussian(rows, torch.rand(90, 1, generator=generator) + 0.1)
        other = Embedding.gaussian(strange, torch.rand(others, 1, generator=generator) + 0.4)
    else:
        known, other = Embedding.point(rows), Embedding.point(strange)
    return evaluate(known, labels, ood={"strange": other}, options=QUICK), known, other


def test_deciles_are_the_mean_precision_of_every_tenth() -> None:
    found, known, _ = measured()
    assert found.queries is not None
    assert known.uncertainty is not None
    order = sorted(range(90), key=lambda row: float(known.uncertainty[row]))  # type: ignore[index]
    precision = found.queries.values["map@r"].tolist()
    expected = [sum(precision[row] for row in order[start : start + 9]) / 9 for start in range(0, 90, 9)]
    lines = found.curves["deciles"]
    assert lines["uncertainty"].y == pytest.approx(expected)
    best = sorted(precision, reverse=True)
    assert lines["oracle"].y == pytest.approx([sum(best[start : start + 9]) / 9 for start in range(0, 90, 9)])
    assert lines["random"].y == pytest.approx([found["map@r"]] * 2)
    assert {"distance", "ratio", "spread", "norm"} < set(lines)
    assert "match" not in lines


def test_ranked_is_the_share_of_others_in_every_tenth_of_both() -> None:
    found, known, other = measured()
    assert known.uncertainty is not None
    assert other.uncertainty is not None
    both = [(float(u), False) for u in known.uncertainty] + [(float(u), True) for u in other.uncertainty]
    order = [outside for _, outside in sorted(both)]
    expected = [sum(order[start : start + 13]) / 13 for start in range(0, 130, 13)]
    lines = found.curves["ranked/strange"]
    assert lines["uncertainty"].y == pytest.approx(expected)
    assert lines["oracle"].y == pytest.approx([0.0] * 6 + [1 - 12 / 13] + [1.0] * 3)
    assert lines["random"].y == pytest.approx([40 / 130] * 2)
    joint = found.orders["strange"]
    assert (joint.source, joint.outside.tolist()) == ("uncertainty", order)
    again = torch.where(
        joint.outside,
        other.uncertainty[joint.position.clamp_max(39)],
        known.uncertainty[joint.position.clamp_max(89)],
    )
    assert bool((again.diff() >= 0).all())
    for outside, count in ((False, 90), (True, 40)):
        assert sorted(joint.position[joint.outside == outside].tolist()) == list(range(count))


def test_points_are_ordered_by_their_distance() -> None:
    found, _, _ = measured(learned=False)
    assert found.orders["strange"].source == "distance"
    assert "uncertainty" not in found.curves["deciles"]
    assert set(found.curves["ranked/strange"]) == {"distance", "ratio", "spread", "norm", "oracle", "random"}


def test_equal_uncertainties_do_not_put_known_images_first() -> None:
    alike = {"uncertainty": torch.zeros(200, dtype=torch.double)}
    order = joint_order(alike, alike)
    assert 60 < int(order.outside[:200].sum()) < 140
    assert order.outside.tolist() == joint_order(alike, alike).outside.tolist()


def test_curves_are_in_the_json_and_orders_are_not() -> None:
    found, _, _ = measured()
    again = Evaluation.from_json(found.to_json())
    assert again.curves["deciles"] == found.curves["deciles"]
    assert again.curves["ranked/strange"] == found.curves["ranked/strange"]
    assert again.orders == {}
    without, _, _ = measured(others=1)
    assert without.orders["strange"].outside.sum() == 1
