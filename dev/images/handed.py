"""
What the caller's machine hands in so that a build reaches its package index: the authority that
signs the company's proxy, and pip's settings. Given to builds as secrets, never part of an image.

Called by `build`; `engines` passes it on. The variables are those that pip and OpenSSL know:

    PIP_CERT REQUESTS_CA_BUNDLE SSL_CERT_FILE    a bundle of certificates, the first that is set
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL ...        and the same from pip's configuration files
    http_proxy https_proxy no_proxy              pass through as they are
"""

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ImageError

CA_IN_BUILD = "/run/secrets/ca.crt"
PASSED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""Of pip's settings: what matters in another root file system. Paths, for example, do not."""
DECISIVE = ("index-url", "extra-index-url")
"""Those that decide what is installed."""
SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""What Debian's own pip trusts, with whatever the administrator has added."""


@dataclass(frozen=True)
class Handed:
    ca: Path | None
    pip: Mapping[str, str]
    proxies: tuple[str, ...]
    """Names of variables."""

    def pip_conf(self) -> str:
        cert = {"cert": CA_IN_BUILD} if self.ca else {}
        lines = [f"{name} = {value}" for name, value in {**self.pip, **cert}.items()]
        # A list of indexes is several lines: pip wants the later ones indented.
        return "\n".join(["[global]", *(line.replace("\n", "\n    ") for line in lines), ""])

    @property
    def decisive(self) -> str:
        return repr([self.pip.get(name) for name in DECISIVE])


def handed(
    environ: Mapping[str, str], files: Sequence[Path] | None = None, system: Path = SYSTEM_BUNDLE
) -> Handed:
    configured = _configured(pip_files(environ) if files is None else files)
    for name in (*PASSED, "cert"):
        if value := environ.get(f"PIP_{name.upper().replace('-', '_')}"):
            configured[name] = value
    proxies = tuple(
        name
        for name in ("http_proxy", "https_proxy", "no_proxy")
        for name in (name, name.upper())
        if environ.get(name)
    )
    pip = {name: configured[name] for name in PASSED if name in configured}
    return Handed(_bundle(configured, environ, system), pip, proxies)


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Where pip looks, the most specific last. https://pip.pypa.io/en/stable/topics/configuration"""
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    found = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    return [*found, *([Path(extra)] if (extra := environ.get("PIP_CONFIG_FILE")) else [])]


def _configured(files: Sequence[Path]) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(files)
    except configparser.Error as error:
        raise ImageError(f"pip's configuration: {error}", "check `pip config debug`") from None
    return {
        name.replace("_", "-"): value
        for section in ("global", "install")
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def _bundle(pip: Mapping[str, str], environ: Mapping[str, str], system: Path) -> Path | None:
    candidates = {"PIP_CERT or pip's `cert`": pip.get("cert")}
    candidates |= {name: environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")}
    for name, value in candidates.items():
        if value:
            if not Path(value).is_file():
                raise ImageError(
                    f"{name} names {value}, which is not a file", "correct it or unset it"
                )
            return Path(value)
    return system if system.is_file() else None
