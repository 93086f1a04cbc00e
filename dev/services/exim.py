"""
Exim, Debian's mail server, which delivers into folders and has no way to send anything on.

A mailbox is a folder below `mail`; an address without one is unknown (550). It listens on loopback,
has no router and no transport for other hosts, and refuses every domain but `DOMAINS`.
"""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from dev.services.process import Server, ServerError, _descendants, accepts, are_stopped, free_port
from dev.services.waiting import wait_until

DOMAINS = ("example.test", "sub.example.test")
LARGEST = 3_000_000

CONFIG = """\
primary_hostname = mail.example.test
spool_directory = {folder}/spool
log_file_path = {folder}/%slog
pid_file_path = {folder}/exim.pid
exim_user = {user}
exim_group = {group}
never_users =
deliver_drop_privilege = true
local_interfaces = 127.0.0.1
daemon_smtp_ports = {port} : {implicit_port}
tls_on_connect_ports = {implicit_port}
{tls}
domainlist ours = {domains}
message_size_limit = {largest}
host_lookup =
rfc1413_query_timeout = 0s
smtp_accept_max = 200
smtp_accept_max_per_connection = 0
smtp_accept_queue_per_connection = 0
smtp_accept_queue = 0
smtp_connect_backlog = 200
recipients_max = 100
acl_smtp_mail = mail
acl_smtp_rcpt = rcpt
acl_smtp_data = data

begin acl
mail:
    deny condition = ${{if eq{{$sender_address}}{{forbidden@example.test}}}}
         message = sender not allowed
    accept

rcpt:
    deny  domains = !+ours
          message = relay not permitted
    defer local_parts = later
          message = greylisted, try again
    deny  !verify = recipient
          message = no such user
    accept

data:
    deny condition = ${{if match{{$h_subject:}}{{^SPAM}}}}
         message = looks like spam
    defer condition = ${{if match{{$h_subject:}}{{^BUSY}}}}
         message = scanner busy
    accept

begin routers
into_a_folder:
    driver = accept
    domains = +ours
    local_parts = dsearch;{folder}/mail
    transport = folder

begin transports
folder:
    driver = appendfile
    directory = {folder}/mail/$local_part_data
    maildir_format
    return_path_add
    envelope_to_add

begin authenticators
plain:
    driver = plaintext
    public_name = PLAIN
    server_prompts = :
    server_condition = ${{if and{{{{eq{{$auth2}}{{{username}}}}}{{eq{{$auth3}}{{{password}}}}}}}}}
    server_advertise_condition = ${{if def:tls_in_cipher}}
"""


class Exim(Server):
    stop_within = 5.0
    refuses_root = True
    username, password = "relay", "open-sesame"

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate`: with its key. They are copied, for the user whom it runs as."""
        super().__init__(folder)
        self.port, self.implicit_port = free_port(), free_port()
        self._certificate = certificate
        self._program = find_program()

    def make_mailbox(self, name: str) -> Path:
        """Where messages for this user arrive, one file each."""
        box = self.folder / "mail" / name
        for part in ("cur", "new", "tmp"):
            self._make(box / part)
        return box / "new"

    def pause(self) -> None:
        """Neither it nor any connection that it has answers."""
        os.kill(self.pid, signal.SIGSTOP)  # first, so that there are no new ones
        wait_until(lambda: are_stopped(self.pid), 10, "exim is stopped")
        for pid in _descendants(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.running:
            for pid in self._family():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def run_queue(self) -> None:
        """Deliver now what waits: what a crash left, or a first try could not."""
        self._run(self._program, "-C", self.folder / "exim.conf", "-qff")

    def _family(self) -> list[int]:
        return [self.pid, *_descendants(self.pid)]

    def _make(self, folder: Path) -> None:
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        if self._as_other_user():
            for made in missing:
                shutil.chown(made, "postgres", "postgres")

    def _prepare(self) -> None:
        self._make(self.folder / "spool")
        self._make(self.folder / "mail")
        tls = "tls_advertise_hosts ="
        if self._certificate is not None:
            names = ("server.crt", "server.key")
            for source, name in zip(self._certificate, names, strict=True):
                shutil.copy(source, self.folder / name)
                if self._as_other_user():
                    shutil.chown(self.folder / name, "postgres", "postgres")
            tls = (
                "tls_advertise_hosts = *\n"
                f"tls_certificate = {self.folder}/server.crt\n"
                f"tls_privatekey = {self.folder}/server.key"
            )
        user, group = ("postgres", "postgres") if self._as_other_user() else (_me(), _my_group())
        (self.folder / "exim.conf").write_text(
            CONFIG.format(
                folder=self.folder, port=self.port, implicit_port=self.implicit_port, tls=tls,
                domains=" : ".join(DOMAINS), largest=LARGEST, user=user, group=group,
                username=self.username, password=self.password,
            )
        )  # fmt: skip

    def _command(self) -> list[str]:
        return [self._program, "-C", str(self.folder / "exim.conf"), "-bdf", "-q1m"]

    def _is_ready(self) -> bool:
        return accepts(self.port)


def _me() -> str:
    return str(os.geteuid())


def _my_group() -> str:
    return str(os.getegid())


def find_program() -> str:
    # Debian keeps it in /usr/sbin, which is not in an ordinary user's PATH.
    found = shutil.which("exim4", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise ServerError(
            "Exim is not installed: apt-get install exim4-daemon-light (or: make dev)"
        )
    return found
