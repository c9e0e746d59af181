"""precrop: crop convolutional networks to a budget before they are trained.

>>> small = precrop.precrop(model, 0.5)   # half the parameters and half the MACs, dense, fresh weights
"""

from typing import TYPE_CHECKING

from precrop.checkout import find_stages

find_stages()  # before anything of a stage is imported

from precrop.api import apply, inspect, plan, precrop, score
from precrop.checkpoint import load, save
from precrop.crop_plan import CropPlan
from precrop.cropping.forwards import register_forward
from precrop.cropping.layers import register_size_attributes
from precrop.errors import ExportError, PrecropError, PrecropWarning
from precrop.names import create_model
from precrop.scoring.densities import Densities

if TYPE_CHECKING:  # the package is also this function
    from precrop.export.front import export
else:
    import precrop.export as export

__version__ = "0.1.0"

__all__ = [
    "CropPlan",
    "Densities",
    "ExportError",
    "PrecropError",
    "PrecropWarning",
    "apply",
    "create_model",
    "export",
    "inspect",
    "load",
    "plan",
    "precrop",
    "register_forward",
    "register_size_attributes",
    "save",
    "score",
]
