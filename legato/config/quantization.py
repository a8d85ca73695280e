"""How weights of talker and code predictor are stored and multiplied: the names of the modes, frozen.

Knows no tensor and no machine.
"""

from __future__ import annotations

NONE, INT8, INT4, AUTO = "none", "int8", "int4", "auto"
STORED = (INT8, INT4)
"""How a checkpoint may have been rounded."""
CHOICES = (NONE, INT8, INT4, AUTO)
"""What may be asked for."""
METHOD = "legato"
"""`quant_method` of a checkpoint that `legato quantize` wrote."""
KEY = "quantization_config"
