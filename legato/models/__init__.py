"""Reference implementation of the models in PyTorch. Modules hold weights only; all state is passed as arguments."""
