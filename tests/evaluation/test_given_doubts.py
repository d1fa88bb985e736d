"""Doubts that come from outside: each a row of its own in the evaluation, its JSON and its tables."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, GivenScores, evaluate
from doubtless.metrics.ood import auroc
from doubtless.metrics.uncertainty import ausc, error_auroc


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LABELS = torch.arange(60) % 6
ROWS = draw(6, 5, seed=1)[LABELS] + draw(60, 5)
DOUBT, OOD_DOUBT = torch.rand(60, generator=torch.Generator().manual_seed(3)), 0.5 + draw(30, seed=4)


def measured(**given: object) -> Evaluation:
    scores: dict = {"doubts": {"doubt": DOUBT}, "ood_doubts": {"o": {"doubt": OOD_DOUBT}}, **given}
    others = {"o": Embedding.point(draw(30, 5, seed=2))}
    options = EvaluationOptions(bootstrap=20)
    return evaluate(Embedding.point(ROWS), LABELS, ood=others, given=GivenScores(**scores), options=options)


def test_a_given_doubt_is_measured_as_any_other() -> None:
    found = measured()
    assert found.queries is not None
    row = found.doubts["doubt"]
    assert row["error_auroc"].value == pytest.approx(error_auroc(DOUBT, found.queries.correct))
    assert row["ausc"].value == pytest.approx(ausc(DOUBT, found.queries.correct))
    assert row["ood_auroc/o"].value == pytest.approx(auroc(DOUBT.double(), OOD_DOUBT.double()))
    assert row["error_auroc"].low is not None
    assert set(found.baselines) == {"distance", "ratio", "spread", "norm"}
    assert "error_auroc" not in found.measures  # points have no uncertainty of their own
    assert torch.equal(found.queries.values["doubt/doubt"], DOUBT.double())
    assert {"doubt"} <= set(found.curves["sparsification"]) & set(found.curves["roc/o"])


def test_it_is_in_the_json_and_old_files_have_none() -> None:
    found = measured()
    data = found.to_json()
    assert Evaluation.from_json(data).doubts == found.doubts
    del data["doubts"]
    assert Evaluation.from_json(data).doubts == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"doubts": {"distance": DOUBT}, "ood_doubts": {}}, "measured already"),
        ({"doubts": {"doubt": DOUBT[:-1]}}, "must have shape"),
        ({"doubts": {"doubt": DOUBT.clone().fill_(torch.nan)}}, "NaN"),
        ({"ood_doubts": {"other": {"doubt": OOD_DOUBT}}}, "not among the OOD sets"),
        ({"ood_doubts": {"o": {"else": OOD_DOUBT}}}, "which the queries do not have"),
        ({"ood_doubts": {"o": {"doubt": OOD_DOUBT[1:]}}}, "must have shape"),
    ],
)
def test_doubts_that_cannot_be_measured_are_a_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        measured(**options)
