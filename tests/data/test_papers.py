"""The papers' data sets: every layout read as its lists say, split as the standard says, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.data import make_split, open_source
from doubtless.data.check import check_source, recognise
from doubtless.data.papers import PAPERS
from doubtless.errors import InputError
from tests.reference import paper_trees as trees

WRITERS: dict[str, Callable[[Path], Path]] = {
    "cub200": trees.write_cub200,
    "cars196": trees.write_cars196,
    "sop": trees.write_sop,
    "lfw": trees.write_lfw,
    "msls": trees.write_msls,
}


@pytest.fixture(params=sorted(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    return request.param, WRITERS[request.param](tmp_path)


def test_layouts_are_recognised_and_split_by_class(written: tuple[str, Path]) -> None:
    kind, path = written
    assert recognise(str(path)) == f"{kind}:{path}"
    source = open_source(f"{kind}:{path}")
    split = make_split(source, "given", seed=3)
    parts = [set(split.train.tolist()), set(split.validation.tolist()), set(split.test.tolist())]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(source)
    kept_whole = source.labels if source.places is None else source.places.region
    groups = [set(kept_whole[sorted(part)].tolist()) for part in parts]
    for one in range(3):
        for other in range(one):
            assert not groups[one] & groups[other]
    assert source.image(0).shape == (3, 16, 20)
    assert len(source.ids) == len(source)


def test_nothing_is_decoded_before_it_is_asked_for(written: tuple[str, Path]) -> None:
    kind, path = written
    source = open_source(f"{kind}:{path}")
    damaged = source.paths[0]
    damaged.write_text("no image")
    assert len(open_source(f"{kind}:{path}")) == len(source)
    with pytest.raises(InputError, match="cannot be read as an image"):
        source.image(0)
    whole, torn = (check_source(f"{kind}:{path}", decode=decode) for decode in (False, True))
    assert not [line for line in whole.problems if "read" in line]
    assert [
        line for line in torn.problems if line.startswith("1 images cannot be read") and damaged.name in line
    ]


def test_a_missing_image_is_a_sentence(written: tuple[str, Path]) -> None:
    kind, path = written
    source = open_source(f"{kind}:{path}")
    gone = source.paths[2]
    gone.unlink()
    if kind == "lfw":  # its folders are its list of pictures; the people's lists know how many there were
        assert any(gone.parent.name in line for line in check_source(f"lfw:{path}").problems)
        return
    problems = check_source(f"{kind}:{path}").problems
    assert [
        line for line in problems if "1 of" in line and "images are missing" in line and gone.name in line
    ]
    with pytest.raises(InputError, match="names an image that is not there"):
        open_source(f"{kind}:{path}").fingerprint()


def test_the_check_says_what_the_standard_has(written: tuple[str, Path]) -> None:
    kind, path = written
    found = CliRunner().invoke(app, ["sources", "check", str(path)])
    assert found.exit_code == 1
    for name, expected in PAPERS[kind].standard.items():
        differs = name != "test regions"  # the small tree has both test cities
        assert (f"{name}; the standard has {expected:,}." in found.output) == differs
        assert f"(standard: {expected:,})" in found.output
    assert "images are missing" not in found.output
    as_json = json.loads(CliRunner().invoke(app, ["sources", "check", f"{kind}:{path}", "--json"]).output)
    assert as_json["standard"] == dict(PAPERS[kind].standard)
    assert as_json["counts"]["images"] == len(open_source(f"{kind}:{path}"))


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_a_folder_that_is_not_there(kind: str, tmp_path: Path) -> None:
    (only,) = check_source(f"{kind}:{tmp_path / 'none'}").problems
    assert str(tmp_path / "none") in only
    assert only.endswith(".")


def test_what_is_whole_has_no_problems() -> None:
    found = CliRunner().invoke(app, ["sources", "check", "digits"])
    assert found.exit_code == 0
    assert "Nothing is missing." in found.output
    listed = json.loads(CliRunner().invoke(app, ["sources", "list", "--json"]).output)
    assert {"cub200:PATH", "msls:PATH", "digits"} <= {row["source"] for row in listed}


def test_birds_by_number(tmp_path: Path) -> None:
    source = open_source(f"cub200:{trees.write_cub200(tmp_path)}")
    assert source.label_names[:2] == ["Some Bird 1", "Some Bird 2"]
    assert sorted(source.labels[source.given_split == 0].unique().tolist()) == [0, 1, 2, 3, 4, 5]
    assert open_source(f"cub200:{tmp_path}").ids == source.ids  # the folder above will do, too
    (tmp_path / "CUB_200_2011" / "image_class_labels.txt").write_text("1 1\n2 x\n")
    with pytest.raises(InputError, match="disagree on 70 images"):
        open_source(f"cub200:{tmp_path}")


def test_both_layouts_of_the_cars_hold_the_same_cars(tmp_path: Path) -> None:
    whole = open_source(f"cars196:{trees.write_cars196(tmp_path / 'whole')}")
    halves = open_source(f"cars196:{trees.write_cars_devkit(tmp_path / 'devkit')}")
    for source in (whole, halves):
        assert source.label_names[0] == "Make 1 2012"
        assert torch.bincount(source.labels).tolist() == [6] * 10
        # the last class of the first half, 98 of 196, trains
        assert set(source.labels[source.given_split == 0].tolist()) == set(range(5))
        assert set(source.labels[source.given_split == 1].tolist()) == set(range(5, 10))
    assert torch.equal(whole.image(1), halves.image(int(torch.nonzero(halves.labels == 0)[3, 0])))
    (tmp_path / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(InputError, match="the labels of both halves are needed"):
        open_source(f"cars196:{tmp_path / 'devkit'}")


def test_products_by_their_lists(tmp_path: Path) -> None:
    folder = trees.write_sop(tmp_path)
    source = open_source(f"sop:{folder}")
    assert source.label_names[0] == "bicycle 1"
    assert torch.bincount(source.given_split).tolist() == [35, 25]
    train = (folder / "Ebay_train.txt").read_text()
    (folder / "Ebay_test.txt").write_text(train)
    with pytest.raises(InputError, match="share 7 classes"):
        open_source(f"sop:{folder}")
    (folder / "Ebay_test.txt").write_text("image_id class_id super_class_id path\n1 2\n")
    with pytest.raises(InputError, match=r"Line 2 of .* has 2 columns, expected are 4"):
        open_source(f"sop:{folder}")


def test_people_share_nobody_and_keep_every_picture(tmp_path: Path) -> None:
    folder = trees.write_lfw(tmp_path)
    source = open_source(f"lfw:{folder}")
    assert torch.bincount(source.labels).tolist() == [5, 4, 4, 4] * 3
    assert source.label_names[3] == "Person 03"
    test = set(source.labels[source.given_split == 1].tolist())
    assert test == {0, 3, 6, 9}
    assert not test & set(source.labels[source.given_split == 0].tolist())
    (folder / "peopleDevTest.txt").rename(tmp_path / "peopleDevTest.txt")  # beside the folder will do
    assert open_source(f"lfw:{folder}").fingerprint() == source.fingerprint()
    (tmp_path / "peopleDevTest.txt").unlink()
    without = open_source(f"lfw:{folder}")
    assert without.given_split is None
    assert "there is no standard split" in check_source(f"lfw:{folder}").problems[0]
    with pytest.raises(InputError, match="no train and test part of its own"):
        make_split(without, "given")


def test_streets_by_metres(tmp_path: Path) -> None:
    source = open_source(f"msls:{trees.write_msls(tmp_path)}")
    places = source.places
    assert places is not None
    assert not any("pano" in name for name in source.ids)
    # eight stops in six cities, seven in San Francisco's task, one query and two others each
    assert len(source) == 3 * (6 * 8 + 7)
    assert int(places.query.sum()) == 6 * 8 + 7
    assert set(places.region[source.given_split == 1].tolist()) == {2, 4}  # amman boston cph london sf …
    apart = torch.cdist(places.position, places.position)
    assert bool((apart[places.region[:, None] != places.region] > 1e6).all())
    together = source.labels[:, None] == source.labels
    assert float(apart[together].max()) <= places.radius
    assert source.label_names[int(source.labels[0])].startswith("amman 500000")
    with pytest.raises(InputError, match="is split by region"):
        make_split(source, "closed")
    opened = make_split(source, "open")
    assert set(places.region[opened.test].tolist()) == {3, 4, 5, 6}


def test_streets_with_trouble(tmp_path: Path) -> None:
    trees.write_msls(tmp_path)
    problems = check_source(f"msls:{tmp_path}").problems
    assert "The training city berlin is not there." in problems
    (tmp_path / "train_val" / "cph" / "query" / "raw.csv").unlink()
    with pytest.raises(InputError, match=r"There is no file .*raw\.csv"):
        open_source(f"msls:{tmp_path}")
    (tmp_path / "train_val" / "cph" / "query" / "raw.csv").write_text("key,lon\na,1\n")
    with pytest.raises(InputError, match="has no column pano"):
        open_source(f"msls:{tmp_path}")
