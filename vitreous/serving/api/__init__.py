"""The HTTP API: routes, query parameters and response schemas."""
