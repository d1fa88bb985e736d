"""How an evaluation measures, and what comes from outside beside the embeddings. Plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.ood import check_ratio
from doubtless.metrics.views import RISKS
from doubtless.search.scores import ScoreName


@dataclass(frozen=True)
class OpenSetOptions:
    """How labels are left out of the gallery, and what is measured of queries whose label is not there.

    left_out   share of the gallery's labels that is left out, at least one and not all
    share      share of queries whose label is not in the gallery where errors and unknowns are counted together,
               whatever the shares at hand
    seed       of the division

    >>> OpenSetOptions(left_out=0.2).share
    0.1
    """

    left_out: float = 0.5
    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.left_out < 1:
            raise InputError(
                f"The share of labels left_out must lie between 0 and 1, both excluded, got {self.left_out}."
            )
        if not 0 <= self.share <= 1:
            raise InputError(f"The share of unknown queries must lie between 0 and 1, got {self.share}.")


@dataclass(frozen=True)
class EvaluationOptions:
    """How `evaluate` measures.

    score               by what the gallery is searched; consensus and clusters are of directions all the same
    ks                  None: 1, 5, 10 as far as the gallery reaches. A k that is given and too large is an error.
    risks               shares of wrong first hits at which coverage is measured
    ood_ratio           out-of-distribution items to one query in the paper one compares with:
                        `ood_auprc_reweighted`
    consensus_samples   draws per query for `ece`, families with spread only; 0 leaves it out (each draw is a
                        search of the gallery: minutes for tens of thousands of queries on a CPU)
    scale               what variances are multiplied by for a second consensus, `ece_tuned`, as `choose_scale`
                        finds it on validation images; None: no second one
    clusters            whether k-means is run for `nmi` and `f1`
    open_set            how labels are left out of the gallery, so that their queries are unknown; None: none are
    bootstrap           replicates behind each interval; 0 gives no intervals
    seed                of the draws and of the replicates

    >>> EvaluationOptions(bootstrap=0).ks is None
    True
    """

    score: ScoreName = "direction"
    ks: Sequence[int] | None = None
    risks: Sequence[float] = RISKS
    ood_ratio: float | None = None
    consensus_samples: int = 100
    scale: float | None = None
    clusters: bool = True
    open_set: OpenSetOptions | None = None
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_ratio(self.ood_ratio, "ood_ratio")
        if self.bootstrap < 0:
            raise InputError(f"The number of bootstrap replicates must be 0 or more, got {self.bootstrap}.")
        if self.consensus_samples < 0:
            raise InputError(
                f"The number of draws consensus_samples must be 0 or more, got {self.consensus_samples}."
            )
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise InputError(f"A variance is scaled by a number above 0, got {self.scale}.")


@dataclass(frozen=True, eq=False)
class GivenScores:
    """Uncertainties, doubts and probabilities from outside the embeddings.

    uncertainty          (n,) of the queries, in place of the family's own; then those of the gallery and of the
                         out-of-distribution sets come from outside too, or their metrics are left out
    gallery_uncertainty  (m,) of the gallery
    ood_uncertainty      out-of-distribution set → (o,)
    doubts               name → (n,) further doubts of the queries, such as `Doubt`'s; each is measured beside the
                         learned uncertainty, in `Evaluation.doubts`
    ood_doubts           out-of-distribution set → name → (o,)
    match_probability    (n,) that the first hit is right, such as `Calibrator`'s: `match_ece`, `match_brier`

    >>> GivenScores().doubts
    {}
    """

    uncertainty: Tensor | None = None
    gallery_uncertainty: Tensor | None = None
    ood_uncertainty: Mapping[str, Tensor] = field(default_factory=dict)
    doubts: Mapping[str, Tensor] = field(default_factory=dict)
    ood_doubts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    match_probability: Tensor | None = None


DEFAULT_OPTIONS = EvaluationOptions()
NOTHING_GIVEN = GivenScores()
