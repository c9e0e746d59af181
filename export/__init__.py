"""Exporting a network to an inference engine, and measuring it there.

Importing this package loads none of the engines: each is imported where it is
used, and `MissingExtraError` names the extra to install where it is absent.
"""

from precrop.export.latency import Latency as Latency
from precrop.export.latency import measure_latency as measure_latency
from precrop.export.onnx import OnnxFile as OnnxFile
from precrop.export.onnx import export_onnx as export_onnx
