"""The shipped traces: the shipped weights really route so, domains differ, and they replay on the 4B as they are."""

import numpy as np
import pytest
from forward_oracle import plain_model

from reference_runtime.forward import forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.gguf_weights import fingerprint, read_weights
from simulator.model.catalog import MODELS, load_model_spec
from simulator.scenario import check_trace_fits
from traces import statistics
from traces.catalog import load_trace, trace_names

WEIGHTS = MODELS.parent.parent.parent / "reference_runtime" / "weights" / "tiny-smallthinker-q8_0.gguf"
DOMAINS = ("prose", "code", "maths", "russian")


@pytest.mark.parametrize("name", trace_names())
def test_a_sample_says_whose_routing_it_is_and_fits_the_4b(name: str) -> None:
    """Model, weights, source and licence stand in the header; the shape is the 4B's, without adaptation."""
    trace = load_trace(name)
    assert trace.header.model == "tiny-smallthinker"
    assert trace.header.model_fingerprint == fingerprint(WEIGHTS)
    assert trace.header.source
    assert trace.header.licence
    check_trace_fits(load_model_spec("smallthinker-4b-a0.6b"), trace)
    assert not statistics.looks_uniform(trace)
    assert trace.is_decode.sum() >= 1000


def test_the_shipped_weights_route_as_the_shipped_trace_says() -> None:
    """The first prompt of the prose trace through the numpy forward pass gives the recorded experts, all of them."""
    trace = load_trace("tiny-smallthinker-prose")
    assert trace.token_id is not None
    n_prompt = int((~trace.is_decode[trace.request_id == trace.request_id[0]]).sum())
    weights = read_weights(WEIGHTS)
    result = forward(plain_model(weights), trace.token_id[:n_prompt], KVCache(weights.config, n_prompt))
    same = np.sort(result.expert_ids, axis=2) == np.sort(trace.expert_ids[:n_prompt], axis=2)
    assert same.mean() > 0.999  # another BLAS may turn a near tie


def test_routing_differs_between_domains() -> None:
    """Between two domains the loads diverge several times as much as between halves of one domain's requests."""
    loads = {name: statistics.expert_load(load_trace(f"tiny-smallthinker-{name}")) for name in DOMAINS}
    between = [statistics.routing_divergence(loads[a], loads[b]) for a in DOMAINS for b in DOMAINS if a < b]
    within = []
    for name in DOMAINS:
        trace = load_trace(f"tiny-smallthinker-{name}")
        odd = trace.request_id % 2 == 1
        halves = statistics.expert_load(trace.select(odd)), statistics.expert_load(trace.select(~odd))
        within.append(statistics.routing_divergence(*halves))
    assert min(between) > np.mean(within)
    assert np.mean(between) > 2 * np.mean(within)


def test_the_switching_trace_changes_domain_every_few_dozen_tokens() -> None:
    """Stretches of one domain are a few dozen tokens long, and all four occur."""
    trace = load_trace("tiny-smallthinker-switching")
    lengths = np.diff(np.flatnonzero(np.r_[True, np.diff(trace.domain) != 0, True]))
    assert 24 <= np.median(lengths) <= 96
    assert len(np.unique(trace.domain)) == 4
