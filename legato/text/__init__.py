"""Text processing: segmentation, tokenization and prompt layout. No tensors."""
