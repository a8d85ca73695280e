"""Names of the quantization modes for the weights of talker and code predictor, and the keys in config.json.

The names are shared by checkpoints, the command line and `legato.load`.
"""

from __future__ import annotations

NONE, INT8, INT4, AUTO = "none", "int8", "int4", "auto"
STORED = (INT8, INT4)
"""Modes in which a checkpoint can be stored."""
CHOICES = (NONE, INT8, INT4, AUTO)
"""Modes that a user can select; "auto" chooses the fastest one for the machine."""
METHOD = "legato"
"""`quant_method` of checkpoints written by `legato quantize`."""
KEY = "quantization_config"
"""Key of the section in config.json."""
