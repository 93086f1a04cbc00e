"""The fixtures of `servers`, for all tests of this folder."""

from broker.redis.servers import make_publisher, redis, server, stream

__all__ = ["make_publisher", "redis", "server", "stream"]
