"""Classifiers, in closed form from class moments and a scatter matrix, or trained on virtual features.

Virtual features are samples that the server draws from the means and covariances that clients sent.
"""

from covfree.heads.composed import CorrectedHead as CorrectedHead
from covfree.heads.composed import MappedHead as MappedHead
from covfree.heads.ensemble import EnsembleHead as EnsembleHead
from covfree.heads.finite import with_finite_scores as with_finite_scores
from covfree.heads.gaussian import GaussianHead as GaussianHead
from covfree.heads.gaussian import gaussian_head as gaussian_head
from covfree.heads.lda import lda_head as lda_head
from covfree.heads.ncm import ncm_head as ncm_head
from covfree.heads.prior import gda_head as gda_head
from covfree.heads.prior import with_prior_means as with_prior_means
from covfree.heads.ridge import regression_head as regression_head
from covfree.heads.ridge import ridge_head as ridge_head
from covfree.heads.softmax import softmax_head as softmax_head
from covfree.heads.student import StudentHead as StudentHead
from covfree.heads.student import student_head as student_head
from covfree.heads.temperature import calibrate_temperature as calibrate_temperature
from covfree.heads.temperature import with_temperature as with_temperature
from covfree.heads.virtual import sample_rows as sample_rows
