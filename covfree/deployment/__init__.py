"""Run a federation between machines: its description, server, sites, and a shared folder for messages."""

from covfree.deployment.client import Client as Client
from covfree.deployment.description import Description as Description
from covfree.deployment.differences import differences as differences
from covfree.deployment.door import Left as Left
from covfree.deployment.door import Receipt as Receipt
from covfree.deployment.door import Stopped as Stopped
from covfree.deployment.door import TooFew as TooFew
from covfree.deployment.door import stopping as stopping
from covfree.deployment.envelope import Refused as Refused
from covfree.deployment.envelope import load_key as load_key
from covfree.deployment.envelope import new_key as new_key
from covfree.deployment.envelope import public_key as public_key
from covfree.deployment.folder import Folder as Folder
from covfree.deployment.folder import join as join
from covfree.deployment.folder import serve as serve
from covfree.deployment.private import PrivateSums as PrivateSums
from covfree.deployment.server import Server as Server
from covfree.deployment.site import extractor_in as extractor_in
from covfree.deployment.site import load_images as load_images
from covfree.deployment.site import load_network as load_network
from covfree.deployment.site import load_site as load_site
from covfree.deployment.site import read_site as read_site
from covfree.deployment.status import status as status
from covfree.deployment.sums import SecureSums as SecureSums
