"""HTTP endpoints for the web page that shows how a model processes an uploaded image.

service.py keeps uploaded images, their captured forward passes and an LRU cache of responses. numbers.py computes the
results that need them. routes.py defines the endpoints.
"""

from vitreous.serving.inspect.routes import router
from vitreous.serving.inspect.service import InspectService

__all__ = ["InspectService", "router"]
