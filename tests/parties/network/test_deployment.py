"""Files for operators: well formed, without secrets, and their commands are ours."""

import configparser
import shutil
import subprocess

import pytest
import yaml

import discreet
from discreet import InvalidParameter
from discreet.cli import main
from discreet.parties.network.deployment import HOME, PLATFORMS, command_of, deployment, sites
from discreet.parties.study import COORDINATOR, Study

STUDY = Study.from_dict(
    {
        "study": {"name": "readmission", "algorithm": "sgd2"},
        "parties": {"hospital-a": 100, "hospital-b": 200},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "training": {"rounds": 10, "clip_norm": 1.0},
        "network": {"coordinator": "b.example.org:8443"},
        "model": {"kind": "logistic", "dimension": 3},
    }
)


def words_are_known(words):
    """Whether the command line takes these words; it does nothing with them."""
    name, *rest = words
    command = main.get_command(None, name)
    with command.make_context(name, list(rest)) as context:
        return context.params


@pytest.mark.parametrize("site", sites(STUDY))
def test_commands_are_ours(site):
    found = words_are_known(command_of(STUDY, site))
    assert found["kit_file"].name == f"{site}.zip"
    with pytest.raises(Exception, match="No such option"):
        words_are_known([*command_of(STUDY, site), "--no-such-option"])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_party_with_a_key_of_its_own_signs_with_it(platform):
    assert words_are_known(command_of(STUDY, "hospital-a", own_key=True))["key"].name == "own.key"
    own, other = (str(deployment(STUDY, "hospital-a", platform, own_key=it)) for it in (True, False))
    assert "own.key" in own
    assert "own.key" not in other
    assert "own.key" not in str(deployment(STUDY, "coordinator", platform, own_key=True))


@pytest.mark.parametrize("site", sites(STUDY))
def test_systemd_units(site, tmp_path):
    ((name, text),) = deployment(STUDY, site, "systemd").items()
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    program, *words = unit["Service"]["ExecStart"].split()
    assert program.endswith("/discreet")
    assert words == command_of(STUDY, site)
    service = unit["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert service["SystemCallFilter"] == "@system-service"
    assert service["MemoryMax"] == "4G"
    assert f"HOME={HOME} NUMBA_CACHE_DIR={HOME}/.cache/numba" in service["Environment"]
    if site != COORDINATOR:  # consent by hand has the same home, folder and words, so the same ledger
        by_hand = next(line for line in text.splitlines() if "sudo -u discreet" in line)
        assert service["Environment"] in by_hand
        assert f"cd {service['WorkingDirectory']} && {service['ExecStart']}'" in by_hand
    if shutil.which("systemd-analyze"):
        path = tmp_path / name
        path.write_text(text.replace("/opt/discreet/bin/discreet", "/bin/true"))
        found = subprocess.run(
            ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
        )
        assert name not in found.stderr, found.stderr


@pytest.mark.parametrize("site", sites(STUDY))
def test_containers_and_manifests(site):
    files = deployment(STUDY, site, "container")
    service = yaml.safe_load(files["compose.yaml"])["services"][site]
    assert service["command"] == command_of(STUDY, site)
    assert service["read_only"] is True
    assert ("ports" in service) == (site == "coordinator")
    assert "USER discreet" in files["Containerfile"]
    assert f"discreet-{discreet.__version__}-py3-none-any.whl" in files["Containerfile"]
    assert "ENV HOME=/study NUMBA_CACHE_DIR=/study/.cache/numba" in files["Containerfile"]
    assert service["mem_limit"] == "4g"
    ((_, text),) = deployment(STUDY, site, "kubernetes").items()
    job, *more = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][: len(command_of(STUDY, site))] == command_of(STUDY, site)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["image"] == f"discreet-parties:{discreet.__version__}"
    assert {"name": "NUMBA_CACHE_DIR", "value": "/study/.cache/numba"} in pod["containers"][0]["env"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "4Gi"
    assert [document["kind"] for document in more] == (["Service"] if site == "coordinator" else [])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_only_sites_of_the_study_and_known_platforms(platform):
    with pytest.raises(InvalidParameter, match="hospital-z"):
        deployment(STUDY, "hospital-z", platform)
    with pytest.raises(InvalidParameter, match="nomad"):
        deployment(STUDY, "hospital-a", "nomad")
