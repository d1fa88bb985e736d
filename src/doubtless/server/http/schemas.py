"""What requests look like: checked at the border, and the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, Json, JsonValue, StringConstraints

from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.gallery.together import MOST_PHOTOS

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")]
Id = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00\r\n]+$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r'^[^\x00"\\]+$')]
Scalar = bool | Whole | Number | Text | None
Where = Annotated[dict[Key, Scalar | Annotated[list[Scalar], Field(max_length=10_000)]], Field(max_length=32)]
"""As many as the index takes."""
Confidence = Annotated[float, Field(gt=0, lt=1, description="Of the covering set.")]
Prior = Annotated[float, Field(gt=0, lt=1, description="How likely two such images are the same beforehand.")]
TargetError = Annotated[
    float | None,
    Field(gt=0, lt=1, description="Share of pairs decided alike that may be wrong; as calibrated."),
]
Trial = Annotated[
    bool, Field(description="Only tried out: it does not count when drift is looked for, nor to be judged.")
]
Count = Annotated[int, Field(ge=1, le=1_000_000, description="Hits; at most limits.k of /v1/info.")]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")
]
Said = Annotated[Literal["right", "wrong"] | None, Field(description="Is what was answered right?")]
Metadata = Annotated[dict[Key, JsonValue], Field(max_length=100)]

WHERE = {"label": ["Sneaker", "Sandal"], "shelf": 3}


class Strict(BaseModel):
    """A body whose every field is known and of its own type."""

    model_config = ConfigDict(strict=True, extra="forbid")


class EmbeddingBody(Strict):
    """A distribution over embedding space, of the family that the index holds."""

    location: Annotated[list[Number], Field(min_length=1, max_length=65_536)]
    variance: Annotated[list[Number], Field(min_length=1, max_length=65_536)] | None = Field(
        None, description="Of Gaussian families: one number, or one per dimension."
    )
    concentration: Number | None = Field(None, description="Of von Mises-Fisher distributions.")

    def embedding(self, family: str) -> Embedding:
        """One item of the index's family."""
        given = {"location": torch.tensor([self.location], dtype=torch.double)}
        if self.variance is not None:
            given["variance"] = torch.tensor([self.variance], dtype=torch.double)
        if self.concentration is not None:
            given["concentration"] = torch.tensor([self.concentration], dtype=torch.double)
        wanted = set(FAMILIES[family].item_axes)
        if set(given) != wanted:
            raise InputError(
                f"An embedding of this index ({family}) has {', '.join(sorted(wanted))}; got "
                f"{', '.join(sorted(given))}."
            )
        return FAMILIES[family](given)


class SearchBody(Strict):
    """A search with an embedding."""

    embedding: EmbeddingBody
    k: Count = 10
    where: Where | None = None
    confidence: Confidence = 0.9
    trial: Trial = False


class SearchForm(BaseModel):
    """The fields beside the image of a search."""

    model_config = ConfigDict(extra="forbid")
    k: Count = 10
    where: Json[Where | None] | None = None
    confidence: Confidence = 0.9
    trial: Trial = False


class TogetherBody(Strict):
    """A search with embeddings of several photos of one thing."""

    embeddings: Annotated[list[EmbeddingBody], Field(min_length=1, max_length=MOST_PHOTOS)]
    k: Count = 10
    where: Where | None = None
    confidence: Confidence = 0.9
    trial: Trial = False


class CompareBody(Strict):
    """Two embeddings to be compared."""

    first: EmbeddingBody
    second: EmbeddingBody
    prior: Prior = 0.5
    target_error: TargetError = None
    trial: Trial = False


class CompareForm(BaseModel):
    """The fields beside the two images of a comparison."""

    model_config = ConfigDict(extra="forbid")
    prior: Prior = 0.5
    target_error: TargetError = None
    trial: Trial = False


class EmbedForm(BaseModel):
    """An image to be embedded has no fields beside it."""

    model_config = ConfigDict(extra="forbid")


class ItemBody(Strict):
    """An item to be stored, with its embedding."""

    embedding: EmbeddingBody
    id: Id | None = Field(None, description="One is made up where none is given.")
    label: Text | None = None
    metadata: Metadata | None = None


class ItemForm(BaseModel):
    """The fields beside the image of an item to be stored."""

    model_config = ConfigDict(extra="forbid")
    id: Id | None = None
    label: Text | None = None
    metadata: Json[Metadata | None] | None = None


class LabelBody(Strict):
    """What an item shows."""

    label: Name | None = Field(description="null: nobody knows.")


class FeedbackBody(Strict):
    """What someone says of an answer: by its id, or of what an embedding is told now."""

    answer: Id | None = Field(None, description="The id of an answer.")
    embedding: EmbeddingBody | None = Field(None, description="Instead of an id: what was asked.")
    said: Said = None
    label: Name | None = Field(None, description="In place of `said`: what it shows.")
    who: Name | None = None
    at_random: bool = Field(
        False, description="Chosen whatever was answered: only then it counts that it is right."
    )


class FeedbackForm(BaseModel):
    """The fields beside a picture of which something is said."""

    model_config = ConfigDict(extra="forbid")
    said: Said = None
    label: Name | None = None
    who: Name | None = None
    at_random: bool = False
