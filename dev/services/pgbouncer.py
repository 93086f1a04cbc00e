"""PgBouncer in transaction mode: each transaction may run on another connection of the pool."""

import os
import shutil
import signal
from pathlib import Path

import psycopg

from dev.services.postgres import SUPERUSER, Postgres
from dev.services.process import Server, ServerError, free_port

CONFIG = """\
[databases]
* = host=127.0.0.1 port={upstream}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
default_pool_size = 10
max_client_conn = 200
; Trust every client, as the server behind does; roles made later are looked up there.
auth_type = trust
auth_file = {users}
auth_user = {superuser}
admin_users = {superuser}
"""


class PgBouncer(Server):
    """In front of one Postgres, all its databases and roles."""

    stop_signal = signal.SIGKILL  # it has no state to save, and other signals wait for clients
    refuses_root = True

    def __init__(self, folder: Path, upstream: Postgres) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._upstream = upstream
        self._program = find_program()

    def dsn(self, dbname: str = "postgres", user: str | None = None) -> str:
        return f"postgresql://{user or SUPERUSER}@127.0.0.1:{self.port}/{dbname}"

    def _prepare(self) -> None:
        users = self.folder / "users.txt"
        users.write_text(f'"{SUPERUSER}" ""\n')
        config = CONFIG.format(
            upstream=self._upstream.port, port=self.port, users=users, superuser=SUPERUSER
        )
        (self.folder / "pgbouncer.ini").write_text(config)

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def find_program() -> str:
    # Debian keeps it in /usr/sbin, which is not in an ordinary user's PATH.
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise ServerError("PgBouncer is not installed: apt-get install pgbouncer (or: make dev)")
    return found
