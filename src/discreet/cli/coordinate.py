"""``discreet coordinate``: the coordinator of a study, from the first party that joins to the model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from discreet.cli.shell import FILE, NUMBER, CommandResult, Tenths, command, note, progress
from discreet.cli.watching import EpsilonSoFar, digest_line, study_table
from discreet.errors import CannotConnect, StudyStopped, real
from discreet.files import whole_file

_INTERRUPTED = "Nothing is lost: start again with the same --out to go on where the study stood."
_POLL = 0.1
_RENAMED = {"path": "STUDY", "state_file": "--out", "coordinator": "--listen"}


@command("coordinate", interrupted=_INTERRUPTED, renamed=_RENAMED)
@click.argument("study_file", metavar="STUDY", type=FILE)
@click.option(
    "--kit",
    "kit_file",
    type=FILE,
    required=True,
    help="The coordinator's kit, coordinator.zip, from `discreet study kits`.",
)
@click.option("--out", type=FILE, help="Folder for the model and the state. Default: the name of the study.")
@click.option(
    "--listen", "address", help="host:port to listen on, if it differs from the parties' address of it."
)
@click.option(
    "--wait", type=NUMBER, default=3600, show_default=True, help="Seconds to wait for missing parties."
)
@click.option(
    "--linger",
    type=NUMBER,
    default=60,
    show_default=True,
    help="Seconds to wait at the end for parties that have not received the model.",
)
@click.option(
    "--status",
    type=NUMBER,
    metavar="PORT",
    help="Serve a local progress page, protected by a token, on this port.",
)
@click.option("--serve", is_flag=True, help="Only send the model of a finished study to the parties.")
def coordinate(
    study_file: Path,
    kit_file: Path,
    out: Path | None,
    address: str | None,
    wait: float,
    linger: float,
    status: int | None,
    serve: bool,
) -> CommandResult:
    """Run the study STUDY: wait for the parties, train, write the model and send it to them.

    \b
    discreet coordinate study.toml --kit kits/coordinator.zip
    discreet coordinate study.toml --kit kits/coordinator.zip --serve

    The coordinator holds no records. The table of observers lists what it sees. It may be restarted at any time.
    At the end it writes joint.json with the parties' signed certificates and the digest of the model. With
    --serve, an absent party receives the model later, within the time of --wait.
    """
    from discreet.adapters.joint_study import joint_of
    from discreet.parties import Study
    from discreet.parties.network.kits import open_kit
    from discreet.parties.network.nvflare import listen

    patience, rest = real("wait", wait, above=0), real("linger", linger, at_least=0)
    study = Study.load(study_file)
    model, kit = joint_of(study), open_kit(kit_file)
    kit.check(study)
    if not kit.is_coordinator:
        raise CannotConnect(f"{kit_file.name} is the kit of a party ({kit.party}); use coordinator.zip.")
    folder = (out or Path(study.name)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if serve:
        _insist_on_end(folder / "state.npz", study)
    click.echo(f"{study_table(study)}\n", err=True)
    with listen(kit, address, dimension=study.dimension) as transport:
        place = address or study.network.coordinator
        note(f"roster {kit.fingerprint}; listening on {place} for {', '.join(study.names)}.")
        page = _status_page(study, status, folder, transport)
        strategy = getattr(model, "strategy", None)
        conductor = _Conductor(study, kit, transport, folder / "state.npz", patience, page, strategy)
        result = conductor.run()
        if page is not None:
            page.finish()
        ending = conductor.coordinator.ending
        model.write(folder, ending.theta)
        with whole_file(folder / "observers.json") as file:
            json.dump(result.observers.to_dict(), file, indent=2)
        heard = conductor.hand_out(patience if serve else rest, folder / "joint.json")
    data = {
        "out": folder,
        "digest": study.digest(),
        "updates": result.updates,
        "missed": dict(result.missed),
        "model": ending.model,
        "told": sorted(heard),
        "joint": folder / "joint.json",
        **result.observers.to_dict(),
    }
    missed = ", ".join(f"{name} missed {count}" for name, count in result.missed.items() if count)
    what = "question" if study.algorithm == "recipe" else "update"
    number = f"{result.updates} {what}{'' if result.updates == 1 else 's'}{'; ' + missed if missed else ''}"
    text = f"{number}. {model.made} is in {folder}."
    away = [name for name in study.names if name not in heard]
    if away:
        text += f"\n{', '.join(away)} did not get it; hand it out later with --serve."
    told = model.describe(ending.theta)
    return CommandResult(data, f"{text}\n{told}{digest_line(ending, model.made)}\n\n{result.observers}")


def _status_page(study: Any, port: int | None, folder: Path, transport: Any) -> Any:
    """Serve the status page until the command ends; None if it was not requested."""
    if port is None:
        return None
    from discreet.parties.network.status import StatusPage, status_token

    page = StatusPage(study, port, status_token(folder / "status.token"), transport.connected)
    note(f"the study is shown at {click.get_current_context().with_resource(page).url}")
    return page


def _insist_on_end(state: Path, study: Any) -> None:
    """Raise if there is no final model to hand out."""
    from discreet.parties.state import StateFile

    found = StateFile(state).load(study.digest())
    if found is None or not found.finished:
        raise StudyStopped("The study has not come to its end; start without --serve to go on with it.")


class _Conductor:
    """Runs the coordinator, waits for parties that are missing, and shows how far it is."""

    def __init__(
        self,
        study: Any,
        kit: Any,
        transport: Any,
        state: Path,
        patience: float,
        page: Any = None,
        strategy: Any = None,
    ) -> None:
        self._study, self._kit, self._transport, self._strategy = study, kit, transport, strategy
        self._state, self._patience, self._page = state, patience, page
        self._said: set[tuple[str, str]] = set()
        self.coordinator = self._make_coordinator(None)

    def _make_coordinator(self, told: Any) -> Any:
        from discreet.parties import Coordinator

        key = self._kit.signing_key()
        roster, state = self._kit.roster, self._state
        options = {"signing_key": key, "strategy": self._strategy}
        return Coordinator(self._study, self._transport, roster, state, told, **options)

    def run(self) -> Any:
        """To the end of the plan. A study that nobody answers any more is taken up again when parties are back."""
        if self.coordinator.finished:
            note("the study has come to its end; the model is handed out.")
            return self.coordinator.run()
        missing = self._study.dropouts if self._state.exists() else 0  # a study begins with everybody
        needed = len(self._study.names) - missing
        with self._progress_bar() as told:
            while True:
                self._await(needed)
                self.coordinator = self._make_coordinator(told)
                try:
                    return self.coordinator.run()
                except StudyStopped:
                    self._tell_refusals(self.coordinator.refused)
                    if len(self._present()) >= needed:  # they are there, so something else is wrong
                        raise

    def hand_out(self, patience: float, joint: Path) -> list[str]:
        """Send the model until everybody has it, or so long; who has got it. Certificates go into one file."""
        from discreet.parties.joint import JointCertificate

        certificates = JointCertificate.load(joint).own() if joint.exists() else {}
        end, heard = time.monotonic() + patience, list[str]()
        while True:
            waiting = [name for name in self._present() if name not in heard]
            taken = self.coordinator.finish(waiting) if waiting else {}
            self._tell_refusals(self.coordinator.refused)
            self._transport.dismiss(list(taken))
            heard += taken
            certificates |= {name: found for name, found in taken.items() if found is not None}
            if taken or not joint.exists():
                self._write_joint(joint, certificates)
            if taken:
                note(
                    f"{', '.join(taken)} has the model."
                    if len(taken) == 1
                    else f"{', '.join(taken)} have it."
                )
            if len(heard) == len(self._study.names) or time.monotonic() >= end:
                return heard
            time.sleep(_POLL)

    def _tell_refusals(self, refused: Mapping[str, str]) -> None:
        """Say once for each party and reason that it refuses."""
        for name, why in refused.items():
            if (name, why) not in self._said:
                self._said.add((name, why))
                note(f"{name} refuses: {why}")

    def _write_joint(self, path: Path, certificates: Mapping[str, Any]) -> None:
        from discreet.parties.joint import JointCertificate

        made = JointCertificate(self._study, self._kit.roster, self.coordinator.ending.model, certificates)
        with whole_file(path) as file:
            file.write(made.signed(self._kit.signing_key()).to_json() + "\n")

    def _present(self) -> list[str]:
        return [name for name in self._study.names if self._transport.connected(name)]

    def _await(self, needed: int) -> None:
        """Wait until so many parties are on the line, and say who has come."""
        end, told = time.monotonic() + self._patience, None
        while True:
            present = self._present()
            missing = ", ".join(name for name in self._study.names if name not in present) or "nobody"
            if present != told:
                note(f"joined: {', '.join(present) or 'nobody'}; missing: {missing}.")
                told = present
            if len(present) >= needed:
                return
            if time.monotonic() > end:
                raise StudyStopped(f"{missing} did not join within {self._patience:g} seconds.")
            time.sleep(_POLL)

    @contextmanager
    def _progress_bar(self) -> Iterator[Any]:
        """A bar with round, time left, epsilon so far against the strongest observer, and who is missing."""
        from discreet.parties import Progress
        from discreet.parties.party_plan import PartyPlan

        terms = max(
            (PartyPlan(self._study, name) for name in self._study.names),
            key=lambda terms: terms.budget.epsilon,
        )
        with progress("{task.fields[round]}", "{task.fields[spent]}", "{task.fields[missing]}") as bar:
            task = bar.add_task(self._study.name, total=self._study.updates, round="", spent="", missing="")
            spent, tenths, stages = EpsilonSoFar(terms), Tenths(self._study.updates), _Stages()

            def tell(now: Progress) -> None:
                self._tell_refusals({name: now.refused[name] for name in now.missing if name in now.refused})
                if self._page is not None:
                    self._page.tell(now)
                if bar.disable:
                    absent = f"; {_absent(now)}" if now.missing else ""
                    if now.stage:
                        stages.at(now.stage, f"question {now.update}, stage {now.stage}{absent}.")
                    else:
                        tenths.at(now.update, f"round {now.update} of {now.updates}{absent}.")
                    return
                if now.stage:
                    missing = _absent(now) if now.missing else "all there"
                    bar.update(task, completed=now.update, round=f"question {now.update}", missing=missing)
                    bar.update(task, spent=now.stage)
                    return
                if now.update % max(1, now.updates // 200):
                    return
                bar.update(
                    task,
                    completed=now.update,
                    round=f"{now.update}/{now.updates}",
                    spent=spent.at(now.update / now.updates),
                    missing=_absent(now) if now.missing else "all there",
                )

            yield tell


class _Stages:
    """Says something once for each stage."""

    def __init__(self) -> None:
        self._last = ""

    def at(self, stage: str, text: str) -> None:
        """Tell of a stage when it begins."""
        name = stage.partition(",")[0]
        if name != self._last:
            self._last = name
            note(text)


def _absent(now: Any) -> str:
    """The parties without an answer, those that refuse marked."""
    names = (f"{name} (refuses)" if name in now.refused else name for name in now.missing)
    return f"missing: {', '.join(names)}"
