import json

import pytest
import torch

from precrop.errors import PrecropError, RecipeError
from precrop.recipes.training.checkpoints import (
    checkpoint_path,
    checkpoints,
    last_whole,
    prune,
    read_checkpoint,
    write_checkpoint,
)

OF = "digits-0123abcd dense seed 0"


def tree():
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    return {
        "weights": {"a.b": torch.randn(3, 2), "count": torch.tensor(7), "empty": torch.zeros(0), "images": images},
        "groups": [{"betas": (0.9, 0.999), "lr": 0.1 + 0.2, "foreach": None, "params": [0, 1]}],
        "state": {0: {"on": True, "half": torch.randn(4).to(torch.bfloat16)}},
        "infinite": float("inf"),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


def test_a_tree_comes_back_as_it_was(tmp_path):
    path = checkpoint_path(tmp_path, 12)
    before = tree()
    write_checkpoint(path, OF, before)
    assert same(read_checkpoint(path, OF), before)
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000012.safetensors"]


def test_what_is_no_plain_value_is_refused(tmp_path):
    with pytest.raises(PrecropError, match=r"cannot hold /a/1, a set"):
        write_checkpoint(checkpoint_path(tmp_path, 1), OF, {"a": [1, {2}]})
    assert not list(tmp_path.iterdir())


def test_any_torn_or_changed_byte_is_found(tmp_path):
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, OF, {"weights": torch.arange(6.0), "step": 3})
    whole = path.read_bytes()
    for cut in (0, 7, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecipeError, match="torn or no safetensors file"):
            read_checkpoint(path, OF)
    found = 0
    for place in range(8, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RecipeError):
            read_checkpoint(path, OF)
        found += 1
    assert found > 50


def test_the_one_before_stands_in_and_the_reason_is_said(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(checkpoint_path(tmp_path, step), OF, {"step": step})
    write_checkpoint(checkpoint_path(tmp_path, 4), "digits-0123abcd uniform seed 0", {"step": 4})
    torn = checkpoint_path(tmp_path, 3)
    torn.write_bytes(torn.read_bytes()[:-1])
    said = []
    assert last_whole(tmp_path, OF, said.append) == checkpoint_path(tmp_path, 2)
    assert len(said) == 2
    assert (
        "of another training (digits-0123abcd uniform seed 0); expected one of digits-0123abcd dense seed 0" in said[0]
    )
    assert "step-00000003.safetensors is torn" in said[1]


def test_a_safetensors_file_of_something_else_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = checkpoint_path(tmp_path, 1)
    save_file({"a": torch.zeros(1)}, path, {"tree": json.dumps({})})
    with pytest.raises(RecipeError, match="no checkpoint of a training"):
        read_checkpoint(path, OF)


def test_the_last_two_are_kept_and_nothing_half_written(tmp_path):
    for step in (90, 100, 110):
        write_checkpoint(checkpoint_path(tmp_path, step), OF, {})
    (tmp_path / ".step-00000120.safetensors.x1y2.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    prune(tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000110.safetensors", "step-00000100.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "notes.txt"
