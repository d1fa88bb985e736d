"""What replies look like, and the source of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from doubtless.embedding import Embedding
from doubtless.gallery import Answer, Feedback, PairAnswer
from doubtless.gallery.answer import code_of, finite, plain, values_of


class FeedbackReply(BaseModel):
    """An entry that is on the disk."""

    number: int
    time: str
    answer: str
    verdict: Literal["right", "wrong"] | None
    label: str | None
    truth: str | None = Field(description="What the query shows, as far as was said.")

    @classmethod
    def of(cls, entry: Feedback) -> FeedbackReply:
        """Of an entry."""
        told = entry.to_json()
        return cls.model_validate({**told, "answer": entry.shown.id})


class HitReply(BaseModel):
    """One item that was found."""

    rank: int
    id: str
    label: str | None
    probability: float | None = Field(
        description="Of its label, or of itself where labels were not calibrated; null before calibration."
    )
    score: float | None = Field(description="Cosine.")
    expected_squared_distance: float | None
    uncertainty: float | None = Field(description="Of the item; null for points.")
    image: str | None = Field(description="Where its image is, if it has one.")
    has_image: bool = Field(description="Whether that can be shown.")
    metadata: dict[str, Any]


class LabelReply(BaseModel):
    """A label that was found."""

    label: str
    probability: float


class ChoiceReply(BaseModel):
    """One of what an answer lies between."""

    label: str | None = Field(description="null: none of the labels found.")
    probability: float


class WarningReply(BaseModel):
    """What a warning says, for a program."""

    code: str
    values: dict[str, Any]


class AnswerReply(BaseModel):
    """What a query is told: the one form of an answer, `Answer.to_json`."""

    id: str | None = Field(description="What feedback refers to.")
    decision: Literal["answer", "abstain", "not-in-gallery"]
    label: str | None = Field(description="What is answered; null where nothing is.")
    probability: float | None = Field(
        description="Of the most probable label, or of the first hit; null before calibration."
    )
    labels: list[LabelReply] = Field(
        description="Labels that were found, the most probable first; with `none` all of them add up to 1."
    )
    none: float | None = Field(description="That it is none of the labels found.")
    between: list[ChoiceReply] = Field(
        description="Of `labels` and `none` what it lies between, the most probable first."
    )
    reason: str
    reason_code: str = Field(description="What `reason` says, in a word: docs/serving.md lists them.")
    reason_values: dict[str, Any]
    doubt: float | None
    parts: dict[str, float | None] = Field(
        description="Where the doubt comes from; what was not measured is not there."
    )
    unmeasured: list[str] = Field(description="Where else it might come from, which nobody looked at.")
    uncertainty: float | None = Field(description="Of the query itself; null for points.")
    covering_set: list[str] | None = Field(
        description="Labels that contain the true one with the confidence asked for; ids without labels."
    )
    warnings: list[str] = Field(description="What this answer cannot promise.")
    warning_codes: list[WarningReply] = Field(description="The same for programs, in the same order.")
    hits: list[HitReply]

    @classmethod
    def of(cls, answer: Answer, has_image: Callable[[str | None], bool]) -> AnswerReply:
        """An answer with addresses in place of paths, which are nobody's business."""
        values = answer.to_json()
        for hit in values["hits"]:
            path = hit["image"]
            hit["image"] = None if path is None else image_address(hit["id"])
            hit["has_image"] = has_image(path)
        return cls.model_validate(values)


class CompareReply(BaseModel):
    """Two images beside each other."""

    decision: Literal["same", "different", "cannot-tell"]
    reason: str = Field(description="Why, and what is promised of such decisions.")
    reason_code: str
    reason_values: dict[str, Any]
    same: bool | None = Field(description="null where it cannot be told.")
    probability: float | None = Field(description="null where the index has no calibration of pairs.")
    prior: float
    cosine: float
    expected_squared_distance: float | None
    uncertainty: list[float | None] | None = Field(description="Of both; null for points.")

    @classmethod
    def of(cls, found: PairAnswer) -> CompareReply:
        """What a comparison gave, in finite numbers."""
        doubts = None if found.uncertainty is None else [finite(one) for one in found.uncertainty]
        return cls(
            decision=found.decision,
            reason=found.reason,
            reason_code=code_of(found.reason),
            reason_values=plain(values_of(found.reason)),
            same=found.same,
            probability=found.probability,
            prior=found.prior,
            cosine=found.cosine,
            expected_squared_distance=finite(found.expected_squared_distance),
            uncertainty=doubts,
        )


class EmbeddingReply(BaseModel):
    """What the model makes of an image, in the form in which a search takes it."""

    family: str
    location: list[float]
    variance: list[float] | None = None
    concentration: float | None = None
    uncertainty: float | None = Field(description="Higher is less sure; null for points.")

    @classmethod
    def of(cls, embedding: Embedding) -> EmbeddingReply:
        """Of one item."""
        values = {name: value[0].tolist() for name, value in embedding.parameters.items()}
        doubt = embedding.uncertainty
        values["location"] = embedding.location[0].tolist()
        known = {name: values[name] for name in ("location", "variance", "concentration") if name in values}
        return cls(
            family=embedding.family,
            uncertainty=None if doubt is None else finite(float(doubt)),
            **known,  # type: ignore[arg-type]
        )


class ItemReply(BaseModel):
    """An item that is stored, durably."""

    id: str
    image: str | None


class RecalibrationReply(BaseModel):
    """What had changed, and what is promised of the items as they are now."""

    items: int
    new: int = Field(description="Items that had come since.")
    gone: int
    queries_searched: int = Field(description="Calibration queries that had to be searched anew.")
    promise: dict[str, Any] | None


class ModelReply(BaseModel):
    """What embeds."""

    method: str
    fingerprint: str | None
    channels: int
    size: int


class InfoReply(BaseModel):
    """What is served."""

    version: str
    items: int
    labels: int
    family: str
    dim: int
    score: str
    model: ModelReply | None
    read_only: bool
    may_write: bool = Field(description="Whether this caller may add, remove and relabel items.")
    may_judge: bool = Field(description="Whether this caller may say what it thinks of answers.")
    demo: bool
    accepts: list[str] = Field(description="Images that are taken: media types, and ends of files' names.")
    calibrated: bool
    promise: dict[str, Any] | None
    withdrawn: str | None = Field(description="Why what was promised at the calibration holds no longer.")
    change: dict[str, Any] | None = Field(description="What became of the items since the calibration.")
    pairs_calibrated: bool
    drift: dict[str, Any] | None
    limits: dict[str, float]
    batching: dict[str, float]


class StatusReply(BaseModel):
    """What is held and promised, and whether that still holds."""

    items: int
    labels: int
    calibrated: bool
    promise: dict[str, Any] | None
    watch: dict[str, Any] = Field(
        description="Whether the promise holds, no longer holds since when, or how much more must be said."
    )
    drift: dict[str, Any] | None


class HealthReply(BaseModel):
    """It is alive."""

    status: Literal["ok"] = "ok"


class ReadyReply(BaseModel):
    """It can answer."""

    status: Literal["ready"] = "ready"


def image_address(id: str) -> str:
    """Where the image of an item is served."""
    return f"/v1/items/{quote(id, safe='')}/image"
