"""What stands before an application: everything that is decided by a request's head, and its fields.

Knows no model and imports no torch: the server's process has this and nothing behind it but a socket to the process
that translates. In tests the application itself may stand behind it.
"""

from collections.abc import Callable

from starlette.types import ASGIApp

from heed.serving.addresses import answers_to, through_proxies
from heed.serving.config import ServeConfig
from heed.serving.entrance import Entrance
from heed.serving.guard import Door, Guard
from heed.serving.limits import Keys
from heed.serving.metrics import Metrics
from heed.serving.origins import Origins
from heed.serving.problems import Problem


def make_front(app: ASGIApp, config: ServeConfig, keys: Keys | None, busy: Callable[[], Problem | None]) -> ASGIApp:
    """The same application with all that stands before it. busy: what to say while there is no place."""
    door = Door(config.header_bytes, answers_to(config), Origins(config.allowed_origins))
    guard = Guard(Entrance(app, config, keys, busy), Metrics(), door)
    return through_proxies(guard, config.trusted_proxies)
