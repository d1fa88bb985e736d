"""What each measure means, in a sentence, and which direction is better. Data; METRICS.md has the definitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

RETRIEVAL = "Retrieval"
ERRORS = "Error detection"
OOD = "Out-of-distribution detection"
CALIBRATION = "Calibration"
CLUSTERING = "Clustering"
VERIFICATION = "Two images: the same or not"
OTHER = "Further measures"
GROUPS = (RETRIEVAL, ERRORS, OOD, CALIBRATION, CLUSTERING, VERIFICATION, OTHER)


@dataclass(frozen=True)
class Meaning:
    """A measure in words. `higher` is None where neither direction is better (a bound, a reference)."""

    title: str
    group: str
    sentence: str
    higher: bool | None = True

    @property
    def direction(self) -> str:
        return {True: "↑ higher", False: "↓ lower", None: "reference"}[self.higher]


_MEANINGS = {
    "recall@1": Meaning("Recall@1", RETRIEVAL, "Share of queries whose first hit is right."),
    "recall@": Meaning("Recall@{k}", RETRIEVAL, "Share of queries with a right image among the first {k}."),
    "map@1": Meaning("MAP@1", RETRIEVAL, "The same as recall@1."),
    "map@": Meaning(
        "MAP@{k}",
        RETRIEVAL,
        "Mean average precision of the first {k} hits: right images early in the list count more.",
    ),
    "map@r": Meaning(
        "MAP@R",
        RETRIEVAL,
        "Average precision of the first R hits, R being the number of right images in the gallery.",
    ),
    "r_precision": Meaning(
        "R-precision",
        RETRIEVAL,
        "Share of right images among the first R, R being their number in the gallery.",
    ),
    "error_auroc": Meaning(
        "Error AUROC",
        ERRORS,
        "Chance that a query with a wrong first hit is more uncertain than one with a right one; 0.5 is guessing.",
    ),
    "ausc": Meaning(
        "AUSC",
        ERRORS,
        "Recall@1 averaged while the most uncertain queries leave one by one: area under the sparsification curve.",
    ),
    "ausc_match": Meaning(
        "AUSC of the match", ERRORS, "The same, ordered by the uncertainty of query and first hit together."
    ),
    "ausc_oracle": Meaning(
        "AUSC, upper bound",
        ERRORS,
        "What an oracle reaches that leaves out exactly the wrong queries first.",
        None,
    ),
    "ausc_random": Meaning("AUSC, at random", ERRORS, "What a random order reaches: recall@1.", None),
    "coverage@": Meaning(
        "Coverage at {k} risk",
        ERRORS,
        "Largest share of queries, the most certain first, with at most {k} wrong first hits.",
    ),
    "ood_auroc": Meaning(
        "OOD AUROC",
        OOD,
        "Chance that a foreign image is more uncertain than one of the known kind; 0.5 is guessing.",
    ),
    "ood_auprc": Meaning(
        "OOD AUPRC",
        OOD,
        "Average precision of finding foreign images by uncertainty; depends on the ratio of the two set sizes.",
    ),
    "ood_auprc_balanced": Meaning(
        "OOD AUPRC, balanced",
        OOD,
        "The same, re-weighted to as many foreign as known images: comparable between sets.",
    ),
    "ood_auprc_reweighted": Meaning(
        "OOD AUPRC at a stated ratio",
        OOD,
        "The same, re-weighted to the set sizes of the paper compared with; the ratio is in the protocol.",
    ),
    "ood_fpr95": Meaning(
        "OOD FPR95",
        OOD,
        "Share of known images wrongly called foreign when 95 % of the foreign ones are found.",
        False,
    ),
    "ece": Meaning(
        "Consensus ECE",
        CALIBRATION,
        "Mean gap between how often draws of the embedding agree on a label and how often that label is right.",
        False,
    ),
    "ece@": Meaning(
        "Rank ECE@{k}",
        CALIBRATION,
        "Gap between a bin's rank by uncertainty and its MAP@{k}. "
        "It is a rank, not a probability: a perfect retriever scores .45.",
        False,
    ),
    "match_ece": Meaning(
        "Match ECE",
        CALIBRATION,
        "Mean gap between the calibrated match probability and how often the hit is right.",
        False,
    ),
    "match_brier": Meaning(
        "Match Brier score", CALIBRATION, "Mean squared error of the calibrated match probability.", False
    ),
    "nmi": Meaning(
        "NMI", CLUSTERING, "Agreement of k-means clusters with the labels (normalised mutual information)."
    ),
    "f1": Meaning("Pairwise F1", CLUSTERING, "F1 over pairs of images: same cluster against same label."),
    "eer": Meaning(
        "Equal error rate",
        VERIFICATION,
        "Error where as many different pairs are taken for the same as same pairs are refused.",
        False,
    ),
    "tar@": Meaning(
        "TAR at {k} FAR",
        VERIFICATION,
        "Share of same pairs that are accepted when {k} of the different ones are, too.",
    ),
    "threshold@": Meaning(
        "Cosine at {k} FAR", VERIFICATION, "The cosine from which on pairs are then accepted.", None
    ),
}


PERCENT = frozenset({"coverage@", "tar@", "threshold@"})


def meaning(name: str) -> Meaning:
    """Looks up ``recall@5``, ``coverage@risk0.05`` or ``ood_auroc/digits``; an unknown measure explains nothing.

    >>> meaning("recall@5").sentence
    'Share of queries with a right image among the first 5.'
    >>> meaning("ood_fpr95/digits").title
    'OOD FPR95 · digits'
    """
    key = _key(name)
    if key is None:
        return Meaning(name, OTHER, "", None)
    base, _, part = name.partition("/")
    k = base.partition("@")[2]
    k = _percent(k) if key in PERCENT else k
    found = _MEANINGS[key]
    title = found.title.replace("{k}", k) + (f" · {part}" if part else "")
    return replace(found, title=title, sentence=found.sentence.replace("{k}", k))


def in_order(names: Iterable[str], group: str) -> list[str]:
    """The measures of one group in the order of their explanations; those that share one as they came."""
    order = {key: place for place, key in enumerate(_MEANINGS)}
    chosen = (name for name in names if meaning(name).group == group)
    return sorted(chosen, key=lambda name: order.get(_key(name) or "", len(order)))


def _key(name: str) -> str | None:
    """Under what a measure is explained: ``map@r`` has its own entry, ``map@7`` that of ``map@``."""
    base = name.partition("/")[0]
    stem, at, _ = base.partition("@")
    return next((key for key in (base, stem + at) if key in _MEANINGS), None)


def better(name: str, first: float, second: float) -> bool:
    """Whether `first` is the better value of this measure."""
    return first < second if meaning(name).higher is False else first > second


def _percent(risk: str) -> str:
    """``risk0.05`` and ``far0.05`` → ``5 %``; anything else as it is."""
    try:
        return f"{100 * float(risk.removeprefix('risk').removeprefix('far')):g} %"
    except ValueError:
        return risk
