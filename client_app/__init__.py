"""The client side: ``client_app:app`` is Flower's ClientApp."""

from bouquet.client_app.main import app

__all__ = ["app"]
