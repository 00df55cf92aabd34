"""What methods cost: bytes from the clients to the server, and clients' floating-point operations."""

from covfree.costs.bytes import Upload as Upload
from covfree.costs.bytes import formula_bytes as formula_bytes
from covfree.costs.bytes import message_bytes as message_bytes
from covfree.costs.bytes import upload as upload
from covfree.costs.flops import client_flops as client_flops
