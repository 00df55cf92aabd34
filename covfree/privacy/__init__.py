"""Differential privacy of what clients send: mechanisms, accounting, estimators that know the noise."""

from covfree.privacy.accounting import Promise as Promise
from covfree.privacy.accounting import Release as Release
from covfree.privacy.accounting import spent as spent
from covfree.privacy.attacks import auc as auc
from covfree.privacy.attacks import found_at as found_at
from covfree.privacy.attacks import membership_scores as membership_scores
from covfree.privacy.attacks import membership_signal as membership_signal
from covfree.privacy.discrete import discrete_gaussian as discrete_gaussian
from covfree.privacy.estimates import debiased_reciprocal as debiased_reciprocal
from covfree.privacy.estimates import debiased_within as debiased_within
from covfree.privacy.estimates import noise_edge as noise_edge
from covfree.privacy.estimates import noisy_rows_covariance as noisy_rows_covariance
from covfree.privacy.estimates import positive_part as positive_part
from covfree.privacy.estimates import shrunk_means as shrunk_means
from covfree.privacy.federation_audit import Audit as Audit
from covfree.privacy.federation_audit import Finding as Finding
from covfree.privacy.federation_audit import audit as audit
from covfree.privacy.lower_bound import AuditedEpsilon as AuditedEpsilon
from covfree.privacy.lower_bound import audit_epsilon as audit_epsilon
from covfree.privacy.lower_bound import epsilon_lower_bound as epsilon_lower_bound
from covfree.privacy.mechanism import Private as Private
from covfree.privacy.mechanism import private as private
from covfree.privacy.projection import public_projection as public_projection
from covfree.privacy.rounds import private_rounds as private_rounds
from covfree.privacy.uploads import Upload as Upload
