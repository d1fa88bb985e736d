"""Models for other programs: one ONNX file, image in, direction and uncertainty out."""

from doubtless.export.onnx import TOLERANCE, Exported, InputType, export_onnx

__all__ = ["Exported", "InputType", "TOLERANCE", "export_onnx"]
