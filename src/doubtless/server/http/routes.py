"""The HTTP API: `POST /v1/search` and its companions, over a `Service`."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from torch import Tensor

from doubtless.data.images import uploaded_kinds
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Answer
from doubtless.gallery.together import MOST_PHOTOS
from doubtless.server.http import bodies, problems, replies, schemas, traces
from doubtless.server.http.bodies import FORM, JSON
from doubtless.server.http.looking import ItemSummary
from doubtless.server.http.rights import may_write, refuse_reader
from doubtless.server.service.decoder import Picture
from doubtless.server.service.errors import OverloadedError
from doubtless.server.service.queue import Query, Question
from doubtless.server.service.service import Service, answer_of

USUAL = (400, 401, 403, 408, 413, 415, 421, 422, 500, 503)
"""Problems that any request with a body may meet."""
SMALL = {"location": [0.1, -0.4, 0.8]}
BINARY = {"schema": {"type": "string", "format": "binary"}}
SHOWN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The image, as it was stored.",
        "content": {kind.media_type: BINARY for kind in uploaded_kinds().values()},
    }
}
ItemId = Annotated[str, Path(description="Id of an item.", examples=["shoe-17"], max_length=500)]


def build(service: Service, *, demo: bool = False) -> APIRouter:
    """The routes over a service; `demo`: it is said to be one."""
    router = APIRouter()
    for add in (
        _add_search,
        _add_together,
        _add_compare,
        _add_embed,
        _add_feedback,
        _add_store,
        _add_by_id,
        _add_relabel,
        _add_recalibrate,
    ):
        add(router, service)
    _add_about(router, service, demo=demo)
    return router


def _add_search(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/search",
        summary="Search with an image or an embedding",
        tags=["asking"],
        response_model=replies.AnswerReply,
        responses=problems.described(*USUAL),
        openapi_extra=bodies.described(
            schemas.SearchBody,
            schemas.SearchForm,
            "image",
            example={"embedding": SMALL, "k": 5, "where": schemas.WHERE},
        ),
    )
    async def search(request: Request) -> Response:
        """The nearest items, how likely each is right, and whether that is enough for an answer."""
        asked: schemas.SearchForm | schemas.SearchBody
        image = None
        if bodies.content_type(request, FORM, JSON) == FORM:
            asked, (image,) = await bodies.read_form(request, schemas.SearchForm, "image")
            question = _question(service, asked)
            query = Query(pixels=(await _decoded(service, image)).pixels, question=question)
        else:
            asked = await bodies.read_json(request, schemas.SearchBody)
            question = _question(service, asked)
            query = Query(embedding=_given(service, asked.embedding), question=question)
        with traces.step("answer"):
            answer = answer_of(await asyncio.wrap_future(service.submit(query)))
        traces.note(answer)
        service.judgements.note(answer, image, counted=not asked.where and not asked.trial)
        return _json(await run_in_threadpool(replies.AnswerReply.of, answer, service.items.has_image))


def _add_together(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/together",
        summary="Search with several photos of one thing",
        tags=["asking"],
        response_model=replies.AnswerReply,
        responses=problems.described(*USUAL),
        openapi_extra=bodies.described(
            schemas.TogetherBody, schemas.SearchForm, "image", example={"embeddings": [SMALL, SMALL], "k": 5}
        ),
    )
    async def together(request: Request) -> Response:
        """One answer from all of them: a form has the field `image` as often as there are photos."""
        asked: schemas.SearchForm | schemas.TogetherBody
        photos: list[Tensor] | Embedding
        if bodies.content_type(request, FORM, JSON) == FORM:
            asked, images = await bodies.read_images(request, schemas.SearchForm, "image", most=MOST_PHOTOS)
            photos = [(await _decoded(service, image)).pixels for image in images]
        else:
            asked = await bodies.read_json(request, schemas.TogetherBody)
            photos = Embedding.cat([_given(service, one) for one in asked.embeddings])
        question = _question(service, asked)
        with traces.step("answer"):
            answer = await asyncio.to_thread(service.answer_together, photos, question)
        traces.note(answer)
        service.judgements.note(answer, None, counted=not asked.where and not asked.trial)
        return _json(await run_in_threadpool(replies.AnswerReply.of, answer, service.items.has_image))


def _add_compare(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/compare",
        summary="Do two images show the same?",
        tags=["asking"],
        response_model=replies.CompareReply,
        responses=problems.described(*USUAL),
        openapi_extra=bodies.described(
            schemas.CompareBody,
            schemas.CompareForm,
            "first",
            "second",
            example={"first": SMALL, "second": SMALL, "prior": 0.5},
        ),
    )
    async def compare(request: Request) -> Response:
        """Same, different or cannot tell, by P(same) of two images or embeddings under a prior."""
        asked: schemas.CompareForm | schemas.CompareBody
        if bodies.content_type(request, FORM, JSON) == FORM:
            asked, images = await bodies.read_form(request, schemas.CompareForm, "first", "second")
            first, second = await asyncio.gather(*(_embedded(service, image) for image in images))
        else:
            asked = await bodies.read_json(request, schemas.CompareBody)
            first, second = (_given(service, one) for one in (asked.first, asked.second))
        found = await asyncio.to_thread(
            service.compare, first, second, prior=asked.prior, target_error=asked.target_error
        )
        return _json(replies.CompareReply.of(found))


def _add_embed(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/embed",
        summary="Embed an image",
        tags=["asking"],
        response_model=replies.EmbeddingReply,
        responses=problems.described(*USUAL),
        openapi_extra=bodies.described(None, schemas.EmbedForm, "image"),
    )
    async def embed(request: Request) -> Response:
        """The distribution that the model makes of an image; a search or a comparison takes it as it is."""
        bodies.content_type(request, FORM)
        _, (image,) = await bodies.read_form(request, schemas.EmbedForm, "image")
        return _json(replies.EmbeddingReply.of(service.fitted(await _embedded(service, image))))


def _add_feedback(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/feedback",
        status_code=201,
        summary="Say that an answer is right, wrong, or what it should have been",
        tags=["asking"],
        response_model=replies.FeedbackReply,
        responses=problems.described(*USUAL, 404, 507),
        openapi_extra=bodies.described(
            schemas.FeedbackBody,
            schemas.FeedbackForm,
            "image",
            example={"answer": "5b0f2c7d9e1a3c44", "label": "Sneaker"},
        ),
    )
    async def feedback(request: Request) -> Response:
        """Kept beside the gallery; what is acknowledged is on the disk. The last word on an answer counts."""
        service.items.refuse_read_only()
        said: schemas.FeedbackForm | schemas.FeedbackBody
        judged: str | Answer
        if bodies.content_type(request, FORM, JSON) == FORM:
            said, (image,) = await bodies.read_form(request, schemas.FeedbackForm, "image")
            judged = await _asked(service, pixels=(await _decoded(service, image)).pixels)
        else:
            said = await bodies.read_json(request, schemas.FeedbackBody)
            if (said.answer is None) == (said.embedding is None):
                raise InputError("Feedback is on an answer, by its id, or on an embedding: one of the two.")
            if said.embedding is not None:
                judged = await _asked(service, embedding=_given(service, said.embedding))
            else:
                assert said.answer is not None
                judged = said.answer
        told = service.judgements.say(
            judged, said.said, label=said.label, who=said.who, at_random=said.at_random
        )
        return _json(replies.FeedbackReply.of(await asyncio.wrap_future(told)), status=201)


def _add_store(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/items",
        status_code=201,
        summary="Store an item",
        tags=["items"],
        response_model=replies.ItemReply,
        responses=problems.described(*USUAL, 409, 507),
        openapi_extra=bodies.described(
            schemas.ItemBody,
            schemas.ItemForm,
            "image",
            example={"embedding": SMALL, "id": "shoe-17", "label": "Sneaker", "metadata": {"shelf": 3}},
        ),
    )
    async def store(request: Request) -> Response:
        """Stores an image, with a copy of it, or an embedding. What is acknowledged is on the disk."""
        refuse_reader(request)
        service.items.refuse_read_only()
        asked: schemas.ItemForm | schemas.ItemBody
        image, suffix = None, ""
        if bodies.content_type(request, FORM, JSON) == FORM:
            asked, (image,) = await bodies.read_form(request, schemas.ItemForm, "image")
            picture = await _decoded(service, image)
            reply = await asyncio.wrap_future(service.submit(Query(pixels=picture.pixels)))
            embedding, suffix = reply.embedding, picture.suffix
        else:
            asked = await bodies.read_json(request, schemas.ItemBody)
            embedding = _given(service, asked.embedding)
        id = asked.id or secrets.token_hex(16)
        await run_in_threadpool(
            service.items.add,
            id,
            embedding,
            label=asked.label,
            metadata=asked.metadata,
            image=image,
            suffix=suffix,
        )
        address = None if image is None else replies.image_address(id)
        return _json(replies.ItemReply(id=id, image=address), status=201)


def _add_by_id(router: APIRouter, service: Service) -> None:
    @router.get(
        "/v1/items/{id:path}/image",
        summary="The image of an item",
        tags=["items"],
        response_class=Response,
        responses=SHOWN | problems.described(400, 401, 404, 421, 422, 500),
    )
    def image(id: ItemId) -> Response:
        """Only images of items, and only of the accepted types."""
        found = service.image_of(id)
        return Response(found.data, media_type=found.media_type, headers={"Content-Disposition": "inline"})

    @router.delete(
        "/v1/items/{id:path}",
        status_code=204,
        summary="Remove an item",
        tags=["items"],
        response_class=Response,
        responses=problems.described(400, 401, 403, 404, 421, 422, 500, 507),
    )
    def remove(request: Request, id: ItemId) -> Response:
        """Takes an item out, and the copy of its image that was stored with it."""
        refuse_reader(request)
        service.remove([id])
        return Response(status_code=204)


def _add_relabel(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/items/{id:path}/label",
        summary="Say what an item shows",
        tags=["items"],
        response_model=ItemSummary,
        responses=problems.described(*USUAL, 404, 507),
        openapi_extra=bodies.json_body(schemas.LabelBody, example={"label": "Sneaker"}),
    )
    async def relabel(request: Request, id: ItemId) -> Response:
        """Its image and metadata stay. The label that it has already is taken as confirmed."""
        refuse_reader(request)
        service.items.refuse_read_only()
        bodies.content_type(request, JSON)
        said = await bodies.read_json(request, schemas.LabelBody)
        await run_in_threadpool(service.items.relabel, id, said.label)
        item = await run_in_threadpool(service.items.get, id)
        return _json(await run_in_threadpool(ItemSummary.of, item, service))


def _add_recalibrate(router: APIRouter, service: Service) -> None:
    @router.post(
        "/v1/recalibrate",
        summary="Calibrate again after items came and went",
        tags=["items"],
        responses=problems.described(400, 401, 403, 421, 422, 500, 507),
    )
    def recalibrate(request: Request) -> replies.RecalibrationReply:
        """Only what changed is searched; questions are answered meanwhile, by what was calibrated before."""
        refuse_reader(request)
        record = service.recalibrate()
        promise = service.gallery.judge_of().promise()
        return replies.RecalibrationReply(items=record["items"], promise=promise, **record["recalibrated"])


def _add_about(router: APIRouter, service: Service, *, demo: bool) -> None:
    @router.get(
        "/v1/info",
        summary="What is served",
        tags=["about"],
        responses=problems.described(400, 401, 421, 500),
    )
    def info(request: Request) -> replies.InfoReply:
        """Index, model, promises of the calibration, drift, limits, and what this caller may do."""
        rights = {
            "may_write": not service.read_only and may_write(request),
            "may_judge": not service.read_only,
            "demo": demo,
        }
        return replies.InfoReply.model_validate(service.info() | rights)

    @router.get(
        "/v1/status",
        summary="Does what was promised still hold?",
        tags=["about"],
        responses=problems.described(400, 401, 421, 500),
    )
    def status() -> replies.StatusReply:
        """What is promised, and what people's judgements and recent queries say of it."""
        return replies.StatusReply.model_validate(service.status())

    @router.get("/healthz", summary="Is it alive?", tags=["about"], responses=problems.described(400, 421))
    async def health() -> replies.HealthReply:
        """Answers without a token, and looks at nothing: `/readyz` does."""
        return replies.HealthReply()

    @router.get(
        "/readyz", summary="Can it answer?", tags=["about"], responses=problems.described(400, 421, 503)
    )
    async def ready() -> replies.ReadyReply:
        """Disk, database and model are tried, once a second at most. Answers without a token."""
        missing = await service.readiness.missing()
        if missing is not None:
            raise OverloadedError(missing)
        return replies.ReadyReply()


def _question(
    service: Service, asked: schemas.SearchForm | schemas.SearchBody | schemas.TogetherBody
) -> Question:
    return service.question(asked.k, where=asked.where, confidence=asked.confidence, watched=not asked.trial)


async def _asked(service: Service, **query: Any) -> Answer:
    """What a picture or an embedding is told, without its being counted as asked."""
    question = service.question(min(10, service.limits.k), watched=False)
    return answer_of(await asyncio.wrap_future(service.submit(Query(**query, question=question))))


async def _decoded(service: Service, image: bytes) -> Picture:
    with traces.step("decode"):
        return await asyncio.wrap_future(service.decode(image))


async def _embedded(service: Service, image: bytes) -> Embedding:
    picture = await _decoded(service, image)
    return (await asyncio.wrap_future(service.submit(Query(pixels=picture.pixels)))).embedding


def _given(service: Service, body: schemas.EmbeddingBody) -> Embedding:
    return service.fitted(body.embedding(service.gallery.index.family))


def _json(reply: BaseModel, status: int = 200) -> Response:
    return Response(reply.model_dump_json(), status, media_type=JSON)
