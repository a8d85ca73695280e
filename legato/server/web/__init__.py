"""The web page: static files and the routes that serve them."""
