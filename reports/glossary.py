"""The words of the pages that not everybody knows."""

from simulator.result import Result

LAYER_WORDS = {
    "expert": "One of the many small feed-forward networks of a layer; a router picks top-k of them for each token.",
    "expert cache": "Experts that are kept in RAM. A hit is found there, a miss is read from storage.",
    "t_attention": "Seconds from the moment the experts of a layer are known to the moment they could start.",
    "t_prefetch": "Seconds from that same moment to the arrival of the last missing expert; free up to t_attention.",
    "bubble": "What is left to wait for the experts in a layer: t_prefetch - t_attention, or nothing.",
    "hidden": "A read is hidden where t_attention >= t_prefetch: it ends before anything waits for it.",
    "warm, cold": "A warm start counts no token until the cache is filled; a cold one counts from the first token, on "
    "an empty cache. The first prompt is always timed on an empty cache.",
    "stand-in": "Routing that is not the model's own: recorded from another model, or made up.",
}
PLAN_WORDS = {
    "RAM cap": "The most RAM that the model may take, keys, values and buffers included.",
    "storage read": "The rate of large reads in order, as drives are sold; latencies stay those of the device.",
    "LM-head predictor": "A small network that guesses which words of the vocabulary can win, so that the last matrix "
    "is read in part; now and then it guesses wrong, and the output differs.",
    "front": "The pairs of RAM and storage speed that reach the target and that no other pair beats in both.",
}


def scenario_words(result: Result) -> dict[str, str]:
    """The words of a scenario's page; a dense model's has none of experts and their cache."""
    return LAYER_WORDS if result.memory.all_experts_bytes else {}


def plan_words(result: Result) -> dict[str, str]:
    """The words of a plan's page; a dense model has nothing to stream, and so no front."""
    if result.memory.all_experts_bytes:
        return PLAN_WORDS | LAYER_WORDS
    return {word: meaning for word, meaning in PLAN_WORDS.items() if word != "front"}


DESIGN_WORDS = {
    "32 x 768, top-4": "32 experts a layer, each 768 wide; a token uses 4 of them.",
    "N, A": "Parameters in all, and those that one token multiplies with.",
    "whole row": "The time to read all top-k experts of a token and layer when nothing else runs.",
    "holds from storage": "The slowest storage, by its sequential read, with which it holds as predicted; below it, "
    "safely: with which the low end of the 80 % interval does too.",
    "without locality": "Tokens/s with routing that prefers no expert and repeats nothing.",
}
SWEEP_WORDS = {
    "RAM cap": "The most RAM that the model may take, keys, values and buffers included.",
    "storage read": "The rate of large reads in order, as drives are sold; latencies stay those of the device.",
    "own": "What the device, the model or the trace has itself.",
    "bound": "A cache policy that is told the future (Belady's), so that it misses least; no runtime can follow it.",
}
