"""English front end of the embedded voice: text normalization, pronunciation, and the aligned phone track."""
