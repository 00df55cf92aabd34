"""Text sets from files, and their features in a file: the right ones, once, and errors that name the line."""

import csv
import json

import numpy as np
import pytest
import tiny_encoder

from covfree.backbones import sentence_encoder
from covfree.backbones.sentence import SentenceEncoder
from covfree.data import TextSet, encode_texts, load_npz, load_texts, read_feature_file

ITEMS = [
    ("the rain is on", "weather", "ann", "train"),
    ('the "salt", the soup', "kitchen", "ben", "train"),
    ("wind today", "weather", "ben", "val"),
    ("bread today", "kitchen", "", "test"),
    ("the sun is a sun", "weather", "", "test"),
]
KEPT = [0, 1, 3, 4]


def quoted(text):
    return '"' + text.replace('"', '""') + '"' if '"' in text else text


def as_csv():
    return "\ufeffsplit,text,more,label,client\n" + "".join(
        f"{split},{quoted(text)},x,{label},{client}\n" for text, label, client, split in ITEMS
    )


def as_tsv():
    return "client\ttext\tlabel\tsplit\n" + "".join(
        f"{client}\t{text}\t{label}\t{split}\n" for text, label, client, split in ITEMS
    )


def as_jsonl():
    names = ("text", "label", "client", "split")
    return "\n".join(["", *(json.dumps(dict(zip(names, item, strict=True))) for item in ITEMS)])


FORMATS = {".csv": as_csv, ".tsv": as_tsv, ".jsonl": as_jsonl}


@pytest.fixture
def file(tmp_path):
    """Writes a file, e.g. ``file(".csv", content)``."""

    def write(suffix, content):
        path = tmp_path / f"mails{suffix}"
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("suffix", FORMATS)
def test_tables_and_lines(file, suffix):
    texts = load_texts(file(suffix, FORMATS[suffix]()))
    assert texts.name == "mails"
    assert texts.texts == tuple(ITEMS[i][0] for i in KEPT)
    assert texts.ids == tuple(f"line {i + 2}" for i in KEPT)
    assert texts.class_names == ("kitchen", "weather")
    assert texts.labels.tolist() == [1, 0, 0, 1]
    assert texts.clients is not None
    assert texts.clients.tolist() == ["ann", "ben", "", ""]
    assert texts.is_test is not None
    assert texts.is_test.tolist() == [False, False, True, True]
    assert texts.ignored == ("validation split",)


def test_pairs_by_split(file):
    content = {
        "oos": [["what", "oos"]],
        "Valid": [["wind", "b"]],
        "train": [["rain", "b"], ["soup", "a"]],
    }
    texts = load_texts(file(".json", json.dumps(content)))
    assert (texts.ids, texts.texts) == (("Valid/0", "train/0", "train/1"), ("wind", "rain", "soup"))
    assert texts.ignored == ("oos/",)
    assert texts.clients is None
    # Without a test the validation is the test.
    assert texts.is_test is not None
    assert texts.is_test.tolist() == [True, False, False]
    with_test = load_texts(file(".json", json.dumps({**content, "test": [["sun", "a"]]})))
    assert (with_test.ids, with_test.ignored) == (
        ("train/0", "train/1", "test/0"),
        ("oos/", "validation split"),
    )


def test_numbers_as_labels_and_clients(file):
    lines = [{"text": "t", "label": label, "client": 3} for label in (10, 9, 2)]
    texts = load_texts(file(".jsonl", "\n".join(map(json.dumps, lines))))
    assert texts.class_names == ("2", "9", "10")
    assert texts.labels.tolist() == [2, 1, 0]
    assert texts.clients is not None
    assert texts.clients.tolist() == ["3", "3", "3"]


def test_labels_are_numbered_as_heads_hold_them(file):
    for labels, order in (("-1 10 2", "-1 2 10"), ("-1 --1 10 2", "--1 -1 10 2"), ("٣ 10 2", "10 2 ٣")):
        texts = load_texts(file(".csv", "text,label\n" + "".join(f"t,{each}\n" for each in labels.split())))
        assert texts.class_names == tuple(order.split())


def test_columns_by_other_names_and_long_texts(file):
    """As the file calls them; a text may be longer than the limit of Python's csv, which stays as it was."""
    limit, long = csv.field_size_limit(), "word " * 50_000
    names = {"text": "query", "label": "intent"}
    rows = [("query", "intent", "label"), (long, "b", "x"), ("sun", "a", "y")]
    lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    for suffix, content in ((".csv", "\n".join(map(",".join, rows))), (".jsonl", "\n".join(lines))):
        found = load_texts(file(suffix, content + "\n"), columns=names)
        assert (found.texts, found.class_names, found.labels.tolist()) == ((long, "sun"), ("a", "b"), [1, 0])
    assert csv.field_size_limit() == limit
    with pytest.raises(ValueError, match="expected columns query and intent once each, got"):
        load_texts(file(".csv", "text,label\na,b\n"), columns=names)
    with pytest.raises(ValueError, match=r"columns: expected none for .*, whose lists of pairs"):
        load_texts(file(".json", '{"train": [["a", "b"]]}'), columns=names)
    with pytest.raises(ValueError, match=r"columns: expected a name of its own for each, got .*'label': 'b'"):
        load_texts(file(".csv", "a,b\na,b\n"), columns={"text": "b", "label": "b"})
    with pytest.raises(ValueError, match="columns: expected names for text, label, client, split, got body"):
        load_texts(file(".csv", "text,label\na,b\n"), columns={"body": "text"})


def test_machines_agree_on_classes(file):
    path = file(".csv", "text,label\nrain,b\n")
    assert load_texts(path, class_names=["a", "b", "c"]).labels.tolist() == [1]
    with pytest.raises(ValueError, match=r"mails.csv: line 2: class 'b' is none of class_names: a"):
        load_texts(path, class_names=["a"])
    with pytest.raises(ValueError, match="class_names: expected each once, got b, b"):
        load_texts(path, class_names=["b", "b"])


def test_clinc150(shared):
    folder = shared / "data" / "text" / "clinc150"
    texts = load_texts(folder / "data_full.json")
    assert texts.is_test is not None
    assert np.bincount(texts.labels[~texts.is_test]).tolist() == [100] * 150
    assert np.bincount(texts.labels[texts.is_test]).tolist() == [30] * 150
    domains = json.loads((folder / "domains.json").read_text())
    assert sorted(intent for intents in domains.values() for intent in intents) == list(texts.class_names)
    assert texts.ignored == ("oos_val/", "oos_test/", "oos_train/", "validation split")


BAD = {
    "no column": (".csv", "text,intent\na,b\n", r"expected columns text and label once each, got \['text'"),
    "twice": (".csv", "text,label,text\na,b,c\n", "expected columns text and label once each"),
    "nothing": (".csv", "", r"expected columns text and label once each, got \[\]"),
    "no row": (".csv", "text,label\n", "expected texts, found none"),
    "too few": (".csv", "text,label\na,b\nc\n", "line 3: expected 2 values, got fewer"),
    "too many": (".tsv", "text\tlabel\na\tb\tc\n", "line 2: expected 2 values, got more"),
    "quotes": (".csv", 'text,label\n"a" b,c\n', "expected after"),
    "no text": (".csv", "text,label\n ,b\n", "line 2: text: expected a string, got ' '"),
    "no label": (".csv", "text,label\na,\n", "line 2: label: expected one, got none"),
    "no client": (".csv", "text,label,client\na,b,u\nc,b,\n", "line 3: client: expected one"),
    "split": (".csv", "text,label,split\na,b,dev\n", "line 2: split: expected train, test or val, got 'dev'"),
    "only test": (
        ".csv",
        "text,label,split\na,b,train\na,c,test\n",
        "line 3: class 'c' has 1 test texts, none to train",
    ),
    "no JSON": (".jsonl", '{"text": "a", "label": "b"}\n{"text"\n', "line 2: expected JSON"),
    "no object": (".jsonl", "[1]\n", r"line 1: expected an object with text and label, got \[1\]"),
    "number": (".jsonl", '{"text": 1, "label": "b"}', "line 1: text: expected a string, got 1"),
    "label": (".jsonl", '{"text": "a", "label": true}', "line 1: label: expected a string or a whole number"),
    "list": (".json", "[]", r"expected lists of pairs \[text, label\], by split, got a list"),
    "no list": (".json", '{"train": 1}', "train: expected lists of pairs .* got a int"),
    "no pair": (".json", '{"train": [["a", "b"], ["a"]]}', r"train/1: expected lists of pairs .*got \['a'\]"),
    "kind": (".txt", "a", r"expected a file that ends in .csv, .tsv, .jsonl, .json$"),
}


@pytest.mark.parametrize(("suffix", "content", "text"), BAD.values(), ids=BAD)
def test_bad_files(file, suffix, content, text):
    with pytest.raises(ValueError, match=rf"mails\{suffix}: .*{text}"):
        load_texts(file(suffix, content))


def test_bytes_that_are_no_text_and_no_file(tmp_path):
    path = tmp_path / "mails.csv"
    with pytest.raises(FileNotFoundError, match=r"mails.csv: no such file"):
        load_texts(path)
    path.write_bytes("text,label\nä,b\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"mails.csv: 'utf-8' codec"):
        load_texts(path)


# Features


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return sentence_encoder(tiny_encoder.make(tmp_path_factory.mktemp("encoders") / "tiny"))


def made(count=11, **changes):
    settings = {
        "name": "made",
        "ids": tuple(map(str, range(count))),
        "labels": np.arange(count) % 2,
        "class_names": ("a", "b"),
        "texts": tuple(" ".join(tiny_encoder.WORDS[4 : 5 + i % 6]) for i in range(count)),
        "is_test": np.arange(count) % 3 == 2,
    }
    return TextSet(**settings | changes)


def test_a_file_of_features(encoder, monkeypatch, tmp_path):
    """Written as it goes on; computed once; of today's labels."""
    monkeypatch.setattr("covfree.data.extract._BATCHES", 2)
    out, told = tmp_path / "out.npz", []
    done = encode_texts(
        made(), encoder, out=out, batch_size=2, progress=lambda *numbers: told.append(numbers)
    )
    assert (done.computed, done.skipped) == (11, {})
    assert told == [(n, 11) for n in (0, 4, 8, 11)]
    wanted = encoder.encode(encoder.load(), made().texts, batch_size=2)
    np.testing.assert_allclose(read_feature_file(out).features, wanted, atol=1e-6)
    data = load_npz(out)
    np.testing.assert_array_equal(data.test_labels, [0, 1, 0])
    assert data.class_names == ("a", "b")

    def refuse(self):
        raise AssertionError("parameters are loaded")

    monkeypatch.setattr(SentenceEncoder, "load", refuse)
    again = encode_texts(made(labels=np.arange(11) % 2 * 0), encoder, out=out)
    assert again.computed == 0
    assert not read_feature_file(out).arrays["labels"].any()
    with pytest.raises(ValueError, match=r"out.npz: holds features of something else \(texts: "):
        encode_texts(made(texts=("other",) * 11), encoder, out=out)
    with pytest.raises(ValueError, match=r"something else \(dtype: 'float32' there, 'float16' here"):
        encode_texts(made(), encoder, out=out, dtype="float16")


def test_what_was_done_is_not_done_again(encoder, monkeypatch, tmp_path):
    monkeypatch.setattr("covfree.data.extract._BATCHES", 2)

    def stop(done, total):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_texts(made(), encoder, out=tmp_path / "out.npz", batch_size=2, progress=stop)
    done = encode_texts(made(), encoder, out=tmp_path / "out.npz", batch_size=2)
    assert done.computed == 3
    wanted = encoder.encode(encoder.load(), made().texts, batch_size=2)
    np.testing.assert_allclose(read_feature_file(done.path).features, wanted, atol=1e-6)


def test_bad_arguments(encoder, tmp_path):
    out = tmp_path / "out.npz"
    with pytest.raises(ValueError, match="texts: made holds none"):
        encode_texts(made(0), encoder, out=out)
    with pytest.raises(ValueError, match="batch_size: expected an integer of at least 1, got 0"):
        encode_texts(made(), encoder, out=out, batch_size=0)
    with pytest.raises(ValueError, match="dtype"):
        encode_texts(made(), encoder, out=out, dtype="float64")
    with pytest.raises(ValueError, match="made: texts: expected 11, got 1"):
        made(texts=("a",))
