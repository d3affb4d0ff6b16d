"""Files with which an IT department runs its site of a study: systemd units, a container, Kubernetes manifests.

    for site in sites(study):
        files = deployment(study, site, "systemd")     # {"discreet-readmission-hospital-a.service": "[Unit]..."}

They hold public facts only: names, ports and commands. The kit, the table and the ledger are put in their places by
the site itself; docs/operations.md says where.
"""

from __future__ import annotations

from typing import Literal, get_args

from discreet import __version__
from discreet.errors import one_of
from discreet.parties.network.kits import split_address
from discreet.parties.study import COORDINATOR, Study

Platform = Literal["systemd", "container", "kubernetes"]
PLATFORMS: tuple[str, ...] = get_args(Platform)

HOME = "/var/lib/discreet"
"""Where a site keeps kit, table, ledger and model: one folder, readable by the user ``discreet`` alone."""

MEMORY_GB = 4
"""The most memory that a site may use; a party that reads a large table may need more."""

_CONSENT = "Consent once by hand, in a terminal, as below: consent and ledger are then those of the service."


def sites(study: Study) -> tuple[str, ...]:
    """Everybody who runs a process."""
    return (COORDINATOR, *study.names)


def deployment(study: Study, site: str, platform: Platform, *, own_key: bool = False) -> dict[str, str]:
    """The files of one site, by name. With ``own_key`` it signs with ``own.key``, which it made itself."""
    one_of("site", site, sites(study))
    made = {"systemd": _systemd, "container": _container, "kubernetes": _kubernetes}
    return made[one_of("for", platform, PLATFORMS)](study, site, command_of(study, site, own_key=own_key))


def command_of(study: Study, site: str, *, own_key: bool = False) -> list[str]:
    """The words after ``discreet`` with which the site runs, in its folder."""
    if site != COORDINATOR:
        words = ["join", "study.toml", "--data", "table.csv", "--kit", f"{site}.zip", "--out", "model"]
        return [*words, "--key", "own.key"] if own_key else words
    port = split_address(study.network.coordinator)[1]
    listen = ["--listen", f"0.0.0.0:{port}"]
    return ["coordinate", "study.toml", "--kit", f"{COORDINATOR}.zip", "--out", "model", *listen]


def _unit_name(study: Study, site: str) -> str:
    return f"discreet-{study.name}-{site}".lower().replace("_", "-").replace(" ", "-")


def _environment(home: str) -> dict[str, str]:
    """Variables of a site whose files are all in one folder. Ledgers are in it, too, by whatever way it is started.

    NUMBA_CACHE_DIR is a place for compiled functions: the library's own folder is read-only.
    """
    return {"HOME": home, "NUMBA_CACHE_DIR": f"{home}/.cache/numba", "PYTHONUNBUFFERED": "1"}


def _assigned(home: str) -> str:
    return " ".join(f"{name}={value}" for name, value in _environment(home).items())


def _systemd(study: Study, site: str, words: list[str]) -> dict[str, str]:
    command = f"/opt/discreet/bin/discreet {' '.join(words)}"
    by_hand = f"sudo -u discreet env {_assigned(HOME)} sh -c 'cd {HOME}/{study.name} && {command}'"
    consent = "" if site == COORDINATOR else f"# {_CONSENT}\n#   {by_hand}\n"
    text = f"""\
# {site} in the study {study.name}, {study.digest()}
# Install as /etc/systemd/system/{_unit_name(study, site)}.service. {HOME} is the home of the user discreet:
#   useradd --system --home-dir {HOME} --create-home --shell /usr/sbin/nologin discreet
{consent}[Unit]
Description=Discreet: {site} in the study {study.name}
After=network-online.target time-sync.target
Wants=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=30

[Service]
Type=exec
User=discreet
WorkingDirectory={HOME}/{study.name}
Environment={_assigned(HOME)}
ExecStart={command}
Restart=on-failure
RestartSec=30
# 2: the command makes no sense, or nobody has consented yet. A restart would not help.
RestartPreventExitStatus=2 130
TimeoutStopSec=15
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
ReadWritePaths={HOME}
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Raise it for a table that needs more.
MemoryMax={MEMORY_GB}G
TasksMax=512

[Install]
WantedBy=multi-user.target
"""
    return {f"{_unit_name(study, site)}.service": text}


def _container(study: Study, site: str, words: list[str]) -> dict[str, str]:
    port = split_address(study.network.coordinator)[1]
    opened = f'\n    ports: ["{port}:{port}"]' if site == COORDINATOR else ""
    consent = "" if site == COORDINATOR else f"# {_CONSENT}\n#   docker compose run --rm {site}\n"
    wheel = f"discreet-{__version__}-py3-none-any.whl"
    containerfile = f"""\
# One image for every site: it holds the library and nothing of the study.
# Put {wheel} beside this file, from your organisation's package index, and compare its SHA-256.
FROM python:3.12-slim
COPY {wheel} /tmp/
RUN useradd --home-dir /study --uid 10001 discreet && pip install --no-cache-dir "/tmp/{wheel}[parties]"
USER discreet
ENV {_assigned("/study")}
WORKDIR /study
ENTRYPOINT ["discreet"]
"""
    compose = f"""\
# {site} in the study {study.name}, {study.digest()}
# ./study holds study.toml, the kit and, at a party, table.csv; ledger and model are written there, too. Back it up.
# It belongs to the user of the image alone: chown -R 10001:10001 study && chmod 700 study
{consent}services:
  {site}:
    build: {{context: ., dockerfile: Containerfile}}
    command: [{", ".join(f'"{word}"' for word in words)}]
    volumes: ["./study:/study"]
    read_only: true
    tmpfs: ["/tmp"]
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
    mem_limit: {MEMORY_GB}g
    pids_limit: 512
    restart: on-failure{opened}
"""
    return {"Containerfile": containerfile, "compose.yaml": compose}


def _kubernetes(study: Study, site: str, words: list[str]) -> dict[str, str]:
    name = _unit_name(study, site)
    if site == COORDINATOR:
        consent = "# The image is built from the Containerfile of `--for container`.\n"
    else:
        words = [*words, "--yes"]
        consent = (
            "# By applying this you consent (--yes below) to what `discreet study check study.toml` shows.\n"
        )
    arguments = ", ".join(f'"{word}"' for word in words)
    variables = ", ".join(
        f'{{name: {name}, value: "{value}"}}' for name, value in _environment("/study").items()
    )
    job = f"""\
# {site} in the study {study.name}, {study.digest()}
{consent}# The claim {name} is one folder with study.toml, the kit and, at a party, table.csv. Back it up.
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  backoffLimit: 20
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      restartPolicy: OnFailure
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        fsGroup: 10001
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: discreet
          image: discreet-parties:{__version__}
          args: [{arguments}]
          env: [{variables}]
          resources: {{limits: {{memory: {MEMORY_GB}Gi}}}}
          volumeMounts: [{{name: study, mountPath: /study}}, {{name: tmp, mountPath: /tmp}}]
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: ["ALL"]}}
      volumes:
        - {{name: study, persistentVolumeClaim: {{claimName: {name}}}}}
        - {{name: tmp, emptyDir: {{}}}}
"""
    if site != COORDINATOR:
        return {f"{name}.yaml": job}
    port = split_address(study.network.coordinator)[1]
    service = f"""\
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  type: LoadBalancer
  selector: {{app: {name}}}
  ports: [{{port: {port}, targetPort: {port}}}]
"""
    return {f"{name}.yaml": job + service}
