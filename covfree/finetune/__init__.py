"""Federated optimisation: fine-tuning in rounds, with any optax transformation, from any model."""

from covfree.finetune.averaging import fedadagrad as fedadagrad
from covfree.finetune.averaging import fedadam as fedadam
from covfree.finetune.averaging import fedavg as fedavg
from covfree.finetune.averaging import fedyogi as fedyogi
from covfree.finetune.fednova import fednova as fednova
from covfree.finetune.fedprox import fedprox as fedprox
from covfree.finetune.model import Model as Model
from covfree.finetune.model import linear_model as linear_model
from covfree.finetune.model import network_model as network_model
from covfree.finetune.model import random_head as random_head
from covfree.finetune.optimisers import adaptive as adaptive
from covfree.finetune.registry import Entry as Entry
from covfree.finetune.registry import Rates as Rates
from covfree.finetune.registry import registry as registry
from covfree.finetune.scaffold import scaffold as scaffold
