"""What may happen to a client's rows before they are sent."""

from covfree.transforms.counts import count_noise as count_noise
from covfree.transforms.transform import Transform as Transform
