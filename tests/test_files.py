"""The one writer: whole or not at all, nothing left behind by who was killed, and nobody writes past it."""

import ast
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import discreet
from discreet import Budget, Recipe
from discreet.certificate import Certificate
from discreet.files import hold_lock, whole_file, write_whole
from discreet.folders import insist_writable, whole_folder
from discreet.ledger import FixedPlan, Ledger

SOURCE = Path(discreet.__file__).parent


class Burst(Exception):
    pass


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_once_or_stays(tmp_path):
    file = tmp_path / "a.json"
    write_whole(file, "old")
    with suppress(Burst), whole_file(file) as half:
        half.write("ne")
        half.flush()
        assert file.read_text() == "old"
        raise Burst
    assert (file.read_text(), names(tmp_path)) == ("old", ["a.json"])
    write_whole(file, b"new", secret=True)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)


def test_a_folder_appears_at_once_or_never(tmp_path):
    with suppress(Burst), whole_folder(tmp_path / "model") as part:
        (part / "weights").write_text("half")
        raise Burst
    insist_writable(tmp_path / "model")
    assert names(tmp_path) == []
    with whole_folder(tmp_path / "model") as part:
        (part / "weights").write_text("all")
    assert names(tmp_path / "model") == ["weights"]
    with pytest.raises(OSError, match="model/b") as refusal:
        insist_writable(tmp_path / "model" / "weights" / "model/b")
    assert refusal.value.filename.endswith("model/b")


def killed_while(script, folder):
    """Run a script that stops in the middle of writing into ``folder``, and kill it there."""
    ours = "from discreet.files import *\nfrom discreet.folders import *"
    lines = f"import sys, time\nfrom pathlib import Path\n{ours}\n{script}"
    process = subprocess.Popen([sys.executable, "-c", lines, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("way", ["whole_file", "whole_folder"])
def test_what_a_killed_writer_left_is_swept_away_by_the_next(tmp_path, way):
    body = "    print('writing', flush=True)\n    time.sleep(600)"
    script = f"with {way}(Path(sys.argv[1]) / 'model') as part:\n{body}"
    killed_while(script, tmp_path)
    assert len(names(tmp_path)) == 1
    writer = {"whole_file": whole_file, "whole_folder": whole_folder}[way]
    with writer(tmp_path / "model"):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == ["model"]


def test_what_is_being_written_is_not_swept_away(tmp_path):
    """Also parts of other names, and strangers' files that look alike, stay."""
    (tmp_path / ".model.part").write_text("a stranger")
    (tmp_path / ".other.0123456789abcdef.part").write_text("of another name")
    with whole_file(tmp_path / "model") as slow:
        slow.write("slow")
        write_whole(tmp_path / "model", "fast")
    assert (tmp_path / "model").read_text() == "slow"
    assert len(names(tmp_path)) == 3


def test_a_lock_is_refused_at_once_and_ends_with_its_process(tmp_path):
    lock = tmp_path / "lock"
    with hold_lock(lock, Burst()), pytest.raises(Burst), hold_lock(lock, Burst()):
        pass
    script = "with hold_lock(Path(sys.argv[1]), ValueError()):\n    print('writing', flush=True)\n    time.sleep(600)"
    killed_while(script, lock)
    with hold_lock(lock, Burst()):
        pass


def test_plans_certificates_and_models_keep_what_they_had_if_the_disk_fills(tmp_path, monkeypatch):
    plan = Recipe(records=1000, batch_size=10, steps=5).calibrate(Budget(1.0, 1e-5))
    with Ledger.in_memory(FixedPlan(plan.event, Budget(2.0, 1e-5))) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(5)
        certificate = Certificate.of(ledger, plan)
    for name, document in (("plan.json", plan), ("certificate.json", certificate)):
        document.save(tmp_path / name)
        before = (tmp_path / name).read_text()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "disk full")))
            with pytest.raises(OSError, match="disk full"):
                document.save(tmp_path / name)
        assert (tmp_path / name).read_text() == before
    assert names(tmp_path) == ["certificate.json", "plan.json"]


# Files that are made once beside nothing (keys), only grow, or lie in a folder of their own that is made afresh.
OTHERS = {
    "files.py",
    "certificate/signing_keys.py",
    "ledger/ledger.py",
    "parties/network/kits.py",
    "parties/network/sites.py",
    "parties/table_ledger.py",
    "cli/studio.py",
}


def writers(text):
    """Calls that write, replace or rename a file by themselves."""
    words = {"write_text", "write_bytes", "rename", "mkstemp", "NamedTemporaryFile", "fdopen"}
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    return named & words


def test_there_is_one_atomic_writer():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if writers(path.read_text(encoding="utf-8"))
    }
    assert found - OTHERS == set()
    assert writers("Path(path).write_text(self.to_json())") == {"write_text"}  # as Plan.save did
