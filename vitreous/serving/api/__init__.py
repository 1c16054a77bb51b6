"""The HTTP API for clients: classify, embed, segment and explain an image, and list the models.

routes.py defines the endpoints below `/v1` and computes their responses. schemas.py defines query parameters, response
schemas and examples, including those of inspect/.
"""

from vitreous.serving.api.routes import computations, router

__all__ = ["computations", "router"]
