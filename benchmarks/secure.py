"""Secure sums: seconds and bytes of a client and of the server; accuracy of groups' means.

python benchmarks/secure.py                     # costs
python benchmarks/secure.py --features FILE     # and FedCOF's accuracy, with features, labels and is_test
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import covfree
from covfree import secure
from covfree.data.partitions import dirichlet

# Clients, neighbours, threshold, words: neighbours for 20 % corrupt and 20 % leaving, to fail with chances of
# 2^-40 and 2^-30 (Bell et al. 2020).
# Words: class sums and counts of 101 classes with d = 127 and 1280; the triangle of a matrix with d = 1280.
SIZES = (
    (100, 40, 21, 12_928),
    (100, 40, 21, 129_381),
    (100, 40, 21, 819_840),
    (1000, 110, 57, 12_928),
    (1000, 110, 57, 129_381),
)


def costs(clients: int, neighbours: int, threshold: int, size: int) -> dict[str, Any]:
    """CPU seconds of both sides with a tenth of the clients gone before the third step."""
    keys = {number: Ed25519PrivateKey.generate() for number in range(clients)}
    public = {number: key.public_key().public_bytes_raw() for number, key in keys.items()}
    session = secure.Session("costs", public, size, threshold, clients // 2, neighbours)
    parties = {number: secure.Client(session, number, key) for number, key in keys.items()}
    server, words = secure.Server(session), np.arange(size, dtype=np.uint64)
    spent, sent = dict.fromkeys(parties, 0.0), dict.fromkeys(parties, 0)
    start = process_time()

    def of_client(number: int, work: Any, *arguments: Any) -> Any:
        begun = process_time()
        answer = work(*arguments)
        spent[number] += process_time() - begun
        return answer

    for number, party in parties.items():
        server.take_advert(of_client(number, party.advertise))
        sent[number] += 3 * 32 + 64
    for number, party in parties.items():
        boxes = of_client(number, party.share, server.adverts_for(number))
        sent[number] += sum(len(each.box) for each in boxes)
        server.take_shares(number, boxes)
    came = [number for number in parties if number % 10]
    for number in came:
        server.take_upload(of_client(number, parties[number].mask, server.shares_for(number), words))
        sent[number] += 8 * size
    for number in came:
        server.take_agreed(of_client(number, parties[number].agree, came))
        sent[number] += 64
    for number in came:
        opened = of_client(number, parties[number].unmask, server.agreed)
        sent[number] += 33 * (len(opened.seeds) + len(opened.keys))
        server.take_opened(opened)
    total = server.total()
    assert (total == words * np.uint64(len(came))).all()
    used = [spent[number] for number in came]
    return {
        "clients": clients,
        "words": size,
        "neighbours": neighbours,
        "threshold": threshold,
        "came": len(came),
        "client_seconds": median(used),
        "server_seconds": process_time() - start - sum(spent.values()),
        "client_bytes": median(sent[number] for number in came),
        "bytes_beside_the_upload": median(sent[number] - 8 * size for number in came),
    }


def accuracies(file: Path, clients: int, seeds: int) -> dict[str, Any]:
    """FedCOF's accuracy from clients' means, and from those of groups of ten."""
    data = np.load(file)
    features, labels, test = (
        data["features"].astype(np.float32),
        data["labels"].astype(np.int32),
        data["is_test"],
    )
    method, classes = covfree.fedcof(), int(labels.max()) + 1
    found: dict[str, list[float]] = {"clients": [], "groups": []}
    for seed in range(seeds):
        owner = np.asarray(dirichlet(labels[~test], clients, 0.1, seed=seed))
        mine = {int(k): owner == k for k in np.unique(owner[owner >= 0])}
        messages = {
            k: covfree.client_message(method, features[~test][own], labels[~test][own], num_classes=classes)
            for k, own in mine.items()
        }
        grouped = secure.group_means(messages, 10, 1e5, num_classes=classes, key=jax.random.key(seed))
        for name, received in (
            ("clients", covfree.collect(messages, num_classes=classes).message),
            ("groups", grouped),
        ):
            head = covfree.solve_message(method, received, num_classes=classes)
            found[name].append(100 * float(covfree.evaluate(head, features[test], labels[test])))
    means = {name: [float(np.mean(each)), float(np.std(each, ddof=1))] for name, each in found.items()}
    return {"clients": clients, "seeds": seeds, **means}


def main() -> None:
    """Print the figures and keep them beside this file."""
    parser = argparse.ArgumentParser(description="Costs of secure sums")
    parser.add_argument("--features", type=Path, help="features, labels and is_test in an .npz file")
    given = parser.parse_args()
    found: dict[str, Any] = {"costs": [costs(*size) for size in SIZES]}
    if given.features:
        found["accuracy"] = [accuracies(given.features, clients, 5) for clients in (100, 400)]
    text = json.dumps(found, indent=1)
    print(text)
    Path(__file__).with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
