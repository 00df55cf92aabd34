"""The protocol: clients' messages, files of messages, checks, and the server that collects messages."""

from covfree.protocol.door import Collected as Collected
from covfree.protocol.files import load_message as load_message
from covfree.protocol.files import save_message as save_message
from covfree.protocol.forget import forget as forget
from covfree.protocol.inbox import Inbox as Inbox
from covfree.protocol.messages import client_message as client_message
from covfree.protocol.saved import load_collected as load_collected
from covfree.protocol.saved import save_collected as save_collected
from covfree.protocol.server import collect as collect
from covfree.protocol.site_report import SiteReport as SiteReport
from covfree.protocol.sites import clip_sites as clip_sites
from covfree.protocol.sites import diagnose_sites as diagnose_sites
from covfree.protocol.values import check_rows as check_rows
