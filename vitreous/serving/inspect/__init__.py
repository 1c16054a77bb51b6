"""HTTP endpoints for the page, which shows how a model processes an uploaded image.

service.py: uploaded images, their captured forward passes and an LRU cache of responses. numbers.py: the values of each
view. routes.py: the endpoints.
"""

from vitreous.serving.inspect.routes import router
from vitreous.serving.inspect.service import InspectService

__all__ = ["InspectService", "router"]
