"""The small print of a sweep: gathered over all its scenarios, each text once, with the inputs that it holds for."""

from dataclasses import replace

from test_sweep_rows import DEVICES, INPUTS, MODEL, TRACES

from simulator.model.catalog import load_model_spec
from simulator.question import Question, prepare
from simulator.sweeps.conditions import sweep_conditions
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import Inputs

MIB, GIB = 2**20, 2**30


def conditions(inputs: Inputs = INPUTS, **axes: tuple[object, ...]) -> dict[str, str]:
    """Of a sweep of the 4B on one device."""
    whole = {"model": (MODEL,), "hardware": DEVICES[:1], "trace": ("four",), **axes}
    return sweep_conditions(SweepDefinition(whole), inputs)  # type: ignore[arg-type]


def test_a_cap_that_cannot_run_tells_nothing() -> None:
    """Prompt chunks are those of the caps that run: below them a chunk would shrink to one token in vain."""
    found = conditions(ram_cap=(100 * MIB, GIB, None))
    assert "in chunks of at most 15, one stream" in found["tokens"]
    assert "at most 1," not in found["tokens"]
    floor = next(cap for cap in range(235 * MIB, 237 * MIB, 2**16) if runs(cap))
    assert "in chunks of at most 1 to 15, one stream" in conditions(ram_cap=(100 * MIB, floor, GIB))["tokens"]


def runs(cap_bytes: int) -> bool:
    """Whether the 4B runs on the device with this RAM cap."""
    question = Question(INPUTS.models[MODEL], INPUTS.profiles[DEVICES[0]], TRACES["four"], ram_cap_bytes=cap_bytes)
    return prepare(question).scenario is not None


def test_every_model_has_its_label() -> None:
    """The stand-in of the second model is not lost; one text for all is told once."""
    other = load_model_spec(MODEL).model_copy(update={"name": "another-4b"})
    own = replace(TRACES["four"], header=replace(TRACES["four"].header, model="another-4b"))
    inputs = replace(INPUTS, models={**INPUTS.models, "another-4b": other}, traces={"four": own})
    found = conditions(inputs, model=(MODEL, "another-4b"), ram_cap=(GIB,))
    assert found["routing"].count("a stand-in for") == 1
    assert f"a stand-in for {MODEL} (model {MODEL})" in found["routing"]
    assert "(model another-4b)" in found["routing"]
    assert found["device"] == INPUTS.profiles[DEVICES[0]].title
    assert found["ram_cap"] == "1.00 GiB (asked for)"


def test_devices_policies_and_caps_are_told_apart() -> None:
    """Each text with what singles it out; numbers that follow the RAM cap as a range; what rows have is left out."""
    found = conditions(hardware=DEVICES, cache=("lru", "belady"), ram_cap=(512 * MIB, GIB), storage_read=(1e9, 2e9))
    assert found["device"].count("(device ") == 2
    assert "(cache policy lru)" in found["cache"]
    assert "told the future: a bound that no runtime reaches (cache policy belady)" in found["cache"]
    assert "lru, 145 to 414 experts" in found["cache"]
    assert not {"ram_cap", "storage"} & found.keys()


def test_nothing_that_can_be_asked_leaves_the_names() -> None:
    """No crash where every scenario fails, nor where none runs."""
    assert conditions(top_k=(6,)) == {"model": MODEL, "device": DEVICES[0]}
    assert not {"tokens", "start"} & conditions(ram_cap=(MIB,)).keys()
