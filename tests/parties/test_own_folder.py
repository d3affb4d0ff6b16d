"""Folders for keys and settings: whoever else could change them is kept out before anything is unpacked."""

import os
import stat

import pytest

from discreet.errors import InvalidParameter
from discreet.parties import own_folder
from discreet.parties.network.kits import make_kits, open_kit
from discreet.parties.own_folder import insist_on_own_folder
from support.small_study import study

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "above" / "kit"
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o755)
    return place


def refused(folder):
    with pytest.raises(InvalidParameter, match="run code with your rights") as caught:
        insist_on_own_folder(folder, "kit")
    assert str(caught.value).startswith("kit=")
    return str(caught.value)


def test_a_folder_of_ours_is_taken(folder):
    (folder / "file").touch()
    insist_on_own_folder(folder, "kit")
    folder.parent.chmod(0o1777)  # as /tmp: others may add to it, and rename nothing of ours
    insist_on_own_folder(folder, "kit")


def test_links_are_refused(folder):
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert "is a link" in refused(link)
    (folder / "nvflare.log").symlink_to("/dev/null")
    assert "holds 'nvflare.log'" in refused(folder)


@pytest.mark.parametrize("mode", [0o707, 0o703, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(folder, mode):
    folder.chmod(mode)
    assert "chmod go-w" in refused(folder)


def test_a_folder_inside_one_that_others_can_write_to_is_refused(folder):
    folder.parent.chmod(0o777)
    assert f"is inside {folder.parent}" in refused(folder)


def test_a_group_counts_as_others_unless_it_is_the_users_own(folder, monkeypatch):
    monkeypatch.setattr(own_folder, "_is_private", lambda group: True)
    folder.chmod(0o770)
    folder.parent.chmod(0o775)
    insist_on_own_folder(folder, "kit")
    monkeypatch.setattr(own_folder, "_is_private", lambda group: False)
    refused(folder)
    folder.chmod(0o700)
    refused(folder)


@as_root
def test_what_belongs_to_another_user_is_refused(folder):
    (folder / "file").touch()
    os.chown(folder / "file", NOBODY, NOBODY)
    assert "holds 'file'" in refused(folder)
    os.chown(folder, NOBODY, NOBODY)
    assert "belongs to another user" in refused(folder)
    os.chown(folder, 0, 0)
    (folder / "file").unlink()
    os.chown(folder.parent, NOBODY, NOBODY)
    assert "is inside" in refused(folder)


def test_a_kit_is_not_unpacked_where_somebody_else_could_change_it(tmp_path):
    """The attack: another user made the folder beside the zip, and NVFlare built a class that his settings named."""
    path = make_kits(study(), tmp_path / "kits")["hospital-a"]
    target = path.with_suffix("")
    target.mkdir()
    target.chmod(0o777)
    with pytest.raises(InvalidParameter, match="written to by other users"):
        open_kit(path)
    assert not list(target.iterdir())
    target.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target.symlink_to(elsewhere)
    with pytest.raises(InvalidParameter, match="is a link"):
        open_kit(path)
    with pytest.raises(InvalidParameter, match="is a link"):
        open_kit(path, folder=target)
    assert not list(elsewhere.iterdir())
    target.unlink()
    assert stat.S_IMODE(open_kit(path).folder.stat().st_mode) == 0o700
    open_kit(path)  # again, over what is there


@as_root
def test_a_kit_is_not_unpacked_into_the_folder_of_another_user(tmp_path):
    path = make_kits(study(), tmp_path / "kits")["hospital-a"]
    path.with_suffix("").mkdir()
    os.chown(path.with_suffix(""), NOBODY, NOBODY)
    with pytest.raises(InvalidParameter, match="another user"):
        open_kit(path)
