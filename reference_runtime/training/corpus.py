"""
Build the training corpus from freely licensed text of Debian packages and of this Python.

Four clearly different kinds of text, a domain each:

    prose    "An Anarchist FAQ"                    Debian anarchism                GFDL-1.2+ / GPL-2+
    code     the Python standard library           this interpreter                PSF-2.0
    maths    statements of the Metamath set.mm     Debian metamath-databases       CC0-1.0
    russian  LibreOffice help, Debian handbook     Debian libreoffice-help-ru,     MPL-2.0,
                                                   debian-handbook                 GPL-2+ / CC-BY-SA-3.0

Each document ends with an end-of-text token.  One document in twenty is held out (validation), another one is the
development set on which the baseline's interpolation weights are fitted.  Which ones stands in held_out.json by their
hash, so newer packages or another Python never move a held-out document into training.

Newer packages bring other documents, so figures repeat exactly only with the versions that were used: Debian 12
(anarchism 15.3-3, metamath-databases 0.0.0~20210101.git55fe226-2, libreoffice-help-ru 4:7.4.7-1+deb12u14,
debian-handbook 11.20220922) and Python 3.11.7.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reference_runtime.loading.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGES = ("anarchism", "metamath-databases", "libreoffice-help-ru", "debian-handbook")
DOMAINS = ("prose", "code", "maths", "russian")
SPLITS = ("train", "development", "validation")
END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 1024
MAX_DOMAIN_BYTES = 12_000_000
HELD_OUT = Path(__file__).with_name("held_out.json")  # domain -> split -> first 16 hex digits of the text's sha256
MIN_DOCUMENT_CHARS = 400


class _TextOfPage(HTMLParser):
    """Collects the visible text of one HTML page."""

    SKIP = frozenset({"script", "style", "head", "nav"})
    BREAK = frozenset({"p", "div", "li", "h1", "h2", "h3", "h4", "br", "tr", "pre", "dt", "dd"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.skipping += tag in self.SKIP
        if tag in self.BREAK:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.skipping -= tag in self.SKIP

    def handle_data(self, data: str) -> None:
        if self.skipping <= 0:
            self.parts.append(data)


def page_text(html: str) -> str:
    """The visible text of an HTML page: lines as in the source and at blocks, white space folded, none empty."""
    parser = _TextOfPage()
    parser.feed(html)
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _pages(folder: Path, pattern: str) -> Iterator[str]:
    for path in sorted(folder.rglob(pattern)):
        yield page_text(path.read_text(encoding="utf-8", errors="ignore"))


def _code() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts and "lib2to3" not in path.parts:
            yield path.read_text(encoding="utf-8", errors="ignore")


def metamath_statements(text: str, statements_per_document: int = 60) -> Iterator[str]:
    """Axioms, definitions and theorems of a Metamath database with their comments, without the proofs."""
    text = re.sub(r"\$=.*?\$\.", "$.", text, flags=re.DOTALL)  # compressed proofs are close to noise
    parts = re.findall(r"\$\([^$]*\$\)|\S+ \$[aep] .*?\$\.", text, flags=re.DOTALL)
    parts = [re.sub(r"\s+", " ", part) for part in parts if len(part) < 2000]
    for start in range(0, len(parts), statements_per_document):
        yield "\n".join(parts[start : start + statements_per_document])


def documents(domain: str, packages: Path) -> Iterator[str]:
    """The documents of a domain in a fixed order, from packages unpacked below a folder."""
    if domain == "prose":
        yield from _pages(packages / "anarchism", "*.html")
    elif domain == "code":
        yield from _code()
    elif domain == "maths":
        yield from metamath_statements(next(packages.rglob("set.mm")).read_text(encoding="utf-8"))
    elif domain == "russian":
        yield from _pages(packages / "debian-handbook/usr/share/doc/debian-handbook/html/ru-RU", "*.html")
        yield from _pages(packages / "libreoffice-help-ru", "*.html")
    else:
        raise ValueError(f"domain: must be one of {DOMAINS}, got {domain!r}")


def unpack_packages(folder: Path) -> None:
    """Fetch the Debian packages with the system's own client and unpack them, without installing them."""
    for name in PACKAGES:
        if (folder / name).is_dir():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["apt-get", "download", name], cwd=scratch, check=True)
            package = next(Path(scratch).glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder / name)], check=True)


def split_documents(domain: str, packages: Path) -> dict[str, list[str]]:
    """Deal a domain's documents, shuffled with a fixed seed and capped in size, into the three splits."""
    held_out = {
        digest: split
        for split, digests in json.loads(HELD_OUT.read_text(encoding="utf-8"))[domain].items()
        for digest in digests
    }
    kept = sorted({text for text in documents(domain, packages) if len(text) >= MIN_DOCUMENT_CHARS})
    np.random.default_rng(0).shuffle(kept)
    result: dict[str, list[str]] = {split: [] for split in SPLITS}
    n_bytes = 0
    for text in kept:
        if n_bytes > MAX_DOMAIN_BYTES:
            break
        n_bytes += len(text.encode())
        result[held_out.get(hashlib.sha256(text.encode()).hexdigest()[:16], "train")].append(text)
    return result


def train_tokenizer(texts: dict[str, dict[str, list[str]]]) -> "Tokenizer":
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens, learned on the training documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # the GPT-2 pattern
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = (text[:100_000] for domain in DOMAINS for text in texts[domain]["train"][:200])
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def build(output: Path, model: Path | None) -> None:
    """
    Write tokenizer.json and one uint16 token array per domain and split below a folder.

    model: a GGUF whose tokenizer is taken, to evaluate it or to train it on; None learns a new tokenizer.
    """
    packages = output / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    unpack_packages(packages)
    texts = {domain: split_documents(domain, packages) for domain in DOMAINS}
    tokenizer = train_tokenizer(texts) if model is None else read_tokenizer(model).library
    tokenizer.save(str(output / "tokenizer.json"))

    end = tokenizer.token_to_id(END_OF_TEXT)
    sizes: dict[str, dict[str, int]] = {}
    for domain in DOMAINS:
        sizes[domain] = {}
        for split in SPLITS:
            ids: list[int] = []
            for encoding in tokenizer.encode_batch(texts[domain][split]):
                ids.extend(encoding.ids)
                ids.append(end)
            np.save(output / f"{domain}.{split}.npy", np.asarray(ids, dtype=np.uint16))
            sizes[domain][split] = len(ids)
            sizes[domain][split + "_bytes"] = sum(len(text.encode()) for text in texts[domain][split])
    (output / "sizes.json").write_text(json.dumps(sizes, indent=1))
    print(json.dumps(sizes, indent=1))


def main() -> None:
    """Command line: `python -m reference_runtime.training.corpus FOLDER`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder for the packages, the tokenizer and the token arrays")
    parser.add_argument("--model", type=Path, help="GGUF whose tokenizer is taken; without it a new one is learned")
    args = parser.parse_args()
    build(args.output, args.model)


if __name__ == "__main__":
    main()
