"""Routes to a gallery seen as a whole: its map, how well it knows, and what in it is worth a look."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import Future
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from doubtless.data.images import uploaded_kinds
from doubtless.gallery import Item
from doubtless.gallery.feedback.review import Looked, Question
from doubtless.gallery.survey import Map, Survey, risk_coverage
from doubtless.server.http import problems
from doubtless.server.http.looking import ItemSummary
from doubtless.server.http.rights import refuse_reader
from doubtless.server.service.decoder import sniffed
from doubtless.server.service.errors import NotFoundError
from doubtless.server.service.service import Service

SEEN = (400, 401, 421, 422, 500, 503)
By = Literal["probability", "uncertainty", "distance"]
BY = "What the doubt is: 1 − the probability of its label's being right, its uncertainty, or a distance."
Got = TypeVar("Got")


class MapPoint(BaseModel):
    """An item on the map."""

    id: str
    label: str | None
    x: float
    y: float
    doubt: float | None
    has_image: bool


class MapReply(BaseModel):
    """Items on a plane, x and y in [0, 1]: near ones look alike to the model."""

    points: list[MapPoint]
    sampled: int
    total: int = Field(description="Items of the gallery.")
    by: By = Field(description=BY)

    @classmethod
    def of(cls, seen: Map, service: Service) -> MapReply:
        """Of a map."""
        survey = seen.survey
        points = []
        for place, (x, y) in zip(seen.places, seen.coordinates.tolist(), strict=True):
            item, doubt = survey.items[place], float(survey.doubt[place])
            points.append(
                MapPoint(
                    id=item.id,
                    label=item.label,
                    x=x,
                    y=y,
                    doubt=doubt if math.isfinite(doubt) else None,
                    has_image=service.items.has_image(item.path),
                )
            )
        return cls(points=points, sampled=len(points), total=survey.total, by=survey.by)


class Option(BaseModel):
    """What something may be instead."""

    label: str
    probability: float


class QuestionReply(BaseModel):
    """One thing to look at."""

    id: str = Field(description="item:ID, answer:ID or pair:ID.")
    kind: Literal["answer", "pair", "label", "duplicate"]
    tells: float = Field(description="The chance that what is stored or shown now is wrong.")
    question: str
    label: str | None
    options: list[Option]
    item: ItemSummary | None
    other: ItemSummary | None = Field(description="Of duplicates and pairs, the other item.")
    answer: str | None = Field(description="What /v1/feedback calls an answer or a pair.")
    image: str | None = Field(description="Where the picture is that was kept with an answer.")


class DoubtfulItem(ItemSummary):
    """An item that one doubts."""

    doubt: float


class ReviewReply(BaseModel):
    """What is worth a person's minute."""

    questions: list[QuestionReply]
    found: dict[str, int]
    notes: list[str]
    least_certain: list[DoubtfulItem]
    sampled: int = Field(description="Items among which the least certain ones were looked for.")
    total: int
    by: By = Field(description=BY)


class ReliabilityPoint(BaseModel):
    """Of what was said with about this probability, the share that was right."""

    probability: float
    right: float
    share: float = Field(description="Of all queries.")


class Reliability(BaseModel):
    """How often probabilities came true, of items that asked for each other."""

    points: list[ReliabilityPoint]
    queries: int


class RiskPoint(BaseModel):
    """For answering this share of the queries, the share of wrong answers."""

    coverage: float
    wrong: float


class PromisedPoint(BaseModel):
    """Where it is answered, and what is promised there."""

    coverage: float
    wrong: float | None
    bound: float | None


class RiskCoverage(BaseModel):
    """How many answers are wrong for answering a share of the queries."""

    points: list[RiskPoint] = Field(
        description="Of all queries, with the share of unknown ones promised for."
    )
    known: list[RiskPoint] = Field(description="Of queries whose label is in the gallery.")
    promised: PromisedPoint | None
    queries: int


class CalibrationReply(BaseModel):
    """How well the gallery knows, what it promises, and whether that still holds."""

    calibrated: bool
    by: Literal["labels", "items"] | None = Field(description="What probabilities are of.")
    reliability: Reliability | None
    risk_coverage: RiskCoverage | None
    promise: dict[str, Any] | None
    rests_on: dict[str, Any] | None = Field(description="What was searched for the calibration.")
    standing: str | None = Field(
        description='"holds", "no longer holds" or "too little was said", by feedback; null: nothing is promised.'
    )
    watch: dict[str, Any]
    withdrawn: str | None
    change: dict[str, Any] | None
    drift: dict[str, Any] | None


def build(service: Service) -> APIRouter:
    """The routes over a service."""
    router = APIRouter()
    _add_map(router, service)
    _add_calibration(router, service)
    _add_review(router, service)
    _add_answer_image(router, service)
    return router


def _add_map(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/map", summary="A map of the gallery", tags=["about"], responses=problems.described(*SEEN)
    )
    async def of_items() -> MapReply:
        """Up to 600 items; worked out once for every state of the gallery."""
        seen = await _awaited(await run_in_threadpool(service.overview.map))
        return await run_in_threadpool(MapReply.of, seen, service)


def _add_calibration(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/calibration",
        summary="How well does it know?",
        tags=["about"],
        responses=problems.described(*SEEN),
    )
    async def calibration() -> CalibrationReply:
        """Its curves, what is promised, what that rests on, and whether it still holds."""
        seen = await _awaited(await run_in_threadpool(service.overview.survey))
        return await run_in_threadpool(_calibration, seen, service)


def _add_review(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/review",
        summary="What is worth a look",
        tags=["about"],
        responses=problems.described(*SEEN),
    )
    async def review(limit: Annotated[int, Query(ge=1, le=100)] = 20) -> ReviewReply:
        """Labels that are probably wrong, pictures there twice, answers and pairs to judge, doubtful items."""
        looked = await _awaited(await run_in_threadpool(service.overview.looked))
        seen = await _awaited(await run_in_threadpool(service.overview.survey))
        return await run_in_threadpool(_review, service, looked, seen, limit)


def _add_answer_image(router: APIRouter, service: Service) -> None:
    binary = {"schema": {"type": "string", "format": "binary"}}
    shown = {kind.media_type: binary for kind in uploaded_kinds().values()}

    @router.get(
        "/v1/answers/{id}/image",
        summary="The picture that was kept with an answer",
        tags=["about"],
        response_class=Response,
        responses={
            200: {"description": "The picture, as it was sent.", "content": shown},
            **problems.described(400, 401, 403, 404, 421, 422, 500),
        },
    )
    def image(request: Request, id: Annotated[str, Path(max_length=100)]) -> Response:
        """Of an answer that was drawn to be judged; only for callers that may change the gallery."""
        refuse_reader(request)
        data = service.gallery.judgements.picture(id)
        media_type = None if data is None else sniffed(data)
        if data is None or media_type is None:
            raise NotFoundError("No picture was kept with this answer.")
        return Response(data, media_type=media_type, headers={"Cache-Control": "private, no-cache"})


def _calibration(seen: Survey, service: Service) -> CalibrationReply:
    status = service.gallery.status()
    record, curve = status["calibration"] or {}, seen.reliability
    by = None if not status["calibrated"] else "labels" if record.get("doubt") == "labels" else "items"
    reliability = None
    if curve is not None:
        rows = zip(curve.x, curve.y, curve.weight or [], strict=True)
        points = [ReliabilityPoint(probability=x, right=y, share=share) for x, y, share in rows]
        reliability = Reliability(points=points, queries=seen.known)
    risk = risk_coverage(service.gallery)
    rests_on = {
        name: record[name]
        for name in ("queries", "labels", "items", "given", "novelty_of", "recalibrated")
        if name in record
    }
    return CalibrationReply(
        calibrated=status["calibrated"],
        by=by,  # type: ignore[arg-type]
        reliability=reliability,
        risk_coverage=None if risk is None else RiskCoverage.model_validate(risk),
        promise=status["promise"],
        rests_on=rests_on or None,
        standing=status["watch"]["standing"],
        watch=status["watch"],
        withdrawn=status["withdrawn"],
        change=status["change"],
        drift=service.status()["drift"],
    )


def _review(service: Service, looked: Looked, seen: Survey, limit: int) -> ReviewReply:
    found = service.gallery.review(limit, looked=looked)
    doubted = []
    for place in seen.least_certain(limit):
        summary = ItemSummary.of(seen.items[place], service)
        doubted.append(DoubtfulItem(**summary.model_dump(), doubt=float(seen.doubt[place])))
    return ReviewReply(
        questions=[_question(service, one) for one in found],
        found=found.found,
        notes=list(found.notes),
        least_certain=doubted,
        sampled=len(seen.items),
        total=seen.total,
        by=seen.by,
    )


def _question(service: Service, one: Question) -> QuestionReply:
    kind, _, name = one.id.partition(":")
    answer = name if kind == "answer" else None
    kept = answer is not None and service.gallery.judgements.picture(answer) is not None
    return QuestionReply(
        id=one.id,
        kind=one.kind,
        tells=one.tells,
        question=one.question,
        label=one.label,
        options=[Option(label=label, probability=chance) for label, chance in one.options],
        item=None if answer is not None else _summary(service, service.gallery.item(name)),
        other=None if one.other is None else _summary(service, service.gallery.item(one.other)),
        answer=one.id if one.kind == "pair" else answer,
        image=f"/v1/answers/{answer}/image" if kept else None,
    )


def _summary(service: Service, item: Item | None) -> ItemSummary | None:
    return None if item is None else ItemSummary.of(item, service)


async def _awaited(future: Future[Got]) -> Got:
    """Waits without taking it from others who wait, should this caller go away."""
    return await asyncio.shield(asyncio.wrap_future(future))
