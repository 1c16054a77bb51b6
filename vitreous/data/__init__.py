"""Data: where pictures come from, how they are decoded, augmented, mixed and put into batches."""
