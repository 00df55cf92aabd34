"""Federated fine-tuning in rounds: clients train a model with optax, the server averages their changes."""

from covfree.core.optional import optional as _optional

_optional("optax", "finetune")

from covfree.finetune.adapter import Adapter as Adapter
from covfree.finetune.adapter import adapter_model as adapter_model
from covfree.finetune.augmentation import augmented as augmented
from covfree.finetune.augmentation import crop_and_flip as crop_and_flip
from covfree.finetune.augmentation import crop_images as crop_images
from covfree.finetune.augmentation import flip_images as flip_images
from covfree.finetune.averaging import fedadagrad as fedadagrad
from covfree.finetune.averaging import fedadam as fedadam
from covfree.finetune.averaging import fedavg as fedavg
from covfree.finetune.averaging import fedprox as fedprox
from covfree.finetune.averaging import fedyogi as fedyogi
from covfree.finetune.baselines.fednova import fednova as fednova
from covfree.finetune.baselines.oll import oll as oll
from covfree.finetune.baselines.pfpt import pfpt as pfpt
from covfree.finetune.baselines.prompts import prompt_model as prompt_model
from covfree.finetune.baselines.prompts import random_prompts as random_prompts
from covfree.finetune.baselines.prototypes import fedcgs_personal as fedcgs_personal
from covfree.finetune.baselines.prototypes import fedproto as fedproto
from covfree.finetune.baselines.ridge_at_home import ridge_at_home as ridge_at_home
from covfree.finetune.baselines.scaffold import scaffold as scaffold
from covfree.finetune.lora import lora as lora
from covfree.finetune.model import Model as Model
from covfree.finetune.model import NetworkMap as NetworkMap
from covfree.finetune.model import linear_model as linear_model
from covfree.finetune.model import network_model as network_model
from covfree.finetune.model import random_head as random_head
from covfree.finetune.optimisers import adaptive as adaptive
from covfree.finetune.optimisers import add_proximal as add_proximal
from covfree.finetune.personal import ClientModels as ClientModels
from covfree.finetune.personal import Prototypes as Prototypes
from covfree.finetune.personal import client_accuracy as client_accuracy
from covfree.finetune.personal import client_classes as client_classes
from covfree.finetune.personal import local_only as local_only
from covfree.finetune.registry import Entry as Entry
from covfree.finetune.registry import Rates as Rates
from covfree.finetune.registry import registry as registry
from covfree.finetune.select import select as select
from covfree.finetune.temperature import at_temperature as at_temperature
