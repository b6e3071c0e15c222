"""The files of a safetensors folder: which belong to the model, and headers that lie."""

import json
from pathlib import Path

import numpy as np
import pytest
from edited_models import save_safetensors, smallthinker_tensors, write_smallthinker
from forward_oracle import random_weights
from safetensors import safe_open

from moeplan.errors import InputError
from reference_runtime.loading.safetensors_weights import read_places
from reference_runtime.loading.weight_loading import open_model


def refused(folder: Path, must: str) -> None:
    with pytest.raises(InputError) as caught:
        open_model(folder)
    assert must in str(caught.value)
    assert "\n" not in str(caught.value)


def test_places_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    """Every tensor of a file, read plainly at its place, is what the format's own library reads."""
    path = write_smallthinker(random_weights(), tmp_path / "m") / "model.safetensors"
    content = path.read_bytes()
    with safe_open(path, "numpy") as file:
        places = read_places(path)
        assert places.keys() == set(file.keys())
        for name, place in places.items():
            data = np.frombuffer(content, np.float32, place.n_bytes // 4, place.offset).reshape(place.shape)
            np.testing.assert_array_equal(data, file.get_tensor(name))


def test_the_right_files_must_be_there(tmp_path: Path) -> None:
    """A folder without a config, without weights, with a hole in its set or with a path in its index is one line."""
    refused(tmp_path, "config.json: must be a file")
    folder = write_smallthinker(random_weights(), tmp_path / "m", n_files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "must hold all files of its index, got 1 missing, first model-00002-of-00003.safetensors")
    index = folder / "model.safetensors.index.json"
    for text in ('{"weight_map": {"a": "../../secret.safetensors"}}', '{"weight_map": {}}', "[]", "{"):
        index.write_text(text)
        refused(folder, "must be an index with a weight_map of plain file names")
    index.unlink()
    refused(folder, "must hold model.safetensors or model.safetensors.index.json, got neither")


@pytest.mark.parametrize("kept_frac", [0, 1e-5, 1e-2, 0.5, 0.999])
def test_truncated_files_are_refused(kept_frac: float, tmp_path: Path) -> None:
    """A file cut anywhere, in its header or its data, is one line."""
    folder = write_smallthinker(random_weights(), tmp_path / "m")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * kept_frac)])
    refused(folder, "model.safetensors: must be a whole safetensors file")


def test_false_headers_are_refused(tmp_path: Path) -> None:
    """Offsets that do not fit the shape or the file, and a shape with a hole, are one line each."""
    path = tmp_path / "m.safetensors"
    for entry in (
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [0, 2], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": "two", "data_offsets": [0, 16]},
        [],
    ):
        text = json.dumps({"a": entry}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
        with pytest.raises(InputError, match="must be a whole safetensors file"):
            read_places(path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """Which of the two would count is not guessed."""
    folder = write_smallthinker(random_weights(), tmp_path / "m", n_files=2)
    tensors = smallthinker_tensors(random_weights())
    save_safetensors(folder / "model-00002-of-00002.safetensors", tensors)
    refused(folder, "must hold no tensor of another file, got model.embed_tokens.weight")
