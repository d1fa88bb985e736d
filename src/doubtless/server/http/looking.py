"""Routes to look through what is served: items by pages, labels, one item, small pictures, examples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field, Json, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from doubtless.errors import InputError
from doubtless.gallery import Item
from doubtless.gallery.answer import finite
from doubtless.server.http import problems, replies, schemas
from doubtless.server.http.problems import BodyError, Fault
from doubtless.server.service.service import Service
from doubtless.server.service.thumbnails import MEDIA_TYPE, Size

LOOKING = (400, 401, 404, 421, 422, 500)
"""Problems that a look at an item may meet."""
LISTING = (400, 401, 421, 422, 500)
MOST_LISTED, MOST_LABELS, MOST_EXAMPLES, MOST_NEIGHBOURS = 200, 1000, 24, 50
KEPT_SECONDS = 3600
"""How long a browser need not ask for a small picture again."""
ItemId = Annotated[str, Path(description="Id of an item.", examples=["shoe-17"], max_length=500)]
Words = Annotated[
    str | None, Query(max_length=200, pattern=r"^[^\x00]*$", description="Substring, in any case.")
]
WHERE: TypeAdapter[Any] = TypeAdapter(Json[schemas.Where | None])


class ItemSummary(BaseModel):
    """What is known of an item."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    has_image: bool = Field(description="Whether its image can be shown.")

    @classmethod
    def of(cls, item: Item, service: Service) -> ItemSummary:
        """Of an item."""
        has_image = service.items.has_image(item.path)
        return cls(id=item.id, label=item.label, metadata=item.metadata, has_image=has_image)


class ItemsReply(BaseModel):
    """A page of items."""

    items: list[ItemSummary]
    total: int = Field(description="Of all pages.")
    next: str | None = Field(description="What `after` is for the next page; null: this was the last.")


class LabelCount(BaseModel):
    """A label, and how many items carry it."""

    label: str
    count: int


class LabelsReply(BaseModel):
    """Labels, the most frequent first."""

    labels: list[LabelCount]
    total: int


class Neighbour(BaseModel):
    """An item beside another one."""

    id: str
    label: str | None
    score: float | None
    probability: float | None
    has_image: bool


class AboutReply(ItemSummary):
    """An item, and what the gallery would say of it were it not there."""

    neighbours: list[Neighbour]
    answer: replies.AnswerReply | None = Field(description="null: there is no other item.")
    doubt: float | None
    parts: dict[str, float | None]
    own_probability: float | None = Field(description="Of its own label, by all other items.")


class ExamplePicture(BaseModel):
    """A picture to ask about that is not in the gallery."""

    name: str
    image: str


class ExamplesReply(BaseModel):
    """What a gallery looks like, and where there are such, pictures to ask it about."""

    items: list[ItemSummary]
    pictures: list[ExamplePicture] = Field(description="Of the demo alone.")


def build(service: Service, *, pictures: Sequence[tuple[str, bytes]] = ()) -> APIRouter:
    """The routes over a service; `pictures` are names and PNG files of pictures to ask about."""
    router = APIRouter()
    _add_items(router, service)
    _add_labels(router, service)
    _add_about(router, service)
    _add_thumbnail(router, service)
    _add_examples(router, service, pictures)
    return router


def _add_items(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/items",
        summary="Items, page by page",
        tags=["items"],
        responses=problems.described(*LISTING),
    )
    def items(
        label: Annotated[list[str] | None, Query(description="Only items of one of these labels.")] = None,
        text: Words = None,
        where: Annotated[
            str | None, Query(description="JSON, as a search takes it.", max_length=10_000)
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 48,
        after: Annotated[str | None, Query(description="`next` of the page before.", max_length=40)] = None,
    ) -> ItemsReply:
        """In the order in which they came. `text` is looked for in ids, labels and values of metadata."""
        chosen = _where(where)
        if label:
            if "label" in chosen:
                raise InputError("Labels are given by `label` or in `where`: one of the two.")
            chosen["label"] = label
        page = service.browse.page(where=chosen, text=text, after=after, count=limit)
        following = None if page.following is None else str(page.following)
        shown = [ItemSummary.of(item, service) for item in page.items]
        return ItemsReply(items=shown, total=page.total, next=following)


def _add_labels(router: APIRouter, service: Service) -> None:
    @router.get("/v1/labels", summary="Labels", tags=["items"], responses=problems.described(*LISTING))
    def labels(text: Words = None, limit: Annotated[int, Query(ge=1, le=MOST_LABELS)] = 50) -> LabelsReply:
        """Labels that items carry, the most frequent first, and how many there are."""
        found, total = service.browse.labels(text, limit)
        return LabelsReply(
            labels=[LabelCount(label=label, count=count) for label, count in found], total=total
        )


def _add_about(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/items/{id:path}/about",
        summary="An item among the others",
        tags=["items"],
        responses=problems.described(*LOOKING),
    )
    def about(id: ItemId, k: Annotated[int, Query(ge=1, le=MOST_NEIGHBOURS)] = 8) -> AboutReply:
        """Its nearest other items, and what the gallery would say of it were it not there."""
        found = service.browse.about(id, k)
        has_image, told = service.items.has_image, found.answer
        neighbours = [
            Neighbour(
                id=hit.id,
                label=hit.label,
                score=finite(hit.score),
                probability=finite(hit.probability),
                has_image=has_image(hit.path),
            )
            for hit in (() if told is None else told.hits)
        ]
        return AboutReply(
            **ItemSummary.of(found.item, service).model_dump(),
            neighbours=neighbours,
            answer=None if told is None else replies.AnswerReply.of(told, has_image),
            doubt=None if told is None else finite(told.doubt),
            parts={} if told is None else {name: finite(value) for name, value in told.parts.items()},
            own_probability=finite(found.own),
        )


def _add_thumbnail(router: APIRouter, service: Service) -> None:
    shown = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}

    @router.get(
        "/v1/items/{id:path}/thumbnail",
        summary="A small picture of an item",
        tags=["items"],
        response_class=Response,
        responses={
            200: {"description": "The picture, fitted inside, never enlarged.", **shown},
            304: {"description": "As it was."},
            **problems.described(*LOOKING, 503),
        },
    )
    async def thumbnail(
        request: Request,
        id: ItemId,
        size: Annotated[Size, Query(description="Pixels along the longer side, at most.")] = Size.MIDDLE,
    ) -> Response:
        """Decoded within the limits of uploads. A browser may keep it, for itself alone."""
        stamp = await run_in_threadpool(service.browse.image_stamp, id)
        tag = f'"{stamp}-{int(size)}"'
        headers = {"ETag": tag, "Cache-Control": f"private, max-age={KEPT_SECONDS}"}
        if has_tag(request, tag):
            return Response(status_code=304, headers=headers)
        made = service.thumbnails.known(stamp, int(size))
        if made is None:
            image = await run_in_threadpool(service.image_of, id)
            made = await service.thumbnails.make(stamp, int(size), image.data)
        return Response(made, media_type=MEDIA_TYPE, headers=headers)


def _add_examples(router: APIRouter, service: Service, pictures: Sequence[tuple[str, bytes]]) -> None:
    @router.get(
        "/v1/examples",
        summary="A few items with images",
        tags=["items"],
        responses=problems.described(*LISTING),
    )
    def examples(limit: Annotated[int, Query(ge=1, le=MOST_EXAMPLES)] = 6) -> ExamplesReply:
        """Each of another label; and in the demo pictures that the gallery does not hold."""
        return ExamplesReply(
            items=[ItemSummary.of(item, service) for item in service.browse.examples(limit)],
            pictures=[
                ExamplePicture(name=name, image=f"/v1/examples/{number}/image")
                for number, (name, _) in enumerate(pictures)
            ],
        )

    @router.get(
        "/v1/examples/{number}/image",
        summary="A picture of the demo",
        tags=["items"],
        response_class=Response,
        responses={
            200: {
                "description": "The picture.",
                "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
            },
            **problems.described(*LOOKING),
        },
    )
    def example(request: Request, number: Annotated[int, Path(ge=0, le=1000)]) -> Response:
        """One to ask about."""
        if number >= len(pictures):
            return problems.response(404, "There is no such picture.")
        data = pictures[number][1]
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        return Response(data, media_type="image/png", headers={"ETag": tag, "Cache-Control": "no-cache"})


def has_tag(request: Request, tag: str) -> bool:
    """Whether a browser has this version of what it asks for."""
    given = request.headers.get("if-none-match", "")
    return tag in {one.strip().removeprefix("W/") for one in given.split(",")}


def _where(given: str | None) -> dict[str, Any]:
    if not given:
        return {}
    try:
        return dict(WHERE.validate_python(given) or {})
    except ValidationError as error:
        raise BodyError([Fault(at="where", detail=one["msg"]) for one in error.errors()[:20]]) from None
