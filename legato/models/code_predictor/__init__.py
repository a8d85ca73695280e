"""code_predictor."""
