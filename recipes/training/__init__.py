"""Training one network: Lightning runs the loop, timm brings optimizers, schedules, mixing and averaging.

What is written here is what they lack: an order of images that is a pure function of the
seed, and checkpoints that are whole or absent.
"""

from precrop.recipes.training.checkpoints import checkpoints as checkpoints
from precrop.recipes.training.classifier import Classifier as Classifier
from precrop.recipes.training.fit import Fit as Fit
from precrop.recipes.training.fit import fit as fit
