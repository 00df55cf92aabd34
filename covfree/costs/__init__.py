"""What methods cost: bytes from the clients to the server, and clients' floating-point operations."""

from covfree.costs.bytes import SentBytes as SentBytes
from covfree.costs.bytes import message_bytes as message_bytes
from covfree.costs.bytes import received_bytes as received_bytes
from covfree.costs.bytes import sent_bytes as sent_bytes
from covfree.costs.flops import client_flops as client_flops
