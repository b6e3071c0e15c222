"""The tokenizer of a GGUF gives back every text, and the same ids as the tokenizer.json that it was made from."""

from dataclasses import replace
from pathlib import Path

import pytest
from forward_oracle import SMALL, random_weights
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from moeplan.errors import InputError
from reference_runtime.tokenizer import read_tokenizer
from reference_runtime.training.export import Vocabulary, read_vocabulary, write_gguf

TEXTS = {
    "prose": "It's the people's own affair; they'll see to it -- won't they?\n\n  Yes.",
    "code": "def f(x: int) -> str:\n    return f'{x:>8}'  # tabs\tand   spaces\n\n\nclass A:\n    pass\n",
    "maths": "$( Modus ponens. $)  ax-mp $a |- ps $.  (  ( A +  B ) =  4  ->  x e. RR )",
    "russian": "Чтобы вставить таблицу, выберите «Таблица — Вставить»… ёЁ 100 %",
    "odd": "e\u0301 \U0001f600 \u4e2d\u6587\r\n\x00\x7f end",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json trained on the texts, as the corpus module trains its own."""
    tokenizer = LibraryTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(TEXTS.values()) * 3, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def gguf_with(vocabulary: Vocabulary, path: Path) -> Path:
    config = replace(SMALL, n_layers=1, vocab_size=len(vocabulary.tokens))
    write_gguf(random_weights(config), vocabulary, path)
    return path


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("pre_type", ["gpt-2", "qwen2"])
def test_round_trip(kind: str, pre_type: str, trained: Path, tmp_path: Path) -> None:
    """decode(encode(text)) is the text, for each domain's kind of text; qwen2 composes accents first (NFC)."""
    tokenizer = read_tokenizer(gguf_with(replace(read_vocabulary(trained), pre_type=pre_type), tmp_path / "m.gguf"))
    expected = TEXTS[kind].replace("e\u0301", "\u00e9") if pre_type == "qwen2" else TEXTS[kind]
    ids = tokenizer.encode(TEXTS[kind])
    assert tokenizer.decode(ids) == expected
    assert sum(tokenizer.n_bytes[ids]) == len(expected.encode())
    assert len(ids) < len(expected.encode())  # merges are at work


def test_same_ids_as_the_original(trained: Path, tmp_path: Path) -> None:
    """Every text, and the control token's spelling inside one, gets the ids of the tokenizer it came from."""
    original = LibraryTokenizer.from_file(str(trained))
    tokenizer = read_tokenizer(gguf_with(read_vocabulary(trained), tmp_path / "m.gguf"))
    for text in [*TEXTS.values(), "one<|endoftext|>two", ""]:
        assert tokenizer.encode(text) == original.encode(text).ids
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.add_bos) == (320, 0, False)
    assert tokenizer.n_bytes[tokenizer.eos_id] == 0
    assert tokenizer.decode(tokenizer.encode("one<|endoftext|>two")) == "onetwo"


@pytest.mark.parametrize(
    ("changes", "must"),
    [
        ({"pre_type": "gpt-3"}, "did you mean 'gpt-2'?"),
        ({"merges": ("T zzz",)}, "must join two known tokens to a third, got 'T zzz'"),
        ({"merges": ("T",)}, "must join two known tokens"),
    ],
)
def test_bad_tokenizers_are_refused(changes: dict, must: str, trained: Path, tmp_path: Path) -> None:
    """An unknown pre-type and a merge of unknown tokens are one line."""
    with pytest.raises(InputError) as caught:
        read_tokenizer(gguf_with(replace(read_vocabulary(trained), **changes), tmp_path / "m.gguf"))
    assert must in str(caught.value)


def test_a_vocabulary_must_fit_the_model(trained: Path, tmp_path: Path) -> None:
    """A tokenizer of another size than the embedding is refused at export."""
    with pytest.raises(InputError, match="must have the model's 40 tokens, got 320"):
        write_gguf(random_weights(), read_vocabulary(trained), tmp_path / "m.gguf")


def test_bad_tokenizer_json_is_refused(tmp_path: Path) -> None:
    """A file that is no tokenizer.json is one line."""
    (tmp_path / "t.json").write_text('{"model": {}}')
    with pytest.raises(InputError, match=r"must be a tokenizer\.json"):
        read_vocabulary(tmp_path / "t.json")
