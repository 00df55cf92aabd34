"""Compute scatter matrices and covariances from class means or examples (rows), and shrink them."""

from covfree.estimators import streaming as streaming
from covfree.estimators.class_scatter import class_scatters as class_scatters
from covfree.estimators.covariance import aggregate_covariances as aggregate_covariances
from covfree.estimators.covariance import estimate_covariance as estimate_covariance
from covfree.estimators.covariance import estimate_covariances as estimate_covariances
from covfree.estimators.moments import first_moments as first_moments
from covfree.estimators.scatter import Freedom as Freedom
from covfree.estimators.scatter import ScatterChoice as ScatterChoice
from covfree.estimators.scatter import Weighting as Weighting
from covfree.estimators.scatter import between_scatter as between_scatter
from covfree.estimators.scatter import gram_factor as gram_factor
from covfree.estimators.scatter import total_gram as total_gram
from covfree.estimators.scatter import within_factor as within_factor
from covfree.estimators.scatter import within_scatter as within_scatter
from covfree.estimators.shift import shift_bias as shift_bias
from covfree.estimators.shift import shift_test as shift_test
from covfree.estimators.shrinkage import Shrinkage as Shrinkage
from covfree.estimators.shrinkage import diagonal_loading as diagonal_loading
from covfree.estimators.shrinkage import empirical_bayes as empirical_bayes
from covfree.estimators.shrinkage import ledoit_wolf as ledoit_wolf
from covfree.estimators.shrinkage import oas as oas
from covfree.estimators.shrinkage import pseudo_observations as pseudo_observations
from covfree.estimators.shrinkage import relative as relative
from covfree.estimators.spectrum import scatter_spectra as scatter_spectra
