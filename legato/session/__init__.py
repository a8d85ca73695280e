"""One connected client: what it hears, in which order, and what becomes of it when it is interrupted."""
