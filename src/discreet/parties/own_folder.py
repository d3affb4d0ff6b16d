"""Folders that hold a party's keys and settings: nobody else may be able to change what is in them.

NVFlare reads its settings from the folder of the kit, and settings name the classes that it builds. Whoever can write
there, or can put another folder in its place, runs code as the party. So the folder must belong to the user who runs
the command, must not be a link, and neither it nor a folder above it may be open for others to write.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from discreet.errors import InvalidParameter

_ROOT = 0


def insist_on_own_folder(folder: Path, name: str) -> None:
    """Raise unless ``folder`` is this user's alone to change; ``name`` is the parameter that led to it.

    Guarantee: no other user but root can write to the folder, replace it or one above it, or has left a file or a
    link in it. On systems without POSIX owners nothing is checked.
    """
    if os.name != "posix":
        return
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise _refusal(name, folder, "is a link, or no folder")
    if found.st_uid != os.geteuid():
        raise _refusal(name, folder, f"belongs to another user ({_user(found.st_uid)})")
    if _writable_by_others(found):
        raise _refusal(name, folder, "can be written to by other users", f"; or run: chmod go-w {folder}")
    for above in folder.resolve().parents:
        about = above.stat()
        if about.st_uid not in (_ROOT, os.geteuid()):
            raise _refusal(name, folder, f"is inside {above}, which belongs to {_user(about.st_uid)}")
        if (
            _writable_by_others(about) and not about.st_mode & stat.S_ISVTX
        ):  # /tmp lets nobody rename what is ours
            raise _refusal(name, folder, f"is inside {above}, which other users can write to")
    for entry in folder.iterdir():
        about = entry.lstat()
        if stat.S_ISLNK(about.st_mode) or about.st_uid != os.geteuid():
            raise _refusal(name, folder, f"holds {entry.name!r}, which is a link or belongs to another user")


def _refusal(name: str, folder: Path, why: str, more: str = "") -> InvalidParameter:
    remedy = (
        f"{why}: whoever can change it could run code with your rights. Use a folder of your own that nobody "
        f"else can write to{more}."
    )
    return InvalidParameter(name, str(folder), remedy)


def _writable_by_others(about: os.stat_result) -> bool:
    return bool(about.st_mode & 0o002 or (about.st_mode & 0o020 and not _is_private(about.st_gid)))


def _is_private(group: int) -> bool:
    """Whether a group is root's, or the one that systems give to each user and that bears the user's name."""
    import grp
    import pwd

    try:
        return group == _ROOT or grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container without names: the same number stands for the user's own group
        return group == os.geteuid()


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
