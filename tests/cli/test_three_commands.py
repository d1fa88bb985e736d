"""From a folder of photos to answers in three commands, offline, with weights that lie on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Command
from tests.cli.shop_photos import write_shop

ROOT = Path(__file__).parents[2]


def write_weights(folder: Path, name: str) -> Path:
    """Weights of a network of timm that nobody trained, where `doubtless create` looks for them."""
    import timm
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = timm.create_model(name, pretrained=False, num_classes=0).state_dict()
    folder.mkdir(exist_ok=True)
    save_file(state, folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with photos of 8 products, and weights below $DOUBTLESS_DATA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOUBTLESS_DATA", str(write_weights(tmp_path / "data", "test_efficientnet")))
    write_shop(tmp_path / "photos", products=8, photos=6)
    return tmp_path


def test_a_folder_of_photos_is_asked(shop: Path, command: Command) -> None:
    (shop / "photos" / "product-00" / "notes.jpg").write_text("no picture")
    code, out, err = command("create", "shop", "photos/", "--model", "timm:test_efficientnet")
    assert code == 0, err
    assert "48 items created: shop" in out
    assert "product-00/notes.jpg" in out
    assert "answers are wrong" in out or "cannot be promised" in out
    assert "Its most probable label is right for" in out
    assert "Next: doubtless ask shop photo.jpg" in out
    (shop / "data" / "test_efficientnet.safetensors").unlink()  # the gallery has kept its network
    photo = write_shop(shop / "new", products=1, photos=1, start=50) / "product-00" / "050.jpg"
    code, out, err = command("ask", "shop", photo)
    assert code == 0, err
    assert out.splitlines()[1].startswith(("answer: ", "abstain: ", "not-in-gallery: "))
    assert "none of these" in out
    code, out, _ = command("stats", "shop", "--json")
    assert json.loads(out)["calibration"] is not None


def test_one_photo_per_product_needs_others_and_takes_them(shop: Path, command: Command) -> None:
    write_shop(shop / "single", products=8, photos=1)
    model = ("--model", "timm:test_efficientnet")
    code, out, _ = command("create", "bare", "single", *model)
    assert code == 0
    assert "with one photo for each of 8 labels there is nothing to search for" in out
    assert "doubtless calibrate bare --queries FOLDER" in out
    write_shop(shop / "customers", products=8, photos=6, start=20)
    code, out, err = command("create", "asked", "single", *model, "--queries", "customers", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["calibration"]["queries"] == 48
    assert told["promise"]


def test_flat_folders_can_promise_nothing_and_say_so(shop: Path, command: Command) -> None:
    model = ("--model", "timm:test_efficientnet")
    code, out, _ = command("create", "flat", "photos/product-00", *model, "--no-calibrate")
    assert (code, "promised" in out) == (0, False)
    flat = [str(file) for file in sorted((shop / "photos" / "product-01").iterdir())]
    code, out, _ = command("create", "files", *flat, *model)
    assert code == 0
    assert "Nothing can be promised yet: no item has a label. Put photos into a folder per label" in out
    assert "doubtless calibrate files --unlabelled" in out


def test_without_network_and_weights_one_is_told_what_to_do(
    shop: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    code, out, err = command("create", "shop", "photos/")
    assert (code, out) == (2, "")
    assert "cannot be reached for the weights of timm/tf_efficientnet_lite0.in1k" in err
    assert "name it with --weights FILE" in err
    assert "$DOUBTLESS_DATA/tf_efficientnet_lite0.safetensors" in err
    assert time.monotonic() - started < 30
    assert not (shop / "shop").exists()
    for arguments, sentence in [
        (["photos/", "--model", "timm:test_efficientnet", "--weights", "none.safetensors"], "no weights at"),
        (["photos/", "--model", "nowhere"], "There is no model nowhere; accepted: timm:NAME"),
        (["nowhere/"], "There is no folder or file nowhere/."),
        (["--embeddings", "v.npy", "--head", "raw"], "go with images"),
    ]:
        code, _, err = command("create", "shop", *arguments)
        assert (code, sentence in err) == (2, True), err


@pytest.mark.slow
def test_in_a_fresh_environment(tmp_path: Path) -> None:
    """The wheel alone is installed; what it needs is lent by this environment."""
    uv = Path(sys.executable).with_name("uv")
    built = subprocess.run(
        [uv, "build", "--wheel", "--out-dir", tmp_path / "dist", ROOT], capture_output=True, text=True
    )
    if built.returncode:
        pytest.skip(f"A wheel cannot be built here: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    python = fresh / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel], check=True)
    (packages,) = fresh.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    environment["DOUBTLESS_DATA"] = str(write_weights(tmp_path / "data", "tf_efficientnet_lite0"))
    write_shop(tmp_path / "photos", products=8, photos=8)
    photo = write_shop(tmp_path / "new", products=1, photos=1, start=50) / "product-00" / "050.jpg"
    photo.rename(tmp_path / "photo.jpg")

    def doubtless(*arguments: str) -> str:
        words = [str(fresh / "bin" / "doubtless"), *arguments]
        return subprocess.run(
            words, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert "64 items created: shop" in doubtless("create", "shop", "photos/")
    environment["DOUBTLESS_DATA"] = ""
    assert any(word in doubtless("ask", "shop", "photo.jpg") for word in ("answer:", "abstain:", "not-in"))
    where = subprocess.run(
        [python, "-c", "import doubtless; print(doubtless.__file__)"], cwd=tmp_path, env=environment, **TOLD
    ).stdout
    assert str(fresh) in where
    serving = subprocess.Popen(
        [str(fresh / "bin" / "doubtless"), "serve", "shop", "--port", "0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        address = next(line for line in serving.stdout if "serving on" in line).split()[3]
        with urllib.request.urlopen(f"{address}/v1/info", timeout=60) as answer:
            assert json.load(answer)["items"] == 64
    finally:
        serving.terminate()
        serving.wait(60)


TOLD = {"check": True, "capture_output": True, "text": True}
