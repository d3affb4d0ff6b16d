"""Is a file on a disk that means what it says?"""

from __future__ import annotations

from pathlib import Path

_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "ceph",
    "gluster",
    "lustre",
    "fuse.sshfs",
    "fuse.gluster",
    "fuse.s3fs",
)


def remote_filesystem(path: Path, mounts: str) -> str | None:
    """The kind of network file system that holds ``path``, or None; ``mounts`` is /proc/self/mountinfo.

    Locks and fsync of network file systems cannot be relied upon, and a ledger relies on both.

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


def mounted() -> str:
    """The mount table, or nothing where the system does not show one."""
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
