"""The one family of errors.

Every message says what was got, what was expected and what to do next. The
command line prints the message without a traceback.
"""


class PrecropError(ValueError):
    """Base of every error that precrop raises on purpose."""


class BudgetError(PrecropError):
    """A ratio or budget that is malformed or cannot be reached."""


class TraceError(PrecropError):
    """A network whose forward could not be followed on symbolic widths."""


class ScoreError(PrecropError):
    """A scorer that cannot rank a network's weights: its data, its loss, or scores without meaning."""


class PlanError(PrecropError):
    """A plan or checkpoint that is damaged, foreign, or made for another network."""


class ModelNameError(PrecropError):
    """A model name, factory or layer that does not exist."""


class RecipeError(PrecropError):
    """A recipe that does not follow the schema."""


class ExportError(PrecropError):
    """A network that an engine cannot be built from, or an engine that cannot be run or timed here."""


class MissingExtraError(PrecropError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class PrecropWarning(UserWarning):
    """Something precrop did that the caller should know of."""
