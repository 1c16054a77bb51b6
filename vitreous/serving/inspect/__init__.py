"""The HTTP API of the page: one uploaded image, seen from inside the model."""
