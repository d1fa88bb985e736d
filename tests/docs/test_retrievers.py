"""The retrievers of examples/, with the released packages: a threshold is a probability, strangers get nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import doubtless
from tests.docs.pages import ROOT

TOPICS = 6
CENTERS = 3 * np.random.default_rng(0).normal(size=(TOPICS, 16)).astype(np.float32)


def example(name: str) -> Any:
    path = ROOT / "examples" / "retrievers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embed(text: str) -> np.ndarray:
    """ "topic 3" lies near its centre, everything else far from all of them."""
    if text.startswith("topic "):
        return CENTERS[[int(text.split()[1])]] + np.float32(0.1)
    return np.random.default_rng(7).normal(size=(1, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[doubtless.Gallery]:
    place: Path = tmp_path_factory.mktemp("texts") / "gallery"
    topics = np.arange(180) % TOPICS
    noise = np.random.default_rng(1).normal(size=(180, 16)).astype(np.float32)
    with doubtless.Gallery.create(
        place,
        embedding=CENTERS[topics] + noise,
        labels=[f"topic {one}" for one in topics],
        metadata=[{"text": f"about topic {one}"} for one in topics],
    ) as made:
        made.calibrate(target_error=0.1)
    with doubtless.open(place) as opened:
        yield opened


def test_langchain(gallery: doubtless.Gallery) -> None:
    pytest.importorskip("langchain_core", reason="needs langchain-core")
    make = example("with_langchain").DoubtlessRetriever
    found = make(gallery=gallery, embed=embed, threshold=0.5, k=5).invoke("topic 2")
    assert [one.page_content for one in found] == ["about topic 2"] * 5
    assert all(one.metadata["probability"] >= 0.5 for one in found)
    assert found[0].metadata["decision"] == "answer"
    assert found[0].metadata["reason"]
    assert make(gallery=gallery, embed=embed, threshold=0.5).invoke("something else") == []
    assert make(gallery=gallery, embed=embed, threshold=0.0).invoke("something else") != []


def test_llama_index(gallery: doubtless.Gallery) -> None:
    pytest.importorskip("llama_index.core", reason="needs llama-index-core")
    make = example("with_llama_index").DoubtlessRetriever
    found = make(gallery, embed, k=5).retrieve("topic 2")
    assert [one.node.get_content() for one in found] == ["about topic 2"] * 5
    assert all(0.5 <= one.score <= 1 for one in found)
    assert make(gallery, embed).retrieve("something else") == []
