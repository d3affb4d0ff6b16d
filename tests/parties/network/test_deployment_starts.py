"""A generated unit is started as systemd would start it: another user, a read-only system, no home but its folder."""

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from discreet.cli import main
from discreet.parties.network.deployment import HOME, deployment
from discreet.parties.study import Study
from support.small_study import free_port

NOBODY = 65534
TOOLS = ("unshare", "setpriv", "mount")
SCHEMA = 'target = "again"\n[columns]\nage = { bounds = [0, 100] }\nagain = { flag = "yes" }\n'
ROWS = "age,again\n10,no\n60,yes\n"


pytestmark = [
    pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The home of a party, as the operations page describes it, and its unit."""
    home, made = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("made")
    before = Path.cwd()
    os.chdir(made)
    try:
        Path("schema.toml").write_text(SCHEMA)
        new = ("study", "new", "demo", "--party", "a=2", "--party", "b=2", "--schema", "schema.toml")
        limits = ("--rounds", "5", "--epsilon", "3", "--delta", "1e-4")
        for words in (
            (*new, *limits, "--coordinator", f"localhost:{free_port()}"),
            ("study", "kits", "study.toml"),
        ):
            assert CliRunner().invoke(main, words).exit_code == 0
    finally:
        os.chdir(before)
    folder = home / "demo"
    folder.mkdir()
    shutil.copy(made / "study.toml", folder)
    shutil.copy(made / "kits" / "a.zip", folder)
    (folder / "table.csv").write_text(ROWS)
    for path in (home, folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o700)
    ((_, text),) = deployment(Study.load(made / "study.toml"), "a", "systemd").items()
    return home, text


def run(home, line):
    """Run a shell line as the unit would be: in a namespace in which all is read-only but its home and /tmp."""
    line = line.replace("/opt/discreet/bin/discreet", f"{sys.executable} -m discreet")
    user = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --bounding-set=-all"
    steps = (
        "mount --make-rprivate /",
        *_for_everybody(Path(sys.base_prefix)),
        "mount -t tmpfs tmpfs /var/lib",
        f"mkdir {HOME}",
        f"mount --bind {home} {HOME}",
        "mount -t tmpfs tmpfs /tmp",
        "mount -o remount,bind,ro /",
        f"exec {user} env -i PATH={os.defpath} sh -c {shlex.quote(line)}",
    )
    words = ["unshare", "-m", "sh", "-e", "-c", "\n".join(steps)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    if found.stderr.startswith(("mount:", "unshare:")) or found.returncode in (126, 127):
        pytest.skip(f"this machine cannot do it: {found.stderr}")
    assert "Traceback" not in found.stderr
    return found.returncode, found.stderr


def _for_everybody(python):
    """Make a Python that lies in root's home readable for others, in this namespace."""
    if not python.is_relative_to("/root"):
        return ()
    return (
        "mount -t tmpfs tmpfs /mnt",
        "mkdir /mnt/python",
        f"mount --bind {python} /mnt/python",
        "mount -t tmpfs -o mode=755 tmpfs /root",
        f"mkdir -p {python}",
        f"mount --move /mnt/python {python}",
    )


@pytest.mark.slow
def test_a_unit_starts_without_a_home_and_pays_from_the_ledger_of_the_consent(site):
    """In 0.1.0 no unit started (Numba had no place for its cache), and consent by hand began a second ledger."""
    home, text = site
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    started = (
        f"cd {service['WorkingDirectory']} && env {service['Environment']} {service['ExecStart']} --wait 0.1"
    )
    by_hand = next(line for line in text.splitlines() if "sudo -u discreet" in line)
    by_hand = by_hand.removeprefix("#   sudo -u discreet ").removesuffix("'") + " --wait 0.1'"
    status, said = run(home, started)
    assert status == 2, said  # nobody has consented, and nobody can be asked
    assert "--yes: must be given where nobody can be asked" in said
    status, said = run(home, f"echo y | {by_hand}")
    assert status == 1, said
    assert "error[nobody-there]" in said
    status, said = run(home, started)
    assert status == 1, said
    assert "has consented to study" in said
    assert "error[nobody-there]" in said
    assert len(list(home.rglob("*.ledger"))) == 1
