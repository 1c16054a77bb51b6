"""The HTTP API for clients: classify, embed, segment and explain an image, and list the models.

routes.py: the endpoints below `/v1`, and the computation of their responses. schemas.py: query parameters, response
schemas and examples, also for inspect/.
"""

from vitreous.serving.api.routes import computations, router

__all__ = ["computations", "router"]
