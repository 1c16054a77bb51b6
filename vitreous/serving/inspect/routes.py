"""Routes of the page: an image is uploaded once, and then inspected.

Attention and similarity are answered as bytes (see binary.py), the rest as JSON. Layers count from 0, patches row by
row.
"""

from fastapi import APIRouter

from vitreous.serving.inspect import images, layers, model, reasons
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.settings import Settings


def router(service: InspectService, settings: Settings) -> APIRouter:
    """Everything below /v1/images, and the routes about a model without an image."""
    api = APIRouter(tags=["page"])
    images.add_routes(api, service, settings)
    layers.add_routes(api, service)
    reasons.add_routes(api, service)
    model.add_routes(api, service)
    return api
