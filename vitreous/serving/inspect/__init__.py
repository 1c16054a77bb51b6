"""HTTP endpoints for the page, which shows how a model processes an uploaded image."""
