"""Padded sizes of an expert on storage, counted by hand."""

from simulator.expert_layout import expert_layout, layout_of_bytes, unaligned_request_bytes
from simulator.model.catalog import load_model_spec

PAGE = 4096


def test_layouts_by_hand() -> None:
    """The 4B's expert is 3 x 162 pages: one read of 486, or three of 163 as a tensor may begin within a page."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    assert expert_layout(spec, "bundle") == layout_of_bytes(3 * 663_552, "bundle")
    assert expert_layout(spec, "bundle").padded_bytes == 486 * PAGE
    split = expert_layout(spec, "split")
    assert (split.n_requests, split.request_bytes, split.padded_bytes) == (3, 163 * PAGE, 489 * PAGE)
    assert layout_of_bytes(3 * 5000, "split").request_bytes == 3 * PAGE  # 5000 bytes from byte 4064 touch 3 pages
    assert layout_of_bytes(0, "split").padded_bytes == 0


def test_every_window_is_large_enough() -> None:
    """Whatever the size and wherever it begins, a part lies in the window; a page less would not do for whole pages."""
    for part_bytes in (1, 32, PAGE - 32, PAGE, PAGE + 32, PAGE + 64, 3 * PAGE):
        needed = max(offset + part_bytes for offset in range(0, PAGE, 32))
        assert needed <= unaligned_request_bytes(part_bytes)
        assert part_bytes % PAGE or needed > unaligned_request_bytes(part_bytes) - PAGE
