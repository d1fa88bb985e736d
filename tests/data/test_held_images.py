"""Prepared images: decoded once by any number of threads, held, and kept on disk from process to process."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from doubtless.data import ImageSet, Preparation, Source, cache, holding, in_order, open_source, tensor_source
from doubtless.data.cache import cache_limit, cached_pixels, read_pixels, remove_oldest, write_pixels
from doubtless.data.holding import SHELF, Shelf, in_threads
from doubtless.data.loading import training_batches
from doubtless.errors import InputError

COUNT = 40
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of two classes, each of another size."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        (folder / f"class-{number % 2}").mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (20 + number % 7, 24 + number % 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"class-{number % 2}" / f"{number:02d}.jpg")
    return folder


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's cache keeps images."""
    monkeypatch.setenv("DOUBTLESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that were read from their source, in the order of reading."""
    seen: list[int] = []
    read = Source.image

    def counted(self: Source, index: int) -> torch.Tensor:
        seen.append(index)
        return read(self, index)

    monkeypatch.setattr(Source, "image", counted)
    return seen


def an_image_set(folder: Path, *, size: int = 16, rows: torch.Tensor | None = None) -> ImageSet:
    """Each time with a source of its own, as another process would have."""
    index = torch.arange(COUNT) if rows is None else rows
    return ImageSet(open_source(f"folder:{folder}"), index, Preparation(channels=3, size=size))


def one_by_one(images: ImageSet) -> torch.Tensor:
    return torch.stack([images[position].inputs for position in range(len(images))])


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_nothing(folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doubtless.data.loading.decoding_threads", lambda: threads)
    images = an_image_set(folder, rows=torch.randperm(COUNT)[:35])  # the last share is not full
    assert torch.equal(images.in_memory(), one_by_one(images))
    batches = list(in_order(images, batch_size=8))  # read on the way
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), one_by_one(images))


def test_results_keep_the_order_of_slow_items_and_few_are_ahead() -> None:
    begun: list[int] = []

    def slow_if_even(number: int) -> int:
        begun.append(number)
        time.sleep(0.01 * (1 - number % 2))
        return number

    results = in_threads(slow_if_even, range(1000), threads=3)
    assert [next(results) for _ in range(10)] == list(range(10))
    results.close()
    assert len(begun) < 30


def test_what_a_thread_raises_comes_to_the_caller(folder: Path, tmp_path: Path) -> None:
    images = an_image_set(folder)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    images.source.paths[COUNT // 2] = broken
    with pytest.raises(InputError, match=r"broken\.jpg cannot be read as an image"):
        images.in_memory()


def test_a_set_is_read_once_in_a_process(folder: Path, reads: list[int]) -> None:
    images = an_image_set(folder)
    first = images.in_memory()
    assert sorted(reads) == list(range(COUNT))
    again = ImageSet(images.source, images.index.clone(), Preparation(channels=3, size=16))
    assert again.in_memory() is first
    assert len(reads) == COUNT
    other = ImageSet(images.source, images.index, Preparation(channels=3, size=18)).in_memory()
    assert other.shape[-1] == 18
    assert len(reads) == 2 * COUNT


def test_what_is_held_goes_with_its_source(folder: Path) -> None:
    before = len(SHELF)
    images = an_image_set(folder)
    images.in_memory()
    assert len(SHELF) == before + 1
    del images
    gc.collect()
    assert len(SHELF) == before


def test_a_shelf_drops_what_was_asked_for_least_recently() -> None:
    class Owner:
        pass

    shelf, owner = Shelf(), Owner()
    for name in ("first", "second"):
        shelf.put(owner, name, torch.zeros(4, dtype=torch.uint8), room=8)
    shelf.get(owner, "first")
    shelf.put(owner, "third", torch.zeros(4, dtype=torch.uint8), room=8)
    assert shelf.get(owner, "second") is None
    assert shelf.get(owner, "first") is not None
    shelf.put(owner, "huge", torch.zeros(9, dtype=torch.uint8), room=8)
    assert shelf.get(owner, "huge") is None
    assert len(shelf) == 2


def test_pixels_that_are_written_to_are_prepared_again() -> None:
    source = tensor_source("some", torch.zeros(4, 1, 9, 9, dtype=torch.uint8), torch.arange(4) % 2)
    images = ImageSet(source, torch.arange(4), Preparation(channels=1, size=6))
    assert int(images.in_memory().max()) == 0
    source.pixels[0] = 255
    assert int(images.in_memory().max()) == 255


def test_a_part_is_taken_from_the_whole_and_not_kept_apart(
    folder: Path, reads: list[int], files: Path
) -> None:
    images = an_image_set(folder)
    rows = torch.tensor([5, 3, 30])
    part = images.part(rows)
    assert torch.equal(part.in_memory(), images.in_memory()[rows])
    assert torch.equal(part.labels, images.labels[rows])
    assert len(reads) == COUNT
    assert len(list(files.glob("*.npy"))) == 1


def test_a_part_of_too_many_is_read_alone(
    folder: Path, reads: list[int], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "MEMORY_BUDGET", 3 * 3 * 16 * 16)
    part = an_image_set(folder).part(torch.tensor([5, 3, 30]))
    assert torch.equal(part.in_memory(), one_by_one(part))
    assert sorted(reads[:3]) == [3, 5, 30]
    assert not list(files.glob("*.npy"))


def test_the_next_process_reads_no_image(folder: Path, reads: list[int], files: Path) -> None:
    first = an_image_set(folder).in_memory()
    reads.clear()
    again = an_image_set(folder).in_memory()
    assert not reads
    assert torch.equal(again, first)
    assert torch.equal(again, one_by_one(an_image_set(folder)))
    (file,) = files.glob("*.npy")
    assert np.load(file, mmap_mode="r").dtype == np.uint8


def test_rows_size_and_files_are_in_the_key(folder: Path, tmp_path: Path, reads: list[int]) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    an_image_set(own).in_memory()
    for options in ({"rows": torch.arange(1, COUNT)}, {"size": 12}):
        reads.clear()
        assert torch.equal(an_image_set(own, **options).in_memory(), one_by_one(an_image_set(own, **options)))
        assert reads
    Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8)).save(own / "class-0" / "00.jpg")
    assert int(an_image_set(own).in_memory()[0].max()) == 0


@pytest.mark.parametrize("damage", ["a byte", "the end", "all"])
def test_a_damaged_file_is_made_again(folder: Path, damage: str, reads: list[int], files: Path) -> None:
    expected = an_image_set(folder).in_memory().clone()
    (file,) = files.glob("*.npy")
    content = bytearray(file.read_bytes())
    if damage == "a byte":
        content[len(content) // 2] ^= 1
    content = {"the end": content[:-5000], "all": bytearray()}.get(damage, content)
    file.write_bytes(content)
    reads.clear()
    assert torch.equal(an_image_set(folder).in_memory(), expected)
    assert len(reads) == COUNT
    reads.clear()
    assert torch.equal(an_image_set(folder).in_memory(), expected)
    assert not reads


def test_who_writes_to_a_tensor_does_not_change_the_file(folder: Path) -> None:
    an_image_set(folder).in_memory()
    mapped = an_image_set(folder).in_memory()
    expected = mapped.clone()
    mapped.zero_()
    assert torch.equal(an_image_set(folder).in_memory(), expected)


def test_several_pieces_have_a_checksum_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PIECE", 100)
    pixels = torch.randint(256, (7, 3, 5, 5), dtype=torch.uint8)
    write_pixels(tmp_path / "some.npy", pixels)
    assert torch.equal(read_pixels(tmp_path / "some.npy", (7, 3, 5, 5)), pixels)
    assert read_pixels(tmp_path / "some.npy", (7, 3, 5, 4)) is None
    assert read_pixels(tmp_path / "none.npy", (7, 3, 5, 5)) is None


def test_the_oldest_go_and_what_was_never_finished(tmp_path: Path) -> None:
    for number, name in enumerate(["old", "middle", "new"]):
        write_pixels(tmp_path / f"{name}.npy", torch.zeros(1000, dtype=torch.uint8))
        os.utime(tmp_path / f"{name}.npy", (number, number))
    read_pixels(tmp_path / "old.npy", (1000,))  # used just now
    (tmp_path / ".gone.npy.abc").write_bytes(b"half")
    (tmp_path / ".busy.npy.abc").write_bytes(b"half")
    os.utime(tmp_path / ".gone.npy.abc", (0, 0))
    size = (tmp_path / "old.npy").stat().st_size
    remove_oldest(tmp_path, 2 * size, keep=tmp_path / "new.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".busy.npy.abc", "new.npy", "old.npy"]
    remove_oldest(tmp_path, 0, keep=tmp_path / "new.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".busy.npy.abc", "new.npy"]


def test_the_limit_is_kept(folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = COUNT * 3 * 16 * 16
    monkeypatch.setenv("DOUBTLESS_CACHE_LIMIT", str(2.5 * one / 2**30))
    for rows in (torch.arange(COUNT), torch.arange(COUNT).flip(0), torch.arange(COUNT).roll(1)):
        an_image_set(folder, rows=rows).in_memory()
        time.sleep(0.01)
    assert len(list(files.glob("*.npy"))) == 2
    an_image_set(folder, size=32).in_memory()  # alone larger than the limit: not kept
    assert len(list(files.glob("*.npy"))) == 2


def test_no_limit_no_file_and_no_number_a_sentence(
    folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBTLESS_CACHE_LIMIT", "0")
    an_image_set(folder).in_memory()
    assert not list(files.glob("*.npy"))
    for wrong in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("DOUBTLESS_CACHE_LIMIT", wrong)
        with pytest.raises(InputError, match=f"number of gigabytes, such as 8, got '{wrong}'"):
            cache_limit()


def test_a_folder_that_cannot_be_written_is_gone_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DOUBTLESS_CACHE", str(tmp_path / "file"))
    images = an_image_set(folder)
    assert torch.equal(images.in_memory(), one_by_one(images))


def test_sources_in_memory_leave_no_file(files: Path) -> None:
    ImageSet(open_source("digits"), torch.arange(50), Preparation(channels=3, size=16)).in_memory()
    assert not files.exists()


TWO = """
import sys, time
from pathlib import Path
import torch
from doubtless.data.cache import cached_pixels

def make():
    Path(sys.argv[1]).write_text("made")
    time.sleep(1)
    return torch.arange(200, dtype=torch.uint8)

print(int(cached_pixels("key", (200,), make).long().sum()))
"""


def test_of_two_processes_one_makes_it(tmp_path: Path) -> None:
    marks = [tmp_path / "one", tmp_path / "two"]
    both = [
        subprocess.Popen([sys.executable, "-c", TWO, str(mark)], stdout=subprocess.PIPE, text=True)
        for mark in marks
    ]
    expected = f"{sum(range(200))}\n"
    assert [process.communicate(timeout=60)[0] for process in both] == [expected, expected]
    assert sum(mark.exists() for mark in marks) == 1


def test_a_killed_writer_leaves_the_lock(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TWO.replace("time.sleep(1)", "time.sleep(60)"), "mark"], cwd=tmp_path
    )
    while not (tmp_path / "mark").exists():
        time.sleep(0.02)
    process.kill()
    process.wait()
    made = cached_pixels("key", (3,), lambda: torch.ones(3, dtype=torch.uint8))
    assert made.tolist() == [1, 1, 1]


@pytest.mark.parametrize("augment", [(), "crop-flip"])
def test_later_epochs_read_no_image(folder: Path, reads: list[int], augment: str) -> None:
    source = open_source(f"folder:{folder}")
    images = ImageSet(source, torch.arange(COUNT), Preparation(channels=3, size=16, augment=augment))
    loader = training_batches(images, batch_size=8, per_class=4, seed=0, workers=2, device=CPU)
    for epoch in range(3):
        loader.epoch = epoch
        assert all(batch.inputs.shape == (8, 3, 16, 16) for batch in loader)
    assert len(reads) == COUNT


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_holds_images_from_pass_to_pass(folder: Path, reads: list[int]) -> None:
    from doubtless.runs.data import image_batches

    images, device = an_image_set(folder), torch.device("cuda")
    passes = [torch.cat(list(image_batches(images, "", None, device=device))) for _ in range(2)]
    assert len(reads) == COUNT
    assert images.held(device) is images.held(device)
    assert {one.device.type for one in passes} == {"cuda"}
    assert torch.equal(passes[0].cpu(), images.in_memory())
