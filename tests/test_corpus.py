"""The training corpus: text without markup, mathematics without proofs, held-out documents that stay held out."""

import json

from reference_runtime.training.corpus import DOMAINS, HELD_OUT, metamath_statements, page_text


def test_a_page_becomes_its_visible_text() -> None:
    """Scripts, styles and the head go, blocks become lines, white space is folded, entities are resolved."""
    page = (
        "<html><head><title>no</title></head><body><script>no()</script><h1>A  title</h1><p>one &amp;\n two</p></body>"
    )
    assert page_text(page) == "A title\none &\ntwo"


def test_mathematics_keeps_statements_and_comments_and_drops_proofs() -> None:
    """A compressed proof is close to noise."""
    text = "$( A law. $) id $p |- ( ph -> ph ) $= ( wi ax-1 ) ABCDE $. ax-2 $a |- x $. wff $c x $."
    assert list(metamath_statements(text)) == ["$( A law. $)\nid $p |- ( ph -> ph ) $.\nax-2 $a |- x $."]


def test_no_document_is_in_two_splits() -> None:
    """Development and validation are apart in every domain, and neither is empty."""
    held_out = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    assert set(held_out) == set(DOMAINS)
    for splits in held_out.values():
        development, validation = set(splits["development"]), set(splits["validation"])
        assert development
        assert validation
        assert not development & validation
