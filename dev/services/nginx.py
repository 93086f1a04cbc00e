"""
nginx, which takes every request and writes down when it came: an endpoint that is no bottleneck.

A line per request in `arrivals`: when it was answered, and the digits that its body begins with.
Requests are answered when the whole body is there, with 204.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from dev.services.process import Server, ServerError, accepts, free_port

MODULE = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")
"""`return` would answer before the body is read; this module reads it."""

CONFIG = """\
load_module {module};
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 64k;
    client_body_in_single_buffer on;
    keepalive_requests 100000000;
    map $request_body $number {{ default -; "~^\\"?(?<digits>[0-9]+)" $digits; }}
    log_format arrivals '$msec $number';
    server {{
{listens}
        location / {{
            access_log {folder}/arrivals arrivals buffer=64k flush=20ms;
            echo_status 204;
            echo_read_request_body;
            echo -n "";
        }}
    }}
}}
"""


class Nginx(Server):
    def __init__(self, folder: Path, hosts: Sequence[str] = ("127.0.0.1",)) -> None:
        """`hosts`: the addresses that it listens on, all with one port."""
        super().__init__(folder)
        self.port = free_port()
        self.arrivals = folder / "arrivals"
        self._hosts = hosts
        self._program = find_program()

    def _prepare(self) -> None:
        listens = "\n".join(f"        listen {host}:{self.port};" for host in self._hosts)
        config = CONFIG.format(module=MODULE, folder=self.folder, listens=listens)
        (self.folder / "nginx.conf").write_text(config)

    def _command(self) -> list[str]:
        return [self._program, "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]

    def _is_ready(self) -> bool:
        return accepts(self.port, self._hosts[0])


def find_program() -> str:
    # Debian keeps it in /usr/sbin, which is not in an ordinary user's PATH.
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not found or not MODULE.exists():
        raise ServerError(
            "nginx or its echo module is not installed: apt-get install nginx-light (or: dev/setup"
            " bench)"
        )
    return found
