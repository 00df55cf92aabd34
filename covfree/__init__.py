"""covfree: JAX functional numerics for training-free federated learning.

Clients share a few statistics of features from a frozen pre-trained backbone, once; the server turns them
into a linear classifier in closed form. Start with `fit`, `fedcof` and `estimate_covariance`.
"""

import importlib as _importlib
import typing as _typing

from covfree import backbones as backbones
from covfree import data as data
from covfree import methods as methods
from covfree.core import linalg as linalg
from covfree.core.checks import check as check
from covfree.core.lapack import limit_lapack_threads as limit_lapack_threads
from covfree.core.types import LinearHead as LinearHead
from covfree.core.types import Message as Message
from covfree.core.types import Moments as Moments
from covfree.core.types import Rows as Rows
from covfree.data import partitions as partitions
from covfree.engine import Certificate as Certificate
from covfree.engine import Diagnosis as Diagnosis
from covfree.engine import Generated as Generated
from covfree.engine import Stream as Stream
from covfree.engine import accumulate as accumulate
from covfree.engine import aggregate as aggregate
from covfree.engine import arrived as arrived
from covfree.engine import certify as certify
from covfree.engine import diagnose as diagnose
from covfree.engine import distributed as distributed
from covfree.engine import evaluate as evaluate
from covfree.engine import fit as fit
from covfree.engine import shard_rows as shard_rows
from covfree.engine import solve_message as solve_message
from covfree.engine import solve_rows as solve_rows
from covfree.engine import solve_totals as solve_totals
from covfree.engine import summarise as summarise
from covfree.engine.bytes import SentBytes as SentBytes
from covfree.engine.bytes import message_bytes as message_bytes
from covfree.engine.bytes import received_bytes as received_bytes
from covfree.engine.bytes import sent_bytes as sent_bytes
from covfree.engine.flops import call_flops as call_flops
from covfree.engine.flops import client_flops as client_flops
from covfree.engine.flops import training_flops as training_flops
from covfree.estimators import Freedom as Freedom
from covfree.estimators import Shrinkage as Shrinkage
from covfree.estimators import aggregate_covariances as aggregate_covariances
from covfree.estimators import between_scatter as between_scatter
from covfree.estimators import diagonal_loading as diagonal_loading
from covfree.estimators import empirical_bayes as empirical_bayes
from covfree.estimators import estimate_covariance as estimate_covariance
from covfree.estimators import estimate_covariances as estimate_covariances
from covfree.estimators import first_moments as first_moments
from covfree.estimators import ledoit_wolf as ledoit_wolf
from covfree.estimators import oas as oas
from covfree.estimators import pseudo_observations as pseudo_observations
from covfree.estimators import relative as relative
from covfree.estimators import scatter_spectra as scatter_spectra
from covfree.estimators import shift_bias as shift_bias
from covfree.estimators import shift_test as shift_test
from covfree.estimators import streaming as streaming
from covfree.estimators import total_gram as total_gram
from covfree.estimators import within_factor as within_factor
from covfree.estimators import within_scatter as within_scatter
from covfree.estimators.automatic import automatic as automatic
from covfree.heads import CorrectedHead as CorrectedHead
from covfree.heads import EnsembleHead as EnsembleHead
from covfree.heads import GaussianHead as GaussianHead
from covfree.heads import StudentHead as StudentHead
from covfree.heads import calibrate_temperature as calibrate_temperature
from covfree.heads import exporting as _exporting  # noqa: F401
from covfree.heads import gaussian_head as gaussian_head
from covfree.heads import gda_head as gda_head
from covfree.heads import lda_head as lda_head
from covfree.heads import metrics as metrics
from covfree.heads import ncm_head as ncm_head
from covfree.heads import regression_head as regression_head
from covfree.heads import ridge_head as ridge_head
from covfree.heads import sample_rows as sample_rows
from covfree.heads import softmax_head as softmax_head
from covfree.heads import student_head as student_head
from covfree.heads import with_finite_scores as with_finite_scores
from covfree.heads import with_prior_means as with_prior_means
from covfree.heads import with_temperature as with_temperature
from covfree.heads.file import SavedHead as SavedHead
from covfree.heads.file import load_head as load_head
from covfree.heads.file import save_head as save_head
from covfree.heads.onnx_graph import head_to_onnx as head_to_onnx
from covfree.methods import Method as Method
from covfree.methods import Round as Round
from covfree.methods import afl as afl
from covfree.methods import ccvr as ccvr
from covfree.methods import ensemble as ensemble
from covfree.methods import fed3r as fed3r
from covfree.methods import fed3r_random as fed3r_random
from covfree.methods import fedcgs as fedcgs
from covfree.methods import fedcof as fedcof
from covfree.methods import fedcof_components as fedcof_components
from covfree.methods import fedcof_oracle as fedcof_oracle
from covfree.methods import fedcof_residuals as fedcof_residuals
from covfree.methods import fedncm as fedncm
from covfree.methods import fedpft as fedpft
from covfree.methods import fedran as fedran
from covfree.methods import fishermix as fishermix
from covfree.methods import naive_bayes as naive_bayes
from covfree.methods import proto_hyper as proto_hyper
from covfree.methods import qda as qda
from covfree.methods import stsa_e as stsa_e
from covfree.methods import student as student
from covfree.methods.field import alignment as alignment
from covfree.methods.field import recursive as recursive
from covfree.methods.field.alignment import align as align
from covfree.methods.field.deepafl import deepafl as deepafl
from covfree.methods.field.safle import safle as safle
from covfree.methods.refine import corrected as corrected
from covfree.methods.refine import refined as refined
from covfree.methods.selecting import select as select
from covfree.protocol import Collected as Collected
from covfree.protocol import Inbox as Inbox
from covfree.protocol import SiteReport as SiteReport
from covfree.protocol import check_rows as check_rows
from covfree.protocol import client_message as client_message
from covfree.protocol import clip_sites as clip_sites
from covfree.protocol import collect as collect
from covfree.protocol import diagnose_sites as diagnose_sites
from covfree.protocol import forget as forget
from covfree.protocol import load_collected as load_collected
from covfree.protocol import load_message as load_message
from covfree.protocol import save_collected as save_collected
from covfree.protocol import save_message as save_message
from covfree.statistics import GramStatistics as GramStatistics
from covfree.statistics import class_covariances as class_covariances
from covfree.statistics import class_means as class_means
from covfree.statistics import client_rows as client_rows
from covfree.statistics import count_rows as count_rows
from covfree.statistics import gram as gram
from covfree.statistics import kept_aside as kept_aside
from covfree.statistics import transforms as transforms
from covfree.statistics.buckets import bucket_features as bucket_features
from covfree.statistics.buckets import gaussian_thresholds as gaussian_thresholds
from covfree.statistics.feature_maps import fourier_features as fourier_features
from covfree.statistics.feature_maps import relu_features as relu_features
from covfree.statistics.gram import TargetSums as TargetSums
from covfree.statistics.gram import target_sums as target_sums
from covfree.statistics.transforms import count_noise as count_noise

if _typing.TYPE_CHECKING:
    # Imported when they are first used: they take time to import, and some need optax or an extra.
    from covfree import deployment as deployment
    from covfree import finetune as finetune
    from covfree import privacy as privacy
    from covfree import rounds as rounds
    from covfree import secure as secure
    from covfree import sklearn as sklearn
    from covfree import studies as studies
    from covfree import testing as testing
else:
    _LATE = ("deployment", "finetune", "privacy", "rounds", "secure", "sklearn", "studies", "testing")

    def __getattr__(name: str) -> _typing.Any:
        if name in _LATE:
            return _importlib.import_module(f"covfree.{name}")
        raise AttributeError(f"module 'covfree' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATE})


__version__ = "0.1.0"
