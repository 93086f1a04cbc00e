"""The fixtures of `publishers`, for all tests of this folder."""

from broker.http.publishers import http_server, make_publisher

__all__ = ["http_server", "make_publisher"]
