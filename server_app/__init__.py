"""The server side: ``server_app:app`` is Flower's ServerApp."""

from bouquet.server_app.main import app

__all__ = ["app"]
