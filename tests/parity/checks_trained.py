"""The model that is shipped: texts of its domains, exact and quantised, and its tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from parity.llama_cpp_engine import LlamaCpp, llama_cpp_tokens
from parity.ours import Replay, greedy, load, run
from parity.ours_fast import FAST_CHUNKS, load_fast
from parity.rounded_activations import RoundedActivations
from parity.table import EXACT, Row, compare, same_experts_frac, share
from reference_runtime.loading.tokenizer import read_tokenizer
from reference_runtime.training.export import dequantise

ENGINE = "llama.cpp"
N_GREEDY = 100
TEXTS = {
    "essay": (
        "Anarchists reject the idea that people need to be ruled. They argue that a free society is organised from the "
        "bottom up, by those who do the work, and that the means of a movement must already look like its ends. "
    ),
    "Python": (
        'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file without their ends."""\n'
        "    with open(path, encoding=encoding) as file:\n        return [line.rstrip('\\n') for line in file]\n\n"
    ),
    "Metamath": "$( The square of a sum. $)\n  binom2 $p |- ( ( A e. CC /\\ B e. CC ) -> ( ( A + B ) ^ 2 ) = ",
    "Russian help": (
        "Чтобы вставить таблицу в документ, выберите команду Таблица - Вставить. В открывшемся диалоговом окне укажите "
        "число строк и столбцов и нажмите кнопку ОК. "
    ),
    "Russian handbook": (
        "Система управления пакетами Debian следит за зависимостями. Команда apt install устанавливает пакет и всё, "
        "что нужно для его работы; настройки хранятся в каталоге /etc. "
    ),
}
SCRIPTS = (
    *TEXTS.values(),
    "",
    " ",
    "a  b   c\t\td\r\n\r\n  e\n\n\n",
    "I'm, you're, we'll; IT'S. don't! x=1234567890, 3.14159e-10, 0xDEADBEEF",
    "中文和日本語のテキスト、한국어도 있습니다。",
    "العربية وعبرية עברית हिन्दी ไทย ქართული Ελληνικά",
    "naïve café Åström ﬁ ½ ² ™ — “quotes” …",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 \u200b\u00a0\u2028 end",
    "<|endoftext|>text<|endoftext|>",
)
DECOMPOSED = ("e\u0301 a\u0308 o\u0302",)  # Qwen2's tokenizer composes these, llama.cpp does not


def tokenizer_rows(model_path: Path, folder: Path) -> Iterator[Row]:
    """Token ids of texts in many scripts, by the shipped tokenizer and by the same tables under Qwen2's pattern."""
    qwen2 = with_pre_type(model_path, folder / "qwen2.gguf", "qwen2")
    cases = {
        "gpt-2": (model_path, SCRIPTS + DECOMPOSED, 1.0),
        "qwen2": (qwen2, SCRIPTS, 1.0),
        "qwen2, decomposed letters": (qwen2, DECOMPOSED, None),
    }
    for name, (path, texts, limit) in cases.items():
        tokenizer = read_tokenizer(path)
        found = [tokenizer.encode(text) for text in texts]
        equal = [mine == theirs for mine, theirs in zip(found, llama_cpp_tokens(path, texts), strict=True)]
        yield share(f"shipped tokenizer, pattern {name}: {sum(map(len, found)):,} ids of texts", ENGINE, equal, limit)


def with_pre_type(source: Path, target: Path, pre_type: str) -> Path:
    """The keys of a GGUF with another pre-tokenizer, without its weights."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        value = pre_type if field.name == "tokenizer.ggml.pre" else field.contents()
        writer.add_key_value(field.name, value, field.types[0], sub_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return target


def exact_rows(model_path: Path, folder: Path) -> Iterator[Row]:
    """
    The F32 file made from the shipped one: logits, experts, greedy continuations.

    llama.cpp picks experts after the sigmoid, we before it: where a sigmoid is so flat that two scores give the same
    float32, they may differ.  Then the limit holds with llama.cpp's experts taken over.
    """
    exact = folder / "trained-f32.gguf"
    dequantise(model_path, exact)
    tokenizer, ours, engine = read_tokenizer(model_path), load(exact), LlamaCpp(exact, 512)
    for name, text in TEXTS.items():
        tokens = np.array(tokenizer.encode(text))
        expected, expert_ids = engine.logits(tokens), engine.expert_ids(ours.config.top_k)
        logits, ids = run(ours, tokens)
        case, experts, all_same = (
            f"shipped model in F32, {name}",
            (ids, expert_ids),
            same_experts_frac(ids, expert_ids) == 1,
        )
        limit = EXACT if all_same else None
        yield compare(case, ENGINE, logits, expected, limit, experts=experts, least_same_experts_frac=0.99)
        if not all_same:
            yield compare(f"{case}, llama.cpp's experts", ENGINE, run(ours, tokens, Replay(expert_ids))[0], expected)
        prompt = tokens.tolist()
        equal = np.array(greedy(ours, prompt, N_GREEDY)) == np.array(engine.greedy(prompt, N_GREEDY))
        yield share(f"{case}: greedy continuation", ENGINE, equal, 1 if all_same else None)
    engine.close()


def quantised_rows(model_path: Path) -> Iterator[Row]:
    """The Q8_0 file as it is shipped, see checks_smallthinker.quantised_rows."""
    tokenizer, engine = read_tokenizer(model_path), LlamaCpp(model_path, 512)
    plain, emulated, fast = load(model_path), load(model_path, RoundedActivations()), load_fast(model_path)
    for name, text in TEXTS.items():
        tokens = np.array(tokenizer.encode(text))
        expected = engine.logits(tokens)
        case = f"shipped model in Q8_0, {name}"
        logits, ids = run(plain, tokens)
        yield compare(f"{case}, plain dequantisation", ENGINE, logits, expected, 0.05)
        found = run(emulated, tokens, Replay(engine.expert_ids(plain.config.top_k)))[0]
        yield compare(f"{case}, activations rounded, llama.cpp's experts", ENGINE, found, expected, 0.02)
        for chunk, how in FAST_CHUNKS:
            found, fast_ids = run(fast, tokens, chunk=chunk)
            yield compare(f"{case}, fast kernels, {how}", "our plain numpy", found, logits, experts=(fast_ids, ids))
    engine.close()
