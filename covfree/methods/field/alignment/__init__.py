"""Move each client's features to one shared Gaussian, before any method (SLOT-Align).

A client calls `client_gaussian`, and later `affine_map` with the barycentre that the server broadcasts. The
server calls `barycentre`. In a simulation, `align` does all of it.
"""

from covfree.methods.field.alignment.gaussians import Gaussian as Gaussian
from covfree.methods.field.alignment.gaussians import barycentre as barycentre
from covfree.methods.field.alignment.gaussians import client_gaussian as client_gaussian
from covfree.methods.field.alignment.gaussians import principal_basis as principal_basis
from covfree.methods.field.alignment.maps import AffineMap as AffineMap
from covfree.methods.field.alignment.maps import Alignment as Alignment
from covfree.methods.field.alignment.maps import affine_map as affine_map
from covfree.methods.field.alignment.maps import align as align
