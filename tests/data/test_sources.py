"""Sources: what is shipped, folders with every kind of trouble, arrays, torchvision's layout."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from doubtless.data import decode_image, open_source, tensor_source
from doubtless.errors import InputError


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        Image.fromarray(rng.integers(0, 65536, (size[1], size[0]), dtype=np.uint16)).save(path)
    else:
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode).save(path)
    return path


def test_shipped_sample_is_balanced() -> None:
    source = open_source("fashion-sample")
    assert source.pixels.shape == (4000, 1, 28, 28)
    assert torch.bincount(source.labels[source.given_split == 0]).tolist() == [300] * 10
    assert torch.bincount(source.labels[source.given_split == 1]).tolist() == [100] * 10
    assert source.label_names[9] == "Ankle boot"


def test_shipped_sample_is_small() -> None:
    import doubtless.data

    folder = Path(doubtless.data.__file__).parent / "samples"
    assert (folder / "fashion_sample.npz").stat().st_size < 2.5e6
    assert "MIT" in (folder / "LICENSE-fashion-mnist.txt").read_text()


def test_digits_fill_the_range() -> None:
    source = open_source("digits")
    assert source.pixels.shape == (1797, 1, 28, 28)
    assert source.pixels.max() == 255


def test_folder_skips_counts_and_names_bad_files(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / "cat" / f"{i}.jpg", seed=i)
        picture(tmp_path / "dog" / f"{i}.png", seed=i)
    whole = (tmp_path / "cat" / "0.jpg").read_bytes()
    (tmp_path / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "dog" / "text.png").write_text("no image")
    (tmp_path / "dog" / "notes.txt").write_text("not looked at")
    source = open_source(f"folder:{tmp_path}")
    assert len(source) == 6
    assert source.label_names == ["cat", "dog"]
    assert sorted(Path(line.split(":")[0]).name for line in source.skipped) == ["cut.jpg", "text.png"]
    assert source.ids[0] == "cat/0.jpg"


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("L", "png"),
        ("RGB", "jpg"),
        ("RGBA", "png"),
        ("P", "png"),
        ("CMYK", "jpg"),
        ("1", "png"),
        ("I;16", "png"),
        ("LA", "png"),
    ],
)
def test_every_kind_of_image_becomes_rgb_bytes(tmp_path: Path, mode: str, suffix: str) -> None:
    tensor = decode_image(picture(tmp_path / f"x.{suffix}", mode))
    assert tensor.shape == (3, 30, 40)
    assert tensor.dtype == torch.uint8
    assert tensor.float().std() > 20  # sixteen bits were scaled, not cut off


def test_sixteen_bits_keep_their_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 32768, np.uint16)).save(tmp_path / "grey.png")
    assert decode_image(tmp_path / "grey.png").unique().tolist() == [128]


def test_transparency_becomes_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(tmp_path / "clear.png")
    assert decode_image(tmp_path / "clear.png").unique().tolist() == [255]


def test_camera_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # rotated by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert decode_image(tmp_path / "turned.jpg").shape == (3, 40, 20)


def test_nan_in_a_float_image_is_refused(tmp_path: Path) -> None:
    pixels = np.full((8, 8), 0.5, np.float32)
    pixels[3, 3] = np.nan
    Image.fromarray(pixels).save(tmp_path / "x.tiff")
    with pytest.raises(InputError, match="NaN"):
        decode_image(tmp_path / "x.tiff")


@pytest.mark.parametrize("layout", [(6, 8, 8), (6, 8, 8, 3), (6, 3, 8, 8), (6, 8, 8, 1)])
def test_array_layouts(layout: tuple[int, ...]) -> None:
    source = tensor_source("mine", torch.rand(layout), torch.tensor([7, 7, 9, 9, 9, 7]))
    assert source.pixels.shape[-2:] == (8, 8)
    assert source.label_names == ["7", "9"]
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 0]


def test_npz_both_forms(tmp_path: Path) -> None:
    x, y = np.zeros((4, 8, 8), np.uint8), np.array([0, 0, 1, 1])
    np.savez(tmp_path / "parts.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    np.savez(tmp_path / "whole.npz", x=x, y=y, index=np.arange(4))
    assert open_source(f"npz:{tmp_path}/parts.npz").given_split.tolist() == [0, 0, 0, 0, 1, 1]
    assert open_source(f"npz:{tmp_path}/whole.npz").given_split is None


def test_torchvision_layout(tmp_path: Path) -> None:
    """Two tiny files in MNIST's format, read by torchvision itself."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 6), ("t10k", 4)):
        images = np.arange(count * 28 * 28, dtype=np.uint32).astype(np.uint8)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
        )
        labels = (np.arange(count) % 2).astype(np.uint8)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
    source = open_source("torchvision:MNIST", root=tmp_path)
    assert source.pixels.shape == (10, 1, 28, 28)
    assert source.given_split.tolist() == [0] * 6 + [1] * 4


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "1.png")
    before = open_source(f"folder:{tmp_path}").fingerprint()
    assert open_source(f"folder:{tmp_path}").fingerprint() == before
    picture(tmp_path / "b" / "2.png")
    assert open_source(f"folder:{tmp_path}").fingerprint() != before


def bad_npz(tmp_path: Path, **arrays: np.ndarray) -> str:
    np.savez(tmp_path / "bad.npz", **arrays)
    return f"npz:{tmp_path}/bad.npz"


def test_bad_sources_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    nan = np.full((3, 4, 4), np.nan, np.float32)
    y = np.array([0, 0, 1])
    cases = [
        ("fashion-sampel", "did you mean 'fashion-sample'"),
        ("nothing-like-it", "accepted"),
        (f"folder:{tmp_path}/none", "no folder"),
        (f"folder:{tmp_path}/empty", "has no images"),
        (f"npz:{tmp_path}/none.npz", "no file"),
        (f"npz:{tmp_path}/cut.npz", "no readable .npz"),
        ("torchvision:MNIST", "needs data.root"),
        ("torchvision:MNISt", "did you mean 'MNIST'"),
        (bad_npz(tmp_path, x=nan, y=y), "NaN or infinite pixels in 3 images, the first is number 0"),
    ]
    for name, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            open_source(name)
    later = [
        ({"x": np.ones((3, 4, 4), np.float32) * 7, "y": y}, r"floats in \[0, 1\]"),
        ({"x": np.ones((3, 4, 4), np.int32) * 700, "y": y}, "outside 0…255"),
        ({"x": np.ones((3, 4, 4), np.uint8), "y": y[:2]}, "3 images but 2 labels"),
        ({"x": np.ones((3, 4, 4), np.uint8), "y": y.astype(float)}, "whole-number labels"),
        ({"x": np.ones((3, 4), np.uint8), "y": y}, "must have images"),
        ({"x": np.ones((0, 4, 4), np.uint8), "y": y[:0]}, "has no images"),
        ({"q": y}, "must hold x_train"),
    ]
    for arrays, sentence in later:
        with pytest.raises(InputError, match=sentence):
            open_source(bad_npz(tmp_path, **arrays))


def test_torchvision_missing_files_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found below"):
        open_source("torchvision:CIFAR10", root=tmp_path)


def test_a_class_with_one_image_trains_and_is_counted(tmp_path: Path) -> None:
    """It can be no query of its own, and the report says how many such there are."""
    from doubtless.runs.evaluation import evaluate_run
    from doubtless.training.loop import train

    for i in range(12):
        picture(tmp_path / "data" / "cat" / f"{i}.png", seed=i)
        picture(tmp_path / "data" / "dog" / f"{i}.png", seed=100 + i)
    picture(tmp_path / "data" / "emu" / "only.png")
    config = {
        "method": "deterministic",
        "data": {"source": f"folder:{tmp_path}/data", "size": 12, "validation": 0.25, "test": 0.25},
        "model": {"backbone": "conv-fashion", "dim": 4},
        "training": {"epochs": 1, "batch_size": 8, "accelerator": "cpu"},
    }
    run = train(config, tmp_path / "run", quiet=True)
    assert run.load_method().spec.label_names == ["cat", "dog", "emu"]
    found = evaluate_run(run, data=f"folder:{tmp_path}/data", bootstrap=0, report=False)
    assert found.counts["without_positive"] == 1
