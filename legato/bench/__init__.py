"""Speed, measured apart from correctness. Prints no error and no tolerance."""
