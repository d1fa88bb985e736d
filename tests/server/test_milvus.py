"""A service over an index in Milvus: the same answers, items with images, several askers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from doubtless.index.database.migration import migrate
from doubtless.server.service.service import Service

pytest.importorskip("pymilvus")


def test_answers_are_those_of_the_folder_while_items_come_and_go(
    own_index: Path, picture: bytes, tmp_path: Path
) -> None:
    address = f"milvus:{tmp_path / 'gallery.db'}"
    migrate(str(own_index), address)
    with Service.open(own_index) as service:
        expected = service.answer_images([picture], k=5)[0]
    with Service.open(address) as service:
        found = service.answer_images([picture], k=5)[0]
        assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]
        assert [hit.probability for hit in found.hits] == pytest.approx(
            [hit.probability for hit in expected.hits], abs=1e-5
        )
        assert found.decision == expected.decision

        def ask(number: int) -> str:
            if number % 4 == 0:
                service.add(f"new {number}", picture, label="class-0")
            return service.answer_images([picture], k=3)[0].decision

        with ThreadPoolExecutor(8) as pool:
            assert len(list(pool.map(ask, range(24)))) == 24
        assert service.info()["items"] == 126
        assert service.image_of("new 4").data == picture
        service.remove(["new 4"])
        assert service.info()["items"] == 125
