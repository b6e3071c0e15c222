"""A tokenizer of a GGUF or a folder gives back every text, with the ids of the tokenizer.json that it came from."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from edited_models import edited
from forward_oracle import SMALL, random_weights
from gguf import GGUFReader, TokenType
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from moeplan.errors import InputError
from reference_runtime.loading.tokenizer import read_tokenizer
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


def with_tokens(source: Path, target: Path, kinds: dict[int, int] | None = None, **keys: object) -> Path:
    """A copy of a GGUF with some token types and tokenizer keys changed."""
    types = GGUFReader(source).fields["tokenizer.ggml.token_type"].contents()
    for token, kind in (kinds or {}).items():
        types[token] = int(kind)
    changes = {f"tokenizer_ggml_{name}": value for name, value in keys.items()}
    return edited(source, target, tokenizer_ggml_token_type=types, **changes)


def test_olmo_splits_as_gpt_2(trained: Path, tmp_path: Path) -> None:
    """OLMoE's pre-tokenizer is GPT-2's after accents are composed."""
    source = gguf_with(read_vocabulary(trained), tmp_path / "m.gguf")
    plain, olmo = read_tokenizer(source), read_tokenizer(with_tokens(source, tmp_path / "olmo.gguf", pre="olmo"))
    for text in TEXTS.values():
        composed = text.replace("e\u0301", "\u00e9")
        assert olmo.encode(text) == plain.encode(composed)
        assert olmo.decode(olmo.encode(text)) == composed


def test_a_user_defined_token_is_taken_whole(trained: Path, tmp_path: Path) -> None:
    """Like `<think>` of Qwen3: its spelling becomes that one token, and decoding gives the spelling back."""
    vocabulary = read_vocabulary(trained)
    tokens = [*vocabulary.tokens[:-1], "<think>"]
    merges = tuple(merge for merge in vocabulary.merges if merge.replace(" ", "") in tokens)
    vocabulary = replace(vocabulary, tokens=tuple(tokens), merges=merges)
    source = gguf_with(vocabulary, tmp_path / "m.gguf")
    tokenizer = read_tokenizer(with_tokens(source, tmp_path / "u.gguf", {319: TokenType.USER_DEFINED}))
    assert tokenizer.encode("it<think>'s") == [*tokenizer.encode("it"), 319, *tokenizer.encode("'s")]
    assert tokenizer.decode(tokenizer.encode("it<think>'s")) == "it<think>'s"
    assert tokenizer.n_bytes[319] == len("<think>")


@pytest.mark.parametrize(
    ("model", "must"),
    [
        (
            "none",
            "tokenizer.ggml.model: must be a tokenizer to turn text into tokens, got none; give token ids instead",
        ),
        ("llama", "tokenizer.ggml.model: must be 'gpt2' (byte-level BPE), got 'llama'; give token ids instead"),
    ],
)
def test_without_a_tokenizer_token_ids_are_asked_for(model: str, must: str, trained: Path, tmp_path: Path) -> None:
    """A random model has no tokenizer and a SentencePiece one is not run: the line says what to do instead."""
    source = gguf_with(read_vocabulary(trained), tmp_path / "m.gguf")
    for path in (
        with_tokens(source, tmp_path / "other.gguf", model=model),
        *([edited(source, tmp_path / "absent.gguf", drop=("tokenizer.ggml.model",))] if model == "none" else []),
    ):
        with pytest.raises(InputError) as caught:
            read_tokenizer(path)
        assert must in str(caught.value)


def test_any_shard_names_the_tokenizer(trained: Path, tmp_path: Path) -> None:
    """The keys are in the first shard only."""
    source = gguf_with(read_vocabulary(trained), tmp_path / "m.gguf")
    edited(source, tmp_path / "split.gguf", split_max_tensors=5)
    last = sorted(tmp_path.glob("split-*.gguf"))[-1]
    assert read_tokenizer(last).encode(TEXTS["prose"]) == read_tokenizer(source).encode(TEXTS["prose"])


def folder_with(tokenizer: Path, folder: Path, said: dict | None = None, config: dict | None = None) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    for name, content in {"tokenizer_config.json": said, "config.json": config}.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def test_the_tokenizer_of_a_folder(trained: Path, tmp_path: Path) -> None:
    """The same ids, bytes and special tokens as the GGUF made from it; the vocabulary is padded to the model's."""
    folder = folder_with(trained, tmp_path / "m", {"eos_token": "<|endoftext|>"}, {"vocab_size": 384})
    tokenizer, of_gguf = (
        read_tokenizer(folder),
        read_tokenizer(gguf_with(read_vocabulary(trained), tmp_path / "m.gguf")),
    )
    for text in TEXTS.values():
        assert tokenizer.encode(text) == of_gguf.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id, tokenizer.add_bos) == (384, 0, -1, False)
    assert tokenizer.n_bytes[:320].tolist() == of_gguf.n_bytes.tolist()
    assert not tokenizer.n_bytes[320:].any()


def test_special_tokens_of_a_folder(trained: Path, tmp_path: Path) -> None:
    """A token may be spelled in an object, or numbered in config.json, the first of several; add_bos_token counts."""
    said = {"bos_token": {"content": "<|endoftext|>"}, "add_bos_token": True}
    tokenizer = read_tokenizer(folder_with(trained, tmp_path / "m", said, {"eos_token_id": [7, 5], "bos_token_id": 9}))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (0, 7, True)
    assert tokenizer.encode("a")[0] == 0


def test_a_sentencepiece_tokenizer_json(tmp_path: Path) -> None:
    """Mixtral's kind runs from a folder: spaces as U+2581, unknown characters as bytes."""
    bytes_of = {f"<0x{i:02X}>": i for i in range(256)}
    library = LibraryTokenizer(
        models.BPE(bytes_of | {"\u2581": 256, "a": 257, "\u2581a": 258}, [("\u2581", "a")], byte_fallback=True)
    )
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.save(str(tmp_path / "t.json"))
    tokenizer = read_tokenizer(folder_with(tmp_path / "t.json", tmp_path / "m"))
    ids = tokenizer.encode(" a\u00e9")
    assert ids == [258, 0xC3, 0xA9]
    assert tokenizer.decode(ids) == " a\u00e9"
    assert tokenizer.n_bytes[ids].tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("change", "must"),
    [
        (lambda c: c.pop("model"), "tokenizer.json: model: must be a BPE model, got none"),
        (lambda c: c["model"].update(type="Unigram"), "must be a BPE model, got 'Unigram'"),
        (lambda c: c["model"].pop("merges"), "must have a vocab, merges and a list of added_tokens"),
        (lambda c: c["model"]["vocab"].update(a="b"), "must map tokens to ids"),
        (
            lambda c: c["model"]["merges"].append(["T", "zzz"]),
            "must join two known tokens to a third, got ['T', 'zzz']",
        ),
        (lambda c: c["added_tokens"][0].pop("content"), "must have id, content and special each"),
    ],
)
def test_bad_folders_are_refused(change: Callable[[dict], object], must: str, trained: Path, tmp_path: Path) -> None:
    """A damaged or another kind of tokenizer.json is one line."""
    content = json.loads(trained.read_text())
    change(content)
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_tokenizer(folder_with(tmp_path / "t.json", tmp_path / "m"))
    assert must in str(caught.value)


def test_a_folder_without_a_tokenizer(trained: Path, tmp_path: Path) -> None:
    """No tokenizer.json asks for token ids; a broken file beside it is named."""
    with pytest.raises(InputError, match=r"must hold a tokenizer\.json .* got none; give token ids"):
        read_tokenizer(tmp_path)
    folder = folder_with(trained, tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: must be valid JSON"):
        read_tokenizer(folder)
