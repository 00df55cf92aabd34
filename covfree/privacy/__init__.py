"""Differential privacy of what clients send: mechanisms, accounting, estimators that know the noise."""

from covfree.privacy.accounting import Promise as Promise
from covfree.privacy.accounting import Release as Release
from covfree.privacy.accounting import spent as spent
from covfree.privacy.discrete import discrete_gaussian as discrete_gaussian
from covfree.privacy.estimates import debiased_reciprocal as debiased_reciprocal
from covfree.privacy.estimates import debiased_within as debiased_within
from covfree.privacy.estimates import noise_edge as noise_edge
from covfree.privacy.estimates import noisy_rows_covariance as noisy_rows_covariance
from covfree.privacy.estimates import positive_part as positive_part
from covfree.privacy.mechanism import Private as Private
from covfree.privacy.mechanism import private as private
from covfree.privacy.projection import public_projection as public_projection
from covfree.privacy.uploads import Upload as Upload
