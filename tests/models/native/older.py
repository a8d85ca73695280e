"""CPUs whose compiled code every x86 with AVX2 can run."""

OLDER = ("x86-64", "x86-64-v3")
"""As the compiler calls them: vectors of 4 and of 8 numbers."""
NARROWEST = OLDER[0]
