"""``covfree federation``: a federation between machines that share a folder."""

from __future__ import annotations

import os
import secrets
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import covfree
from covfree.backbones import BACKBONES, backbone
from covfree.cli.federation_keys import check_key, public_keys, read_key, server_key
from covfree.cli.options import NETWORK, WeightsFile, check_file
from covfree.deployment import (
    Client,
    Description,
    Folder,
    PrivateSums,
    SecureSums,
    Server,
    Stopped,
    TooFew,
    extractor_in,
    join,
    load_key,
    load_network,
    load_site,
    new_key,
    public_key,
    serve,
    status,
    stopping,
)
from covfree.deployment.differences import differences
from covfree.deployment.envelope import write
from covfree.deployment.folder import check_state, new_file
from covfree.deployment.site import extractor_of
from covfree.studies.extraction import backbone_of, names_in
from covfree.studies.known import JOINT
from covfree.studies.names import arguments, of_options
from covfree.studies.progress import say

app = typer.Typer(
    help="A federation between machines that share a folder: docs/deployment.md.", no_args_is_help=True
)
# The exit code if there is no head yet; a message says why.
_NO_HEAD = 3

Part = TypeVar("Part", SecureSums, PrivateSums)
Shared = Annotated[Path, typer.Argument(help="The shared folder.")]
Key = Annotated[Path, typer.Option(help="The file of your private key, from covfree federation key.")]
Poll = Annotated[float, typer.Option(help="Seconds between two checks of the folder.")]


@app.command("key")
def key_command(
    out: Annotated[
        Path, typer.Argument(help="The private key's file, such as site.key; the public key's is site.pub.")
    ],
) -> None:
    """Draw a key pair: a private key to keep, and a public key for the person who starts the federation.

    If the private key's file exists, only the public key is written: give the same command if it was lost.

    Example:
      covfree federation key berlin.key
    """
    beside = out.with_suffix(".pub")
    if out.suffix.casefold() == beside.suffix or not out.parent.is_dir():
        raise ValueError(f"expected a file such as site.key in a folder that is there, got {str(out)!r}")
    if os.path.lexists(beside):
        raise ValueError(
            f"{beside} exists, and a key is never replaced: use it, or give another name than {out}"
        )
    there = os.path.lexists(out)
    public = public_key(load_key(out)) if there else new_key(out)
    write(beside, f"{public}\n".encode())
    drawn = "" if there else f"{out}, which you must keep secret, and "
    say(f"wrote {drawn}the public key {beside}" + f", from the private key in {out}" * there)


@app.command("new")
def new_command(
    shared: Annotated[Path, typer.Argument(help="The shared folder, made if missing.")],
    sites: Annotated[Path, typer.Option(help="A folder with the public keys of all sites: berlin.pub, …")],
    key: Key,
    algorithm: Annotated[
        str, typer.Option(help="A method, or an algorithm of covfree finetune, perhaps with arguments.")
    ] = "fedcof-refined",
    class_names: Annotated[
        Path | None,
        typer.Option(help="A text file with all classes, one a line, in the order of their numbers."),
    ] = None,
    network: Annotated[str | None, typer.Option("--backbone", help=NETWORK.help)] = None,
    weights: WeightsFile = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --backbone and --weights: a feature file; all sites must extract theirs like it."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds, if the algorithm has no fixed number.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Minutes until a round closes; by default it waits for all sites.")
    ] = None,
    fewest: Annotated[int, typer.Option(help="Smallest number of answers for a round to succeed.")] = 1,
    max_examples: Annotated[int, typer.Option(help="Largest number of examples at a site.")] = 100_000,
    max_norm: Annotated[float | None, typer.Option(help="Largest norm of an example's features.")] = None,
    train: Annotated[
        str, typer.Option(help="What training in rounds changes: head; or, on images, backbone or all.")
    ] = "head",
    judge_sites: Annotated[
        bool,
        typer.Option(
            "--judge-sites", help="Leave out sites whose class means fail the checks of docs/security.md."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    sums: Annotated[
        str | None,
        typer.Option(
            help="Hide each upload in a secure sum; bound limits the absolute values in an upload: "
            "bound=1e7:holders=3:threshold=8; see docs/secure-sums.md."
        ),
    ] = None,
    private: Annotated[
        str | None,
        typer.Option(
            help="Differentially private noise in secure sums: epsilon=1:delta=1e-6:clip=15; for training in "
            "rounds, add unit=client."
        ),
    ] = None,
) -> None:
    """Write the description of a federation into a shared folder.

    Example:
      covfree federation new shared --sites keys --key server.key --class-names classes.txt
      --backbone efficientnet-lite0 --deadline 60 --fewest 3
    """
    file = new_file(shared)
    if like is not None:
        if network is not None or weights is not None:
            raise ValueError("--like: expected no --backbone and --weights beside it")
        uses, named = extractor_in(like), list(names_in(class_names) or ())
        if "class_names" not in uses and not named:
            raise ValueError(
                f"--like: expected an array class_names in {like} (covfree extract writes one), or "
                "--class-names"
            )
        if named and uses.setdefault("class_names", named) != named:
            raise ValueError(f"--class-names: expected those in {like}, got others in {class_names}")
    elif network is None or class_names is None:
        raise ValueError("expected --backbone and --class-names, or --like")
    else:
        extractor = extractor_of(network, weights)
        dim = backbone(backbone_of(network)).num_features
        uses = {"dim": dim, **extractor, "class_names": names_in(class_names)}
    server = read_key(key)
    keys = public_keys(sites, public_key(server))
    options = {each.name: f"private: {each.name}" for each in fields(PrivateSums)}
    options |= {each.name: each.name.replace("_", "-") for each in fields(Description)}
    options |= {"method": "algorithm", "holders": "sums: holders", "releases": "private: epsilon"}
    if deadline is not None and not deadline > 0:
        raise ValueError(f"--deadline: expected a number above 0, got {deadline}")
    with of_options(**options):
        description = Description(
            algorithm,
            tuple(uses.pop("class_names")),
            uses.pop("dim"),
            keys,
            public_key(server),
            uses,
            rounds=rounds,
            deadline=None if deadline is None else 60 * deadline,
            fewest=fewest,
            max_examples=max_examples,
            max_norm=max_norm,
            train=train,
            judge_sites=judge_sites,
            seed=seed,
            run=secrets.token_hex(8),
            # Noise is added inside secure sums, so --private asks for them too.
            sums=_numbers("sums", sums if private is None else sums or "", SecureSums),
            private=_numbers("private", private, PrivateSums),
        )
        promised = description.promised
    shared.mkdir(parents=True, exist_ok=True)
    description.save(file)
    say(f"wrote {file}: {', '.join(description.sites)}; {algorithm}; identity {description.identity}")
    if promised is not None:
        say(promised)


@app.command("serve")
def serve_command(
    shared: Shared,
    key: Key,
    state: Annotated[Path, typer.Option(help="The server's own folder, made if missing.")],
    out: Annotated[Path, typer.Option(help="The .npz file of the head to write.")],
    weights: WeightsFile = None,
    poll: Poll = 1.0,
) -> None:
    """Run the rounds until there is a head. If it is killed, start it again: it goes on where it stopped.

    The exit code is 3 if a round closed with too few answers, or covfree federation stop was called; the same
    command opens the round again. Sites get a message, and end with exit code 3 too.

    Example:
      covfree federation serve shared --key server.key --state server --out head.npz
    """
    _check_paths(shared, state, out)
    folder = Folder(shared)
    own = folder.description
    private = server_key(key, own)
    if not state.exists():
        with of_options(folder="state"):
            check_state(folder, state)  # before the folder is made
    algorithm = None if own.train == "head" else own.make_algorithm(load_network(own, weights))
    with of_options(folder="state"), Server(own, state, private, algorithm=algorithm) as server:
        try:
            serve(server, folder, poll=poll, say=say)
        except (TooFew, Stopped) as error:
            say(str(error))
            raise typer.Exit(_NO_HEAD) from None
        write(out, server.head_file())
    say(f"wrote {out}")


@app.command("join")
def join_command(
    shared: Shared,
    key: Key,
    state: Annotated[Path, typer.Option(help="Your own folder, made if missing.")],
    out: Annotated[Path, typer.Option(help="The .npz file of the head to write.")],
    site: Annotated[
        str | None, typer.Option(help="Your site's name; by default the name of the key's file.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images with one folder per class.")] = None,
    weights: WeightsFile = None,
    features: Annotated[
        Path | None, typer.Option(help="Instead of --images: a feature file from covfree extract.")
    ] = None,
    only_sums: Annotated[
        bool, typer.Option("--only-sums", help="Refuse a federation that does not use secure sums.")
    ] = False,
    identity: Annotated[
        str | None,
        typer.Option(help="The identity that the federation must have, if you learned it elsewhere."),
    ] = None,
    wait: Annotated[
        float | None, typer.Option(help="Minutes without a new round after which to give up.")
    ] = None,
    poll: Poll = 1.0,
) -> None:
    """Take part: check the folder's description, compute features, answer each round, get the head.

    If it is killed, start it again: it goes on where it stopped. The exit code is 2 if your data or its
    features are not as the description says; 3 if the server stopped before there was a head, or no round
    came for --wait minutes.

    Example:
      covfree federation join shared --key berlin.key --images photos --state berlin --out head.npz
    """
    _check_paths(shared, state, out)
    folder = Folder(shared)
    description = folder.description
    if identity is not None and identity != description.identity:
        raise ValueError(f"--identity: expected {identity}, got {description.identity} in {shared}")
    if only_sums and description.sums is None:
        raise ValueError(f"--only-sums: expected a federation with secure sums, got one without in {shared}")
    name = key.stem if site is None else site
    private = read_key(key)
    if name not in description.sites:
        told = ", the name of the file of --key" if site is None else ""
        raise ValueError(f"--site: expected one of {', '.join(description.sites)}, got {name!r}{told}")
    check_key(key, private, description.sites, name)  # before features are computed
    if (images is None) == (features is None):
        got = "neither" if images is None else "both"
        raise ValueError(f"expected --images or --features, got {got}")
    given: dict[str, Any] = {"features": features, "images": images, "weights": weights}
    options = {"folder": "state", str(features): f"features: {features}", **{each: each for each in given}}
    with of_options(**options):
        own, algorithm = load_site(description, name, state, **given)
    if features is not None and description.extractor and not {*description.extractor} & {*own.uses}:
        known = description.extractor.get("backbone") in BACKBONES
        how = f"--spec {shared / 'federation.json'}" if known else "--backbone …"
        raise ValueError(
            f"--features: {features} does not say what made its features; covfree extract {how} --images … "
            f"--out … makes a file that fits ({'; '.join(differences(description.agreed, own.uses))})"
        )
    examples = private, own.features, own.labels
    made: dict[str, Any] = {"uses": own.uses, "algorithm": algorithm}
    # Errors about examples name their file or folder.
    of_data = f"features: {features}" if images is None else f"images: {images}"
    named = {"folder": "state", "features": f"{of_data}: features", "labels": f"{of_data}: labels"}
    with of_options(**named), Client(description, name, state, *examples, **made) as client:
        say(f"site {name}: {len(own.labels):,} examples; federation {description.identity[:12]}…")
        if (promised := description.promised) is not None:
            say(promised)
        try:
            content, stopped = join(client, folder, poll=poll, wait=wait and 60 * wait, say=say)
        except (TooFew, Stopped) as error:
            again = "; if the server runs again, give the same command again"
            say(f"the server stopped: {error}{again}" if isinstance(error, Stopped) else str(error))
            raise typer.Exit(_NO_HEAD) from None
    write(out, content)
    say(f"wrote {out}" if stopped is None else f"wrote {out}; the federation stopped early: {stopped}")
    if JOINT in description.algorithm and (origin := covfree.load_head(out).origin) is not None:
        sites = origin["sites"]
        chose = f"{sites} sites took part and chose" if sites else "no site could choose, so the head is"
        say(f"{chose} {origin['taken']}")


@app.command("stop")
def stop_command(
    shared: Shared,
    key: Annotated[Path, typer.Option(help="The server's private key.")],
    reason: Annotated[str, typer.Option(help="What the server and all sites are told.")],
) -> None:
    """Stop the server and all sites before there is a head; the command serve opens the round again.

    Example:
      covfree federation stop shared --key server.key --reason "oslo has the wrong photos"
    """
    folder = Folder(shared)
    private = server_key(key, folder.description)
    if folder.ended:
        raise ValueError(f"{shared}: this federation has ended: there is nothing to stop")
    write(folder.stop, stopping(folder.description, private, reason))
    say(f"wrote {folder.stop}")


@app.command("status")
def status_command(shared: Shared) -> None:
    """Tell which round is open, until when, whose answers the server took, and why it set others aside.

    The exit code is 0 if the federation has ended, 3 if not.
    """
    ended, lines = status(Folder(shared))
    print(*lines, sep="\n")
    raise typer.Exit(0 if ended else _NO_HEAD)


def _numbers(name: str, text: str | None, kind: type[Part]) -> Part | None:
    """Make an instance of the dataclass ``kind`` from the text of option ``name``, such as bound=1e7."""
    if text is None:
        return None
    names = [each.name for each in fields(kind)]
    needed = [each.name for each in fields(kind) if each.default is MISSING]
    example = ":".join(f"{each}=…" for each in needed or names[:1])
    own = arguments(text.split(":") if text else [], f"--{name}: expected such as {example}", text)
    if unknown := [each for each in own if each not in names]:
        raise ValueError(f"--{name}: expected names among {', '.join(names)}, got {unknown[0]}")
    if missing := [each for each in needed if each not in own]:
        beside = f" beside {', '.join(own)}" if own else ""
        raise ValueError(f"--{name}: expected {', '.join(missing)}{beside}")
    with of_options(**{each: f"{name}: {each}" for each in names}):
        return kind(**own)


def _check_paths(shared: Path, state: Path, out: Path) -> None:
    check_file("out", out, ".npz", ())
    if state.resolve().is_relative_to(shared.resolve()):
        raise ValueError(f"--state: expected a folder that nobody else can read, got {state} in {shared}")
