"""English front end of the embedded voice: text normalization, pronunciation, and phones aligned to frames."""
