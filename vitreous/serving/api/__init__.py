"""The HTTP API for programs: routes, query parameters and response schemas."""
