"""Any sequence of changes leaves an index that agrees with a dictionary, in what it holds and in what it finds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex
from tests.reference.gallery import DRAWN, brute_force, drawn

NAMES = [f"item {number}" for number in range(12)]
LABELS = ["cat", "dog", None]


class AgainstADictionary(RuleBasedStateMachine):
    """id → (embedding, label, metadata), in the order in which they were last written."""

    folder: Path | None = None

    @initialize(family=st.sampled_from(sorted(DRAWN)))
    def begin(self, family: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.family, self.drawn, self.model = family, 0, {}
        one = drawn(family, 1, dim=4)
        variance = one.parameters.get("variance")
        self.index = FolderIndex.create(
            self.folder / "index",
            family=one.family,
            dim=4,
            variances=None if variance is None else variance.shape[1],
        )
        self.reader = FolderIndex.open(self.folder / "index")

    def teardown(self) -> None:
        if self.folder is not None:
            self.reader.close()
            self.index.close()
            shutil.rmtree(self.folder)

    def fresh(self, count: int) -> Embedding:
        self.drawn += 1
        return drawn(self.family, count, dim=4, seed=self.drawn)

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=5), label=st.sampled_from(LABELS))
    def add(self, names: set[str], label: str | None) -> None:
        new = sorted(names - set(self.model))
        embedding = self.fresh(len(new))
        metadata = [{"drawn": self.drawn}] * len(new)
        self.index.add(embedding, new, labels=[label] * len(new), metadata=metadata)
        for place, name in enumerate(new):
            self.model[name] = (embedding[place], label, {"drawn": self.drawn})

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=5), label=st.sampled_from([*LABELS, "as it was"]))
    def update(self, names: set[str], label: str | None) -> None:
        known = sorted(names & set(self.model))
        embedding = self.fresh(len(known))
        self.index.update(embedding, known, labels=None if label == "as it was" else [label] * len(known))
        for place, name in enumerate(known):
            _, old, metadata = self.model.pop(name)
            self.model[name] = (embedding[place], old if label == "as it was" else label, metadata)

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=4))
    def remove(self, names: set[str]) -> None:
        known = sorted(names & set(self.model))
        self.index.remove(known)
        for name in known:
            del self.model[name]

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = FolderIndex.open(self.folder / "index", writable=True)

    @rule()
    def another_reader(self) -> None:
        self.reader.close()
        self.reader = FolderIndex.open(self.folder / "index")

    @precondition(lambda self: self.folder is not None)
    @invariant()
    def holds_the_same(self) -> None:
        for index in (self.index, self.reader):
            items = index.items(index.rows)
            assert [item.id for item in items] == list(self.model)
            assert [item.label for item in items] == [label for _, label, _ in self.model.values()]
            assert [item.metadata for item in items] == [metadata for *_, metadata in self.model.values()]
            assert len(index) == len(self.model)

    @precondition(lambda self: self.folder is not None)
    @invariant()
    def finds_the_same(self) -> None:
        queries = drawn(self.family, 2, dim=4, seed=10_000)
        for score in ("direction", "expected-distance"):
            own, other = (index.search(queries, 4, score=score) for index in (self.index, self.reader))
            assert torch.equal(own.row, other.row)
            if not self.model:
                assert own.row.max() == -1
                continue
            gallery = Embedding.cat([embedding for embedding, _, _ in self.model.values()])
            rows = self.index.rows.tolist()
            for query, best in enumerate(brute_force(queries, gallery, 4, score=score)):
                wanted = [rows[position] for position, _, _ in best]
                assert own.row[query].tolist() == wanted + [-1] * (4 - len(wanted))
                distances = torch.tensor([distance for *_, distance in best])
                torch.testing.assert_close(
                    own.expected_squared_distance[query, : len(best)], distances, rtol=1e-5, atol=2e-6
                )


AgainstADictionary.TestCase.settings = settings(
    max_examples=15, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAgainstADictionary = AgainstADictionary.TestCase
