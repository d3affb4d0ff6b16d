"""A precaution: refuse ledgers on network file systems, whose locks and fsync cannot be relied upon.

A ledger is proved for disks that keep what they confirm. Nothing here has to be believed for that.
"""

from __future__ import annotations

from pathlib import Path

from discreet.errors import LedgerUnavailable
from discreet.ledger import ledger_texts

_REMOTE = (
    *("nfs", "cifs", "smb", "afs", "ceph", "gluster", "lustre"),
    *("fuse.sshfs", "fuse.gluster", "fuse.s3fs"),
)


def remote_filesystem(path: Path, mounts: str) -> str | None:
    """Return the kind of network file system that holds ``path``, or None; ``mounts`` is /proc/self/mountinfo.

    >>> remote_filesystem(Path("/data/a.ledger"), "9 1 0:1 / /data rw - nfs4 server:/x rw")
    'nfs4'
    """
    deepest, found = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            deepest, found = len(point.parts), rest.split()[0]
    return found if found.startswith(_REMOTE) else None


def mount_table() -> str:
    """Return the mount table, or nothing where the system does not show one."""
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def refuse_network(path: Path) -> None:
    """Raise if ``path`` lies on a network file system."""
    kind = remote_filesystem(path.resolve(), mount_table())
    if kind is not None:
        raise LedgerUnavailable(ledger_texts.on_network(path, kind))
