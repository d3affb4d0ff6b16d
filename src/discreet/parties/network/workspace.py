"""What NVFlare may do at a site: its folder of settings, written by the site itself from the installed library.

A kit brings certificates, never settings, so no coordinator can loosen them. There is no job layer (no scheduler,
launcher or store of jobs), nobody has a right, one class of ours may be built, no code is accepted, no log leaves,
and NVFlare writes to one file beside the kit instead of the terminal.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from discreet.parties.network.kits import Kit, revoked

PARTY_COMPONENT = "discreet.parties.network.sites.PartyService"
COORDINATOR_COMPONENT = "discreet.parties.network.sites.CoordinatorService"


def write_workspace(kit: Kit, port: int | None = None) -> Path:
    """NVFlare's folder for this site, made afresh from the kit's certificates and our own settings.

    ``port`` is the one that a coordinator listens on, if it is not the one that parties know.
    """
    root = kit.folder / "nvflare"
    shutil.rmtree(root, ignore_errors=True)
    for part in ("startup", "local"):
        (root / part).mkdir(parents=True, mode=0o700)
    side = "server" if kit.is_coordinator else "client"
    for member, name in (
        ("authority.pem", "rootCA.pem"),
        ("site.crt", f"{side}.crt"),
        ("site.key", f"{side}.key"),
    ):
        shutil.copy2(kit.path(member), root / "startup" / name)
    startup = _server_startup(kit, port or kit.port) if kit.is_coordinator else _client_startup(kit)
    _write(root / "startup" / f"fed_{side}.json", startup)
    _write(
        root / "local" / "resources.json",
        _server_resources(root) if kit.is_coordinator else _client_resources(),
    )
    _write(root / "local" / "authorization.json", _AUTHORIZATION)
    _write(root / "local" / "log_config.json", _logging(kit.folder / "nvflare.log"))
    if kit.is_coordinator:
        names = sorted(revoked(kit.source.parent))
        _write(root / "disabled_clients.json", {"disabled_clients": names})
    return root


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1))


def _tls(side: str) -> dict[str, str]:
    return {
        "ssl_private_key": f"{side}.key",
        "ssl_cert": f"{side}.crt",
        "ssl_root_cert": "rootCA.pem",
        "connection_security": "mtls",
    }


def _service(host: str, port: int) -> dict[str, str]:
    return {"target": f"{host}:{port}", "scheme": "tcp"}


def _server_startup(kit: Kit, port: int) -> dict[str, Any]:
    """Administrators would come by the same port; with another one NVFlare would open a second door for them."""
    service = {"name": kit.study, "service": _service("localhost", port), "admin_server": "localhost"}
    return {
        "format_version": 2,
        "servers": [service | {"admin_port": port, "identity": kit.host} | _tls("server")],
    }


def _client_startup(kit: Kit) -> dict[str, Any]:
    server = {"name": kit.study, "service": _service(kit.host, kit.port), "identity": kit.host}
    client = _tls("client") | {"fqsn": kit.party, "is_leaf": True}
    return {"format_version": 2, "servers": [server], "client": client}


def _component(path: str) -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [path],
        "allow_log_streaming": False,
        "components": [{"id": "discreet", "path": path, "args": {}}],
    }


def _client_resources() -> dict[str, Any]:
    client = {"retry_timeout": 30, "client_register_interval": 0.2, "maint_msg_timeout": 10.0}
    return _component(PARTY_COMPONENT) | {"client": client}


def _server_resources(root: Path) -> dict[str, Any]:
    storage = {
        "path": "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
        "args": {"root_dir": str(root / "snapshot"), "uri_root": "/"},
    }
    persistor = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": storage},
    }
    server = {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 600}
    return _component(COORDINATOR_COMPONENT) | {"servers": [server], "snapshot_persistor": persistor}


_RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "byoc",
)
_AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        role: dict.fromkeys(_RIGHTS, "none") for role in ("project_admin", "org_admin", "lead", "member")
    },
}


def _logging(file: Path) -> dict[str, Any]:
    """Everything into one file beside the kit, nothing on the terminal, never DEBUG (it would print payloads)."""
    handler = {
        "class": "logging.handlers.RotatingFileHandler",
        "level": "INFO",
        "formatter": "plain",
        "filename": str(file),
        "maxBytes": 5 << 20,
        "backupCount": 1,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
        "handlers": {"file": handler},
        "loggers": {"root": {"level": "INFO", "handlers": ["file"]}},
    }
