"""What a gallery is asked: of pictures, of its own items, of two pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.pairs.answer import PairAnswer
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.answer import Answer
from doubtless.gallery.answers import Answers
from doubtless.gallery.base import OpenGallery
from doubtless.gallery.judge import Judge
from doubtless.gallery.pairs import compare as compare_in
from doubtless.gallery.queries import Picture, Pictures, Queries, is_picture
from doubtless.gallery.together import with_mean
from doubtless.index.search import checked_k
from doubtless.search.hits import without_itself

if TYPE_CHECKING:
    from doubtless.index.filters import Where
    from doubtless.index.settings import IndexScore


class Asking(OpenGallery):
    """An open gallery that answers."""

    @overload
    def ask(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self,
        what: Picture,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
    ) -> Answer: ...

    @overload
    def ask(
        self,
        what: Pictures | Embedding | Queries,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
        together: Literal[False] = False,
    ) -> Answers: ...

    @overload
    def ask(
        self,
        what: Pictures | Embedding | Queries,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
        together: Literal[True],
    ) -> Answer: ...

    def ask(
        self,
        what: Picture | Pictures | Embedding | Queries,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
        together: bool = False,
    ) -> Answer | Answers:
        """What the gallery thinks of a picture; of several, or of an embedding, one answer each.

        k            hits that are shown
        where        only items for which it holds are searched: ``{"label": ["cat"], "year": 2024}``
        confidence   1 − α of the covering set, in (0, 1)
        score        another score than the gallery's own to rank by: hits are then shown and not judged
        together     the pictures show one thing: their evidence is combined, and there is one answer
        """
        checked_k(k)
        if not 0 < confidence < 1:
            raise InputError(f"The confidence of a covering set must lie between 0 and 1, got {confidence}.")
        one = is_picture(what)
        queries = self.read([what] if one else what)  # type: ignore[list-item, arg-type]
        wanted, together = together, together and not one and len(queries) > 1
        other = score is not None and score != self.index.settings.score
        if other and together:
            raise InputError("Photos of one thing are asked together by the gallery's own score.")
        judge = self.judge_of_photos(len(queries), where) if together else self.judge_of(where)
        if other:
            assert score is not None
            judge = Judge.of_nothing(score)
        embedding = with_mean(queries.embedding) if together else queries.embedding
        hits = self.index.search(embedding, judge.depth(k), where=where, score=score)
        answers = judge.answers(
            hits,
            embedding,
            self.index,
            k=k,
            confidence=confidence,
            features=queries.features,
            together=together,
        )
        return answers[0] if one or wanted else answers

    def ask_items(self, rows: Tensor, k: int = 10) -> Answers:
        """What the gallery thinks of its own items at some rows (n,), each among all others."""
        embedding = self.index.embedding(rows)
        judge = self.judge_of()
        hits = without_itself(self.index.search(embedding, max(judge.depth(k), DEPTH) + 1), rows)
        return judge.answers(hits, embedding, self.index, k=k)

    def compare(
        self,
        first: Picture | Embedding,
        second: Picture | Embedding,
        *,
        prior: float = 0.5,
        target_error: float | None = None,
    ) -> PairAnswer:
        """Do two pictures, or embeddings of one item each, show the same? `prior`: how likely that is before.

        target_error: share of the pairs decided alike that may be wrong; None: as calibrated.
        """
        one, other = (
            what if isinstance(what, Embedding) else self.read([what], as_items=True).embedding
            for what in (first, second)
        )
        one, other, pairs = self.fitted(one), self.fitted(other), self.judge.calibrated.pairs
        return compare_in(self.index, pairs, one, other, prior=prior, target_error=target_error)
