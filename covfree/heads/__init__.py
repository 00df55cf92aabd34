"""Closed-form linear classifiers from moments and a scatter matrix."""

from covfree.heads.lda import lda_head as lda_head
from covfree.heads.ncm import ncm_head as ncm_head
from covfree.heads.ridge import ridge_head as ridge_head
