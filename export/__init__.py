"""Exporting a network to an inference engine, and measuring it there.

``precrop.export(model, "small.onnx")`` exports, and ``precrop.export.bench.bench(networks, backend)`` measures: the
package can be called, and its modules are in it. Importing it loads none of the engines: each is imported where it is
used, and `MissingExtraError` names the extra to install where it is absent.
"""

import sys
from types import ModuleType
from typing import Any

from precrop.export.front import Exported as Exported
from precrop.export.front import export as export
from precrop.export.onnx import OnnxFile as OnnxFile
from precrop.export.onnx import export_onnx as export_onnx


class _CallablePackage(ModuleType):
    """This package, which is also the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Exported:
        return export(*args, **kwargs)


_CallablePackage.__call__.__doc__ = export.__doc__
sys.modules[__name__].__class__ = _CallablePackage

if __name__ == "export":  # imported by its folder's name, in a checkout: a second copy of the package
    raise ModuleNotFoundError("export is a part of precrop: import precrop.export", name=__name__)
