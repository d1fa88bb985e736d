"""What people say of answers: it is kept whole, by several writers at once, and survives `kill -9`."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import DiskFullError, FileError, InputError, StoreError
from doubtless.gallery import Gallery
from doubtless.gallery.calibration.labelled import labelled_queries
from doubtless.gallery.feedback.store import AHEAD, FeedbackStore, Shown
from doubtless.gallery.safekeeping import backup, check
from doubtless.index.backends import INDEXES
from tests.gallery.galleries import gallery as made_up
from tests.index.memory_index import MemoryIndex
from tests.reference.small_disk import fill, small_disk


def shown(id: str = "a1", **other: object) -> Shown:
    return Shown(id, "p", 1.0, "answer", "leek", 0.9, 0.05, (("leek", 0.9),), **other)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> FeedbackStore:
    return FeedbackStore(tmp_path / "shop")


def test_the_last_word_counts_and_every_word_is_kept(store: FeedbackStore) -> None:
    store.keep(shown(drawn=True, asked=True), numbers=b"1234")
    assert store.answers() == [(shown(drawn=True, asked=True), None)]
    first = store.say("a1", "right", who="Ada")
    assert first.truth == "leek"
    second = store.say(shown(), "wrong", label="garlic")  # the one that was drawn stays drawn
    assert (first.number, second.number, second.shown.drawn) == (1, 2, True)
    assert [entry.truth for entry in store.entries()] == ["leek", "garlic"]
    ((_, last),) = store.answers("p")
    assert last is not None
    assert last.verdict == "wrong"
    assert store.answers("another promise") == []
    assert store.numbers([shown()]) == [b"1234"]


def test_nothing_is_made_before_anything_is_said(store: FeedbackStore) -> None:
    assert store.entries() == store.answers() == []
    assert (store.given("p"), store.find("a1"), store.checked()) == (0, None, set())
    assert not store.path.parent.exists()
    with pytest.raises(InputError, match="no answer 'a1' that was kept"):
        store.say("a1", "right")


def test_a_file_whose_first_writer_has_not_ended_holds_nothing(store: FeedbackStore) -> None:
    store.path.parent.mkdir(parents=True, exist_ok=True)
    writer = sqlite3.connect(store.path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE answer (number INTEGER)")
    try:
        assert store.entries() == []
        assert store.find("anything") is None
    finally:
        writer.close()


def test_exports_hold_what_was_said_and_what_was_shown(store: FeedbackStore, tmp_path: Path) -> None:
    store.say(shown(), "wrong", label="garlic, wild", who="Ada")
    assert store.export(tmp_path / "said.csv") == store.export(tmp_path / "said.jsonl") == 1
    (row,) = csv.DictReader((tmp_path / "said.csv").open())
    (line,) = [json.loads(one) for one in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert row["truth"] == line["truth"] == "garlic, wild"
    assert row["shown_label"] == line["shown"]["label"] == "leek"
    assert float(row["shown_probability"]) == line["shown"]["probability"] == 0.9
    with pytest.raises(InputError, match=r"\.csv or \.jsonl"):
        store.export(tmp_path / "said.txt")


def test_answers_are_counted_and_never_too_few(store: FeedbackStore) -> None:
    assert [store.count("p") for _ in range(3)] == [0, 1, 2]
    assert store.given("p") == 3
    other = FeedbackStore(store.path.parent)  # as after a kill: what was reserved counts as given
    assert other.given("p") == AHEAD
    assert other.count("p") == AHEAD
    places = [store.count("p") for _ in range(AHEAD)]
    assert AHEAD not in places
    assert len(set(places)) == AHEAD
    assert store.count("another") == 0


def test_a_damaged_file_is_a_sentence(store: FeedbackStore) -> None:
    store.say(shown(), "right")
    store.path.write_bytes(b"no database, for certain" * 200)
    with pytest.raises(FileError, match="cannot be used"):
        store.entries()


def test_several_writers_lose_nothing(store: FeedbackStore) -> None:
    def write(writer: int) -> list[int]:
        own = FeedbackStore(store.path.parent)
        return [own.say(shown(f"{writer}-{number}"), "right").number for number in range(12)]

    with ThreadPoolExecutor(4) as pool:
        numbers = [number for found in pool.map(write, range(4)) for number in found]
    assert sorted(numbers) == list(range(1, 49))
    assert len(store.entries()) == 48


WRITER = """
import sys
from pathlib import Path
from doubtless.gallery.feedback.store import FeedbackStore, Shown
store = FeedbackStore(Path(sys.argv[1]))
for number in range(100_000):
    id = f"{sys.argv[2]}-{number}"
    store.count("p")
    store.say(Shown(id, "p", 0.0, "answer", "leek", 0.9, 0.05), "wrong", label=id, numbers=bytes(4096))
    print(id, flush=True)
"""


def killed_while_writing(
    folder: Path, kills: int, seconds: float, sides: int = 2
) -> tuple[set[str], set[str]]:
    """What writers, so many at a time, had acknowledged when they were killed, and what is there."""
    acknowledged: set[str] = set()
    for turn in range(kills):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(folder), f"{turn}-{side}"],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ,
            )
            for side in range(sides)
        ]
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.add(writer.stdout.readline().strip())
        time.sleep(seconds * (turn + 1) / kills)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            assert writer.stdout is not None
            acknowledged |= {line.strip() for line in writer.stdout if line.endswith("\n")}
            writer.wait()
    entries = FeedbackStore(folder).entries()
    assert all(entry.label == entry.shown.id for entry in entries)  # none is half of one
    return acknowledged, {entry.shown.id for entry in entries}


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    acknowledged, there = killed_while_writing(tmp_path, 1, 0.3, sides=1)
    assert len(acknowledged) > 1
    assert acknowledged <= there


@pytest.mark.slow
def test_what_was_acknowledged_survives_dozens_of_kills(tmp_path: Path) -> None:
    acknowledged, there = killed_while_writing(tmp_path, 24, 1.0)
    print(f"{len(acknowledged)} entries acknowledged, {len(there - acknowledged)} more were there")
    assert len(acknowledged) > 200
    assert acknowledged <= there
    assert len(there - acknowledged) <= 48  # at most one per writer was on its way


def said_so_far(folder: Path) -> list[object]:
    store = FeedbackStore(folder)
    answers = store.answers()
    kept = [store.numbers([one]) for one, _ in answers], [store.picture(one.id) for one, _ in answers]
    return [store.entries(), answers, sorted(store.checked()), store.given("p"), kept]


def spoiled(data: bytes, draw: random.Random) -> bytes:
    """One fault: mostly where something is written, and not among the zeros of a page."""
    place = draw.choice([at for at in range(len(data)) if data[at]])
    kind = draw.choice(["bit", "bit", "bit", "byte", "zeros", "cut"])
    if kind == "cut":
        return data[:place]
    if kind == "zeros":
        return data[:place] + bytes(min(20, len(data) - place)) + data[place + 20 :]
    new = data[place] ^ 1 << draw.randrange(8) if kind == "bit" else draw.randrange(256)
    return data[:place] + bytes([new]) + data[place + 1 :]


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_fault_is_noticed_or_harmless(store: FeedbackStore, count: int) -> None:
    """When it is read, or by a check."""
    for number in range(30):
        one = shown(f"a{number}", drawn=number % 3 == 0)
        store.keep(one, numbers=bytes(range(1, 33)), picture=b"a picture" * 3)
        store.say(one, "wrong" if number % 2 else "right", label=None if number % 4 else "garlic", who="Ada")
        store.check(f"i{number}", "leek")
    store.count("p")
    folder, whole, draw = store.path.parent, store.path.read_bytes(), random.Random(count)
    assert not store.path.with_name("feedback.sqlite-wal").exists()
    right, found = said_so_far(folder), Counter[str]()
    assert FeedbackStore(folder).damage() == []
    for _ in range(count):
        store.path.write_bytes(spoiled(whole, draw))
        try:
            how = "harmless" if said_so_far(folder) == right else "noticed by check"
        except FileError:
            how = "refused"
        found[how] += 1
        assert how != "noticed by check" or FeedbackStore(folder).damage()
    print(dict(found))
    assert found["refused"] > count // 5


def test_what_an_earlier_version_has_kept_is_sealed_by_the_next_word(store: FeedbackStore) -> None:
    store.say(shown("a1"), "wrong")
    with sqlite3.connect(store.path) as connection:
        for table in ("answer", "said", "checked", "given"):
            connection.execute(f"DROP INDEX {table}_without_seal")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN seal")
        connection.execute("DROP INDEX answer_without_picture_seal")
        connection.execute("ALTER TABLE answer DROP COLUMN picture_seal")
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    before = store.entries()
    assert [entry.verdict for entry in before] == ["wrong"]
    store.say(shown("a2"), "right")
    assert store.entries()[:1] == before
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE said SET verdict = 'right' WHERE number = 1")
    connection.close()
    with pytest.raises(FileError, match="does not hold what was written"):
        store.entries()
    place = store.path.parent
    assert "does not hold what was written" in store.damage()[0]
    assert check(place, thorough=True).damage
    with pytest.raises(StoreError, match="was not copied: What was said of answers"):
        backup(place, place.with_name("copy"))
    assert not place.with_name("copy").exists()


@pytest.fixture(scope="module")
def shop_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("feedback") / "shop"
    embedding, labels = made_up(600, noise=0.4, points=True)
    names = [f"class {label}" for label in labels.tolist()]
    with Gallery.create(place, embedding=embedding, labels=names) as shop:
        shop.calibrate(target_error=0.1)
    return place


@pytest.fixture
def shop(shop_place: Path, tmp_path: Path) -> Gallery:
    """One that nobody has said anything of, open for reading."""
    return Gallery.open(shutil.copytree(shop_place, tmp_path / "shop"))


def queries(count: int, seed: int = 5, noise: float = 0.4) -> tuple[Embedding, list[str]]:
    embedding, labels = made_up(count, noise=noise, seed=seed, points=True)
    return embedding, [f"class {label}" for label in labels.tolist()]


def test_an_answer_is_judged_with_all_that_was_shown(shop: Gallery) -> None:
    embedding, _ = queries(30)
    with shop:
        answers = shop.ask(embedding)
        place = next(place for place, one in enumerate(answers) if one.decision == "answer")
        answer = answers[place]
        assert answer.id == answers[place].id == shop.ask(embedding[place])[0].id
        assert len({one.id for one in answers}) == 30
        entry = shop.feedback(answer, label="class 3" if answer.label != "class 3" else "class 4")
        assert (entry.verdict, entry.shown.id, entry.shown.label) == ("wrong", answer.id, answer.label)
        assert entry.shown.promised == pytest.approx(0.1)
        assert entry.shown.promise == shop.promise_name() != ""
        assert shop.feedback(answer, label=answer.label).verdict == "right"
        assert shop.feedback(answer.id or "", "wrong").verdict == "wrong"
        kept = torch.frombuffer(
            bytearray(shop.judgements.numbers([entry.shown])[0] or b""), dtype=torch.float32
        )
        assert torch.equal(kept, answer.query.location[0].float())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "one of the two"),
        ({"said": "right", "label": "class 1"}, "one of the two"),
        ({"said": "perhaps"}, "right or wrong, got 'perhaps'"),
        ({"label": " "}, "must have a name"),
    ],
)
def test_what_cannot_be_meant_is_refused(shop: Gallery, given: dict[str, str], told: str) -> None:
    with shop, pytest.raises(InputError, match=told):
        shop.feedback(shop.ask(queries(1)[0])[0], **given)  # type: ignore[arg-type]


def test_complaints_do_not_show_that_a_promise_holds_and_drawn_answers_do(shop: Gallery) -> None:
    embedding, names = queries(340)
    with shop:
        assert shop.watch().standing == "too little was said"
        answers = list(shop.ask(embedding))
        for answer, name in list(zip(answers, names, strict=True))[:60]:
            shop.feedback(answer, label=name)
        told = shop.watch()
        assert (told.standing, told.verdict is not None and told.verdict.judged) == ("too little was said", 0)
        assert told.volunteered > 40
        assert "whoever wanted to" in told.sentence
        drawn = shop.keep(answers[60:], seed=0)
        assert len(drawn) == 280
        truth = {answer.id: name for answer, name in zip(answers, names, strict=True)}
        waiting = shop.review(1000, kinds=["answer"])
        assert (
            120 < len(waiting) == waiting.found["answer"] < 280
        )  # of the sure ones every other is asked for
        for question in waiting:
            shop.accept(question.id, truth[question.id.removeprefix("answer:")])
        told = shop.watch()
        assert told.standing == "holds"
        assert shop.status()["watch"]["standing"] == "holds"
        assert json.loads(json.dumps(told.to_json()))["waiting"] == 0
        assert len(shop.review(kinds=["answer"])) == 0


def test_a_shift_is_noticed_and_dated_and_a_new_promise_is_watched_anew(shop: Gallery) -> None:
    with shop:
        place = shop.folder
        for count, other in ((120, ""), (40, " of another make")):  # which looks the same
            embedding, names = queries(count, seed=5 + count)
            for answer, name in zip(shop.ask(embedding), [name + other for name in names], strict=True):
                shop.feedback(answer, label=name, at_random=True)
        told = shop.watch()
        assert told.standing == "no longer holds"
        entries = shop.judgements.entries()
        assert told.since is not None
        assert told.noticed is not None
        assert told.since <= told.noticed
        assert told.since > entries[110].to_json()["shown"]["time"]
        assert told.since in told.sentence
    with Gallery.open(place, writable=True) as again:
        again.calibrate(target_error=0.2)
        assert again.watch().standing == "too little was said"
        assert len(again.judgements.entries()) == 160


def test_drawn_answers_are_labelled_queries_and_complaints_are_not(shop: Gallery) -> None:
    embedding, names = queries(300)
    place = shop.folder
    with shop:
        answers = list(shop.ask(embedding))
        for answer, name in list(zip(answers, names, strict=True))[:40]:
            shop.feedback(answer, label=name)
    with Gallery.open(place, writable=True) as shop:
        with pytest.raises(
            InputError, match="drawn at random, got 0; 40 more were judged by whoever wanted to"
        ):
            shop.calibrate(queries="feedback", target_error=0.2)
        assert len(labelled_queries("feedback:all", shop)) == 40
        shop.keep(answers[40:], seed=1)
        truth = {answer.id: name for answer, name in zip(answers, names, strict=True)}
        for question in shop.review(1000, kinds=["answer"]):
            shop.accept(question.id, truth[question.id.removeprefix("answer:")])
        record = shop.calibrate(queries="feedback", target_error=0.2)
        assert 80 < record["queries"] < 180  # one in two, sure or not
        assert record["given"]["place"] == "feedback"
        for answer in answers[40:80]:
            shop.feedback(answer.id or "", "wrong")
        with pytest.raises(InputError, match="nobody said what"):
            shop.calibrate(queries="feedback", target_error=0.2)


def test_feedback_on_a_gallery_elsewhere_lies_beside_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(INDEXES._items, "memory", MemoryIndex)
    index = MemoryIndex.create("memory:herbs", family="point", dim=4)
    index.add(Embedding.point(torch.eye(4)), list("abcd"), labels=["leek", "leek", "garlic", "garlic"])
    with Gallery(index) as elsewhere:
        elsewhere.feedback(elsewhere.ask(Embedding.point(torch.eye(4)[:1]))[0], "right")
        assert elsewhere.watch().standing is None
        assert elsewhere.judgements.path.is_file()
        assert elsewhere.judgements.path.parent.parent.resolve() == tmp_path
        assert [entry.truth for entry in elsewhere.judgements.entries()] == ["leek"]


def test_on_a_full_disk_it_is_kept_or_refused_and_always_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 5) as disk:
        store, kept = FeedbackStore(disk), 1
        store.say(shown(), "right")
        refused = 0
        for leave in range(0, 320_000, 8192):
            filler = fill(disk, leave=leave)
            try:
                store.say("a1", "right")
                kept += 1
            except DiskFullError:
                refused += 1
            assert len(store.entries()) == kept
            filler.unlink()
        assert refused
        assert store.say("a1", "wrong").number == kept + 1
