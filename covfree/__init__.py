"""covfree: JAX functional numerics for training-free federated learning.

Clients share a few statistics of features from a frozen pre-trained backbone, once; the server turns them
into a linear classifier in closed form. Start with `fit`, `fedcof` and `estimate_covariance`.
"""

from covfree import data as data
from covfree import federation as federation
from covfree import linalg as linalg
from covfree import methods as methods
from covfree.accounting import Upload as Upload
from covfree.accounting import client_flops as client_flops
from covfree.accounting import formula_bytes as formula_bytes
from covfree.accounting import message_bytes as message_bytes
from covfree.accounting import upload as upload
from covfree.checks import check as check
from covfree.checks import check_rows as check_rows
from covfree.engine import RowsReport as RowsReport
from covfree.engine import accumulate as accumulate
from covfree.engine import accuracy_by_round as accuracy_by_round
from covfree.engine import arrived as arrived
from covfree.engine import evaluate as evaluate
from covfree.engine import feature_quality as feature_quality
from covfree.engine import fit as fit
from covfree.engine import inspect_rows as inspect_rows
from covfree.engine import solve_message as solve_message
from covfree.engine import solve_rows as solve_rows
from covfree.engine import solve_totals as solve_totals
from covfree.engine import summarise as summarise
from covfree.estimators import Freedom as Freedom
from covfree.estimators import Shrinkage as Shrinkage
from covfree.estimators import aggregate_covariances as aggregate_covariances
from covfree.estimators import automatic as automatic
from covfree.estimators import between_scatter as between_scatter
from covfree.estimators import estimate_covariance as estimate_covariance
from covfree.estimators import estimate_covariances as estimate_covariances
from covfree.estimators import first_moments as first_moments
from covfree.estimators import identity as identity
from covfree.estimators import ledoit_wolf as ledoit_wolf
from covfree.estimators import oas as oas
from covfree.estimators import relative as relative
from covfree.estimators import scatter_spectra as scatter_spectra
from covfree.estimators import total_gram as total_gram
from covfree.estimators import within_factor as within_factor
from covfree.estimators import within_scatter as within_scatter
from covfree.heads import GaussianHead as GaussianHead
from covfree.heads import calibrate_temperature as calibrate_temperature
from covfree.heads import gaussian_head as gaussian_head
from covfree.heads import lda_head as lda_head
from covfree.heads import ncm_head as ncm_head
from covfree.heads import ridge_head as ridge_head
from covfree.heads import sample_rows as sample_rows
from covfree.heads import softmax_head as softmax_head
from covfree.heads import with_temperature as with_temperature
from covfree.messages import client_message as client_message
from covfree.methods import Method as Method
from covfree.methods import afl as afl
from covfree.methods import ccvr as ccvr
from covfree.methods import fed3r as fed3r
from covfree.methods import fedcgs as fedcgs
from covfree.methods import fedcof as fedcof
from covfree.methods import fedcof_oracle as fedcof_oracle
from covfree.methods import fedncm as fedncm
from covfree.methods import fedpft as fedpft
from covfree.methods import naive_bayes as naive_bayes
from covfree.methods import qda as qda
from covfree.server import Collected as Collected
from covfree.server import collect as collect
from covfree.server import forget as forget
from covfree.statistics import GramStatistics as GramStatistics
from covfree.statistics import class_covariances as class_covariances
from covfree.statistics import class_means as class_means
from covfree.statistics import client_rows as client_rows
from covfree.statistics import count_rows as count_rows
from covfree.statistics import gram as gram
from covfree.statistics import subset_class_means as subset_class_means
from covfree.transforms import count_noise as count_noise
from covfree.types import LinearHead as LinearHead
from covfree.types import Message as Message
from covfree.types import Moments as Moments
from covfree.types import Rows as Rows

__version__ = "0.1.0"
