"""Recipes: one YAML from a network's name to trained, exported and measured variants.

Importing this package loads no trainer: Lightning and the data sets' libraries
are imported where they are used, and `MissingExtraError` names the extra.
"""

from precrop.recipes.data import DATASETS as DATASETS
from precrop.recipes.loading import dump_recipe as dump_recipe
from precrop.recipes.loading import load_recipe as load_recipe
from precrop.recipes.loading import shipped_recipes as shipped_recipes
from precrop.recipes.results import RunResult as RunResult
from precrop.recipes.results import VariantResult as VariantResult
from precrop.recipes.runner import train as train
from precrop.recipes.schema import Recipe as Recipe

if __name__ == "recipes":  # imported by its folder's name, in a checkout: a second copy of the package
    raise ModuleNotFoundError("recipes is a part of precrop: import precrop.recipes", name=__name__)
