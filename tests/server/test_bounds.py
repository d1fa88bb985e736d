"""Filters and metadata over HTTP: long ones are answered or refused with a sentence, never an error of ours."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from doubtless.index.filters import MOST_KEYS, MOST_VALUES
from doubtless.server.http import schemas
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem

TEXT = {"content-type": "application/json"}
DEEP = "[" * 3000 + "]" * 3000
HUGE = "1" + "0" * 5000


def location(service: Service) -> str:
    return json.dumps(service.gallery.index.embedding([0]).location[0].tolist())


def filters(count: int) -> list[str]:
    """JSON of conditions that name so many values; the first ones let some items through."""
    return [
        json.dumps({"label": ["class-0", *(f"no-{number}" for number in range(count - 1))]}),
        json.dumps({"shelf": [None, *range(count - 1)]}),
    ]


def sent(service: Service, address: str, bodies: list[str]) -> list[httpx.Response]:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(address, content=body, headers=TEXT) for body in bodies]

    return asked(service, talk)


@pytest.mark.parametrize("count", [998, 999, 1000, 10_000])
def test_filters_of_many_values_are_answered(service: Service, picture: bytes, count: int) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        for where in filters(count):
            body = f'{{"embedding": {{"location": {location(service)}}}, "where": {where}}}'
            reply = await client.post("/v1/search", content=body, headers=TEXT)
            assert reply.status_code == 200, reply.text
            assert reply.json()["hits"]
            form = await client.post("/v1/search", files={"image": picture}, data={"where": where})
            assert form.status_code == 200, form.text
            if count < 5000:  # httpx sends no longer address
                listed = await client.get("/v1/items", params={"where": where})
                assert listed.status_code == (200 if len(where) <= 10_000 else 422)

    asked(service, talk)


def test_more_is_refused_with_a_sentence(service: Service) -> None:
    start = f'{{"embedding": {{"location": {location(service)}}}, "where": '
    replies = sent(service, "/v1/search", [start + where + "}" for where in filters(10_001)])
    many = json.dumps({f"key-{number}": 1 for number in range(33)})
    replies += sent(service, "/v1/search", [start + many + "}"])
    for reply in replies:
        problem = check_problem(reply, 422)
        said = problem["detail"] + str(problem.get("errors", ""))
        assert "10" in said or "20" in said or "32" in said, said


def test_bodies_of_many_megabytes_are_refused_at_once(service: Service) -> None:
    """Each of them stops everybody else for as long as it takes to be read."""
    start = f'{{"embedding": {{"location": {location(service)}}}, "where": {{"shelf": '
    values = [
        "[" + "1," * 3_000_000 + "1]",
        "[" + "[]," * 3_000_000 + "1]",
        "1" * 10_000_000,
        f'"{"x" * 10_000_000}"',
    ]
    began = time.perf_counter()
    for reply in sent(service, "/v1/search", [f"{start}{value}}}}}" for value in values]):
        check_problem(reply, 422)
    assert time.perf_counter() - began < 2


def test_the_border_accepts_what_the_index_does() -> None:
    described = TypeAdapter(schemas.Where).json_schema()
    assert described["maxProperties"] == MOST_KEYS
    (values,) = described["patternProperties"].values()
    (several,) = (one for one in values["anyOf"] if one["type"] == "array")
    assert several["maxItems"] == MOST_VALUES


ODD = [
    f'{{"a": {DEEP}}}', f'{{"a": {HUGE}}}', f'{{"a": -{HUGE}}}', '{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}',
    '{"a": -1e400}', f'{{"a": {2**63}}}', f'{{"a": {2**64}}}', '{"a": "\\ud800"}', '{"a": "\\u0000"}',
    '{"": 1}', '{"a.b": 1}', '{"$": 1}', "[]", '"text"', "7", '{"a": {"b": 1}}', '{"label": 7}', '{"label": [[]]}',
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=[one[:24] for one in ODD])
def test_odd_filters_and_metadata_are_no_fault_of_ours(service: Service, picture: bytes, value: str) -> None:
    embedding = f'"embedding": {{"location": {location(service)}}}'

    async def talk(client: httpx.AsyncClient) -> None:
        asking: list[Any] = [
            client.post("/v1/search", content=f'{{{embedding}, "where": {value}}}', headers=TEXT),
            client.post("/v1/search", files={"image": picture}, data={"where": value}),
            client.get("/v1/items", params={"where": value}),
            client.post("/v1/items", content=f'{{{embedding}, "metadata": {value}}}', headers=TEXT),
            client.post("/v1/items", files={"image": picture}, data={"metadata": value}),
        ]
        for one in asking:
            reply = await one
            assert reply.status_code < 500, reply.text
            if reply.status_code >= 400:
                check_problem(reply, reply.status_code)
        for address in ("/v1/items", "/v1/labels", "/v1/info"):  # what was stored can be listed
            assert (await client.get(address)).status_code == 200

    asked(service, talk)


def test_metadata_has_a_bound(service: Service, picture: bytes) -> None:
    embedding = f'"embedding": {{"location": {location(service)}}}'
    large = [
        json.dumps({"note": "x" * 70_000}), json.dumps({str(number): 1 for number in range(101)}),
        json.dumps({"list": list(range(30_000))}),
    ]  # fmt: skip
    for reply in sent(service, "/v1/items", [f'{{{embedding}, "metadata": {one}}}' for one in large]):
        check_problem(reply, 422)
    fine = json.dumps({"note": "x" * 60_000})
    assert sent(service, "/v1/items", [f'{{{embedding}, "metadata": {fine}}}'])[0].status_code == 201


@pytest.mark.parametrize(
    "query",
    ["limit=1e9", "limit=" + HUGE, "limit=nan", "after=" + HUGE[:30], "after=-1", "after=x", "text=%00",
     "text=" + "x" * 9000, "label=" + "&label=".join(map(str, range(1500))), "where=%FF", "where=" + "[" * 4000],
    ids=lambda query: query[:16],
)  # fmt: skip
def test_odd_queries_are_no_fault_of_ours(service: Service, query: str) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        for address in ("/v1/items", "/v1/labels", "/v1/review", "/v1/examples"):
            reply = await client.get(f"{address}?{query}")
            assert reply.status_code < 500, (address, reply.text)
            if reply.status_code >= 400:
                check_problem(reply, reply.status_code)

    asked(service, talk)
