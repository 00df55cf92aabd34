"""The app of Flower's server: opens each round for the nodes, until there is a head."""

import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from covfree.deployment import Description, Server, load_key, load_network
from covfree.deployment.envelope import write

app = ServerApp()


def ask(grid: Grid, server: Server) -> None:
    """Send the open round to all nodes, and take answers as they come, until all did or it is over."""
    content = RecordDict({"covfree": ConfigRecord({"message": server.open()})})
    waiting: dict[str, int] = {}
    done: set[int] = set()
    while server.missing and not server.is_over:
        new = [node for node in grid.get_node_ids() if node not in {*done, *waiting.values()}]
        asked = [Message(content, message_type="query.round", dst_node_id=node) for node in new]
        waiting |= dict(zip(grid.push_messages(asked), new, strict=True))
        for reply in grid.pull_messages(list(waiting)):
            # An error names no node that can be trusted, but the message that it answers.
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error():
                print(f"node {node}: {reply.error}; it is asked again", flush=True)
                continue
            receipt = server.take(reply.content["covfree"]["message"])
            done.add(node)
            print(f"site {receipt.site}: {receipt.reason or 'answered'}", flush=True)
        time.sleep(1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left; a run that was killed is gone on with by the next."""
    config = {name: str(value) for name, value in context.run_config.items()}
    own = Description.load(config["federation"])
    network = None if own.train == "head" else load_network(own, config["weights"] or None)
    algorithm = own.make_algorithm(network)
    with Server(own, config["state"], load_key(config["key"]), algorithm=algorithm) as server:
        while not server.finished:
            start = time.monotonic()
            ask(grid, server)
            server.close()
            done = server.history[-1]
            print(
                f"{own.named(server.turn - 1)} closed after {time.monotonic() - start:.1f} s with "
                f"{len(done['sites'])} sites, {done['bytes_up']:,} bytes up, {done['bytes_down']:,} down",
                flush=True,
            )
            for site, reason in done["rejected"].items():
                print(f"site {site}: left out: {reason}", flush=True)
        write(Path(config["out"]), server.head_file())
        if server.choice is not None:
            print(server.choice, flush=True)
