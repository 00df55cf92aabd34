"""The app of Flower's nodes: answers a round with the site's own features, or images of a network."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from covfree.deployment import Client, Description, Left, load_key, load_site

app = ClientApp()


@app.query("round")
def answer(message: Message, context: Context) -> Message:
    """Answer the server's broadcast; all files are named by the node's configuration."""
    config = {name: str(value) for name, value in context.node_config.items()}
    own = Description.load(config["federation"])
    given = {name: config[name] for name in ("features", "images", "weights") if name in config}
    site, algorithm = load_site(own, config["site"], config["state"], **given)
    arguments = config["site"], config["state"], load_key(config["key"]), site.features, site.labels
    with Client(own, *arguments, uses=site.uses, algorithm=algorithm) as client:
        try:
            reply = client.answer(message.content["covfree"]["message"])
        except Left as error:
            print(error, flush=True)
            reply = error.answer
    return Message(RecordDict({"covfree": ConfigRecord({"message": reply})}), reply_to=message)
