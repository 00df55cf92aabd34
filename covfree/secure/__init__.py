"""Add up clients' uploads so that the server learns their sum, but no single upload."""

from covfree.secure.client import STEPS as STEPS
from covfree.secure.client import Client as Client
from covfree.secure.groups import group_means as group_means
from covfree.secure.holders import common_classes as common_classes
from covfree.secure.messages import Advert as Advert
from covfree.secure.messages import Agreed as Agreed
from covfree.secure.messages import Masked as Masked
from covfree.secure.messages import Opened as Opened
from covfree.secure.messages import Refused as Refused
from covfree.secure.messages import Sealed as Sealed
from covfree.secure.messages import Session as Session
from covfree.secure.server import Server as Server
from covfree.secure.summation import Summed as Summed
from covfree.secure.summation import run_securely as run_securely
from covfree.secure.summation import secure_sum as secure_sum
from covfree.secure.words import FixedPoint as FixedPoint
