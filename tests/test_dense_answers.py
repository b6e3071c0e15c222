"""A dense model has no experts: no answer about it speaks of them, of their cache or of their routing."""

import json
import re
from pathlib import Path

import pytest

from simulator.model.catalog import load_model_spec, model_names

DENSE = [name for name in model_names() if load_model_spec(name).experts is None]
OF_EXPERTS = re.compile(
    r"expert|cache(?! f16)(?! when)|\bmiss(?!ing)|rout|bubble|t_prefetch|stand-in|prefetch", re.IGNORECASE
)
DEVICE = ["--hardware", "raspberry-pi-5-nvme"]


def words_of(text: str) -> str:
    """The words of a page or of an answer, its pictures left out."""
    text = re.sub(r"<style>.*?</style>|data:image[^\"]+", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).replace("KV cache", "keys").split())


def test_dense_models_ship() -> None:
    """Or the tests below would prove nothing."""
    assert len(DENSE) >= 2


@pytest.mark.parametrize("name", DENSE)
def test_an_answer_about_a_dense_model_has_no_word_of_experts(moeplan, name: str, tmp_path: Path) -> None:
    """In RAM and where it cannot run, on the terminal and on the page."""
    for cap, verdict in (("4GiB", "resident"), ("64MiB", "cannot_run")):
        page = tmp_path / f"{cap}.html"
        asked = ["simulate", "--model", name, *DEVICE, "--ram-cap", cap, "--engine", "fast"]
        told = moeplan(*asked, "--output", str(page))
        assert told.status == 0
        for text in (words_of(told.out), words_of(page.read_text(encoding="utf-8"))):
            assert not OF_EXPERTS.search(text), OF_EXPERTS.search(text)
        answer = json.loads(moeplan(*asked, "--json").out)
        assert answer["verdict"] == verdict
        assert not OF_EXPERTS.search(words_of(json.dumps(answer["small_print"]) + answer["arithmetic"]))


def test_a_plan_for_a_dense_model_has_no_word_of_experts(moeplan, tmp_path: Path) -> None:
    """Nor a map over storage speeds, which play no part."""
    page = tmp_path / "plan.html"
    asked = ["plan", "--model", DENSE[0], *DEVICE, "--engine", "fast", "--ram-cap", "4GiB"]
    for target in ("10", "1000"):
        told = moeplan(*asked, "--target-tokens-per-s", target, "--output", str(page))
        assert told.status == 0
        for text in (words_of(told.out), words_of(page.read_text(encoding="utf-8"))):
            assert not OF_EXPERTS.search(text), OF_EXPERTS.search(text)
            assert "Framed" not in text


def test_a_mapped_dense_model_waits_for_pages(moeplan, tmp_path: Path) -> None:
    """Page faults, not experts that miss; and it does not claim that all weights are in RAM."""
    page = tmp_path / "mapped.html"
    told = moeplan(
        "simulate", "--model", DENSE[0], *DEVICE, "--layout", "mmap", "--ram-cap", "250MiB", "--output", str(page)
    )
    assert told.status == 0
    for text in (words_of(told.out), words_of(page.read_text(encoding="utf-8"))):
        assert "expert" not in text.lower()
        assert "Waiting for pages" in text
        assert "all weights are in RAM" not in text
