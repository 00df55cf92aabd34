"""The app of Flower's nodes: answers a round with the site's own file of features."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from covfree.deployment import Client, Description, load_key, read_site

app = ClientApp()


@app.query("round")
def answer(message: Message, context: Context) -> Message:
    """Answer the server's broadcast; all files are named by the node's configuration."""
    config = {name: str(value) for name, value in context.node_config.items()}
    own = Description.load(config["federation"])
    site = read_site(config["features"], own)
    arguments = config["site"], config["state"], load_key(config["key"]), site.features, site.labels
    with Client(own, *arguments, uses=site.uses) as client:
        reply = client.answer(message.content["covfree"]["message"])
    return Message(RecordDict({"covfree": ConfigRecord({"message": reply})}), reply_to=message)
