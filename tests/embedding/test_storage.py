"""Embeddings from outside: .npz files, damaged files, files of the future."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from doubtless.embedding import Embedding, read_embedding
from doubtless.errors import InputError


def test_npz_with_uncertainty_from_another_method(tmp_path) -> None:
    path = tmp_path / "theirs.npz"
    np.savez(path, location=np.eye(3), uncertainty=[0.1, 0.2, 0.3], labels=[5, 5, 7], ids=["x", "y", "z"])
    stored = read_embedding(path)
    assert stored.embedding.family == "point"
    assert stored.ids == ["x", "y", "z"]
    torch.testing.assert_close(stored.uncertainty, torch.tensor([0.1, 0.2, 0.3]))


def test_npz_family_follows_from_what_is_there(tmp_path) -> None:
    np.savez(tmp_path / "g.npz", location=np.eye(3), variance=np.ones((3, 1)))
    np.savez(tmp_path / "s.npz", samples=np.ones((4, 3, 2)))
    assert read_embedding(tmp_path / "g.npz").embedding.family == "gaussian"
    assert read_embedding(tmp_path / "s.npz").embedding.family == "empirical"


def test_bad_files_are_sentences(tmp_path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not at all")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    save_file(
        {"location": torch.ones(2, 2)},
        tmp_path / "new.safetensors",
        metadata={"schema": "99", "family": "point"},
    )
    save_file({"location": torch.ones(2, 2)}, tmp_path / "odd.safetensors", metadata={"family": "cauchy"})
    save_file({"location": torch.ones(2, 2)}, tmp_path / "half.safetensors", metadata={"family": "gaussian"})
    for name, sentence in [
        ("missing.npz", "no file"),
        ("broken.safetensors", "no readable safetensors"),
        ("broken.npz", "no readable .npz"),
        ("new.safetensors", "newer doubtless"),
        ("odd.safetensors", "family 'cauchy'"),
        ("half.safetensors", "lacks variance"),
    ]:
        with pytest.raises(InputError, match=sentence):
            read_embedding(tmp_path / name)


def test_ids_must_fit(tmp_path) -> None:
    with pytest.raises(InputError, match="one entry per item"):
        Embedding.point(torch.ones(2, 2)).save(tmp_path / "e.safetensors", ids=["only one"])
