"""``discreet study``: what several parties agree on, and the kits with which they meet."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from discreet.cli.refusals import UNVOUCHED
from discreet.cli.shell import FILE, NUMBER, CommandResult, group, refuse_existing, table
from discreet.cli.study_file import evaluation_text, named_values, study_text
from discreet.cli.watching import may_be_asked, tokens_in_words
from discreet.errors import CertificateRejected
from discreet.files import whole_file
from discreet.guarantee import upper_text
from discreet.linear.schema import TASKS


@group("study")
def study() -> None:
    """Prepare a study of several parties and the kits with which they join.

    \b
    1. discreet study new ...       write study.toml together; it contains public numbers only
    2. discreet study check ...     each party reads what each observer could learn; `approve` signs it
    3. discreet study kits ...      the coordinator creates one kit for each party
    4. discreet coordinate ...      the coordinator starts
    5. discreet join ...            every party joins with its own table
    6. discreet study evaluate ...  evaluate the model on all parties' test records, in a study of one round
    """


@study.command("new")
@click.argument("name")
@click.option(
    "--party",
    "parties",
    multiple=True,
    required=True,
    metavar="NAME=RECORDS",
    help="Name and number of records of a party. Repeatable.",
)
@click.option(
    "--schema", "schema_file", type=FILE, required=True, help="Schema that all parties' tables follow."
)
@click.option("--target", help="The column to predict, if the schema does not name it.")
@click.option("--epsilon", type=NUMBER, required=True)
@click.option(
    "--delta",
    type=NUMBER,
    default=1e-6,
    show_default=True,
    help="Should be well below 1 / number of records.",
)
@click.option(
    "--algorithm",
    type=click.Choice(["recipe", "sgd2"]),
    help="The fit of one table, or descent with agreed settings. Default: recipe, or sgd2 with its options.",
)
@click.option(
    "--model",
    "family",
    type=click.Choice(["auto", "linear"]),
    help="Recipe: curves where records and budget carry them, or lines. Default: auto.",
)
@click.option(
    "--inference",
    is_flag=True,
    help="Recipe, with --model linear: standard errors, for a share of the budget.",
)
@click.option("--task", type=click.Choice(TASKS), help="Recipe: by default what the target's column is.")
@click.option("--rounds", type=NUMBER, help="SGD2. Default: computed from records and noise.")
@click.option("--clip-norm", type=NUMBER, help="SGD2. Default: 1.")
@click.option("--learning-rate", type=NUMBER, help="SGD2. Default: computed from records, rounds and noise.")
@click.option(
    "--secure", is_flag=True, help="Secure aggregation: the coordinator sees only the sum over all parties."
)
@click.option(
    "--robust",
    is_flag=True,
    help="SGD2: aggregate by the geometric median, which is robust to Byzantine parties.",
)
@click.option(
    "--dropouts",
    type=NUMBER,
    help="Number of parties that may be missing at a time; `study check` shows the cost.",
)
@click.option(
    "--persons-across-parties",
    "across",
    type=NUMBER,
    help="SGD2, with a [unit] in the schema: so many parties may know one person, who is protected against all.",
)
@click.option("--party-bound", type=NUMBER, help="SGD2: clip each party's sum to this many clip norms.")
@click.option(
    "--coordinator", default="localhost:8443", show_default=True, help="host:port of the coordinator."
)
@click.option("--out", type=FILE, default="study.toml", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def new(out: Path, overwrite: bool, **settings: Any) -> CommandResult:
    """Write a study file for a model over the columns of a schema.

    \b
    discreet study new readmission --party hospital-a=1200 --party hospital-b=800 \\
        --schema schema.toml --target readmitted --epsilon 1

    The model is the one that `discreet fit` would give for all tables together, with more noise where sums are plain
    or parties may be missing. You may edit the file. All parties must use the same final version.
    """
    from discreet.parties.observation.observers import price_of_dropouts
    from discreet.parties.study import Study

    refuse_existing("out", out, overwrite)
    text = study_text(**settings)
    made = Study.from_toml(text)
    prices = price_of_dropouts(made)
    with whole_file(out) as file:
        file.write(text)
    return CommandResult(
        {"out": out, "digest": made.digest(), "dropouts": prices},
        f"{out} is written, study {made.digest()[:12]}. Read it, then: discreet study check {out}"
        f"{_prices_in_words(made, prices)}",
    )


@study.command("evaluate", renamed={"model": "MODEL"})
@click.argument("model", metavar="MODEL", type=FILE)
@click.option(
    "--epsilon", type=NUMBER, required=True, help="The epsilon that this evaluation may cost each party."
)
@click.option("--delta", type=NUMBER, help="Default: the delta of the study.")
@click.option("--by", multiple=True, help="Report rates per group of this category or flag. Repeatable.")
@click.option(
    "--party",
    "parties",
    multiple=True,
    metavar="NAME=RECORDS",
    help="Largest number of test records of each party. Default: those of the study.",
)
@click.option(
    "--secure", is_flag=True, help="Secure aggregation: the coordinator sees only the sum over all parties."
)
@click.option("--coordinator", help="host:port of the coordinator. Default: the one of the study.")
@click.option("--name", help="Default: the name of the study, followed by -evaluation.")
@click.option("--out", type=FILE, default="evaluation.toml", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def evaluate(model: Path, out: Path, overwrite: bool, **settings: Any) -> CommandResult:
    """Write a study that evaluates the joint model in the folder MODEL on the parties' test records.

    \b
    discreet study evaluate readmission --epsilon 0.5 --by ward

    It is a study of one round, with the same commands: `study check`, `study kits`, `coordinate` and `join`. Each
    party adds noise to its own counts of (label, score, group) and charges its own ledger. From the sum, each
    site computes AUC, accuracy, log loss, calibration and the rates of each group, all with intervals.
    """
    from discreet.parties.study import Study

    refuse_existing("out", out, overwrite)
    text = evaluation_text(model, **settings)
    made = Study.from_toml(text)
    with whole_file(out) as file:
        file.write(text)
    return CommandResult(
        {"out": out, "digest": made.digest()},
        f"{out} is written, study {made.digest()[:12]}: one noisy histogram of {made.dimension} cells. "
        f"Read it, then: discreet study check {out}",
    )


@study.command("check", renamed={"path": "STUDY"})
@click.argument("study_file", metavar="STUDY", type=FILE)
def check(study_file: Path) -> CommandResult:
    """Show what a study releases and what each observer could learn. Read this before you consent."""
    from discreet.parties.approvals import approvals
    from discreet.parties.observation.observers import observers, price_of_dropouts
    from discreet.parties.party_plan import PartyPlan
    from discreet.parties.study import Study

    loaded = Study.load(study_file)
    approved = approvals(study_file, loaded.digest())
    seen = observers(loaded)
    spends = {name: PartyPlan(loaded, name).budget.epsilon for name in loaded.names}
    prices = price_of_dropouts(loaded)
    data = {
        "study": loaded.to_dict(),
        "digest": loaded.digest(),
        "noise_multiplier": loaded.noise_multiplier,
        "spends": spends,
        "dropouts": prices,
        "approvals": [one.to_dict() for one in approved],
        **seen.to_dict(),
    }
    text = describe(loaded, str(seen), spends) + _prices_in_words(loaded, prices)
    return CommandResult(data, text + _approvals_in_words(approved))


def _approvals_in_words(approved: Any) -> str:
    """List the signers. The keys' owners must confirm that the keys are theirs."""
    lines = [f"  {one.name}, {one.day}, key {one.public_key}" for one in approved]
    return "\n\nApproved by:\n" + ("\n".join(lines) or "  nobody")


@study.command("approve", renamed={"path": "--key"})
@click.argument("study_file", metavar="STUDY", type=FILE)
@click.option(
    "--key", "key_file", type=FILE, required=True, help="Your signing key, from `discreet study key`."
)
@click.option("--name", required=True, help="Your name and role, as others will read them.")
def approve(study_file: Path, key_file: Path, name: str) -> CommandResult:
    """Sign your approval of the study STUDY. Read `discreet study check` first.

    \b
    discreet study approve study.toml --key mine.key --name "A. Lind, data protection, hospital-a"

    The approval is a file in the folder approvals beside STUDY. Send it to the parties, and your public key by
    another channel: `discreet join --approver KEY` counts the approvals by the given keys. A changed study needs
    new approvals.
    """
    from discreet.certificate.signatures import read_signing_key
    from discreet.parties.approvals import Approval
    from discreet.parties.study import Study

    made = Approval.made(Study.load(study_file).digest(), name, read_signing_key(key_file))
    place = made.save(study_file)
    text = f"{made.name} approves of study {made.study}.\n{place}, key {made.public_key}"
    return CommandResult({"approval": place, **made.to_dict()}, text)


def describe(loaded: Any, seen: str, spends: dict[str, float]) -> str:
    """A study in plain words."""

    from discreet.parties.certifying import not_covered

    privacy, how = loaded.privacy, f"with {loaded.aggregation.kind} sums"
    count = f"{loaded.updates} {'rounds' if loaded.algorithm == 'sgd2' else 'tokens'}"
    line = (
        f"{loaded.algorithm.upper()} {how}, {count}, clip norm {loaded.training.clip_norm:g}, noise "
        f"{loaded.noise_multiplier:.4g} times that, {privacy.arithmetic} arithmetic."
    )
    if loaded.algorithm == "recipe":
        line = f"The fit of one table, asked of all parties {how}, {privacy.arithmetic} arithmetic."
        line += may_be_asked(loaded)
    head = [f"Study {loaded.name}, {loaded.digest()}", line, ""]
    lines = [
        f"{name} ({loaded.records_of(name)} {privacy.unit}s) spends epsilon {upper_text(epsilon)} at delta "
        f"{privacy.delta:g} ({privacy.neighbours}) in its own ledger."
        for name, epsilon in spends.items()
    ]
    exclusions = [f"  {text}" for text in not_covered(loaded)]
    return "\n".join([*head, seen + tokens_in_words(loaded), "", *lines, "", "Not covered:", *exclusions])


def _prices_in_words(loaded: Any, prices: dict[int, dict[str, float]]) -> str:
    if len(prices) < 2:
        return ""
    rows = [
        (
            f"{number} missing" + (" (this study)" if number == loaded.dropouts else ""),
            f"{price['noise']:.4g}",
            upper_text(price["epsilon"]),
        )
        for number, price in prices.items()
    ]
    head = ("at a time, at most", "noise of the sum / clip norm", "epsilon for those who see only the model")
    return f"\n\nWhat it costs that parties may be missing ([aggregation] dropouts):\n{table(head, rows)}"


@study.command("kits", renamed={"folder": "--out", "keys": "--public-key", "valid_days": "--days"})
@click.argument("study_file", metavar="STUDY", type=FILE)
@click.option("--out", type=FILE, default="kits", show_default=True, help="A new folder.")
@click.option("--days", type=NUMBER, default=90, show_default=True, help="Validity of the kits in days.")
@click.option(
    "--public-key",
    "public_keys",
    multiple=True,
    metavar="PARTY=KEY",
    help="Public key of a party, from its `discreet study key`. Repeatable.",
)
@click.option(
    "--for",
    "platform",
    type=click.Choice(("systemd", "container", "kubernetes")),
    help="Also write deployment files for each site into OUT/deploy.",
)
def kits(
    study_file: Path, out: Path, days: float, public_keys: tuple[str, ...], platform: str | None
) -> CommandResult:
    """Create one kit for each party and one for the coordinator. Send each over a confidential channel.

    The creator of a party's signing key could answer in its name. With plain sums, this could spoil the model but
    reveals no records; a party that wants to exclude it runs `discreet study key` and sends the public key. With
    secure aggregation all parties must do so, because the creator of the keys could decrypt the messages.
    """
    from discreet.parties.network.kits import make_kits, open_kit
    from discreet.parties.study import Study

    loaded = Study.load(study_file)
    keys = dict(named_values(public_keys, "public_keys", "PARTY=KEY", str))
    paths = make_kits(loaded, out, valid_days=days, keys=keys)  # type: ignore[arg-type]
    kit = open_kit(paths["coordinator"])
    data = {"kits": {name: str(path) for name, path in paths.items()}, "roster": kit.fingerprint}
    data |= {"roster_digest": kit.digest}
    data |= {"digest": loaded.digest(), "expires": kit.expires.isoformat()}
    deployed = _write_deployment(loaded, out / "deploy", platform, own_keys=keys) if platform else []
    data["deploy"] = [str(path) for path in deployed]
    paths |= {path.name: path for path in deployed}
    listed = "\n".join(f"  {path}" for path in paths.values())
    return CommandResult(
        data,
        f"{listed}\nValid until {kit.expires:%d %B %Y}. Roster {kit.fingerprint}: every site shows it on joining; "
        f"compare it by telephone.{_whose_keys([name for name in loaded.names if name not in keys])}",
    )


def _write_deployment(loaded: Any, folder: Path, platform: Any, own_keys: Collection[str]) -> list[Path]:
    """Write the files of every site, one folder each."""
    from discreet.parties.network.deployment import deployment, sites

    written = []
    for site in sites(loaded):
        for name, text in deployment(loaded, site, platform, own_key=site in own_keys).items():
            path = folder / site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(text)
            written.append(path)
    return written


def _whose_keys(made_here: list[str]) -> str:
    """Explain the consequence of signing keys that were made with the kits."""
    if not made_here:
        return ""
    return (
        f"\nThe signing keys of {', '.join(made_here)} were made here: who holds these kits could answer in their "
        "names and spoil the model, but not see anybody's records."
    )


@study.command("key")
@click.argument("path", metavar="FILE", type=FILE)
def key(path: Path) -> CommandResult:
    """Make a signing key in a new FILE that only you can read, and print its public key.

    If the key exists, its public key is printed again. Nothing is overwritten.
    """
    from discreet.certificate.signatures import new_signing_key, public_key_of, read_signing_key

    public = public_key_of(read_signing_key(path) if path.exists() else new_signing_key(path))
    return CommandResult(
        {"key": path, "public_key": public}, f"{public}\nSend this to the coordinator. {path} stays with you."
    )


_COMPARE = "Give the digits of the roster that were on your own screen: --roster"


@study.command("verify")
@click.argument("path", metavar="JOINT", type=FILE)
@click.option(
    "--roster", help="The 32 digits that every site showed on joining, or the roster's whole digest."
)
@click.option("--model", "folder", type=FILE, help="A model's folder; by default the one that JOINT lies in.")
def verify(path: Path, roster: str | None, folder: Path | None) -> CommandResult:
    """Verify the joint certificate JOINT of a study, joint.json in the coordinator's folder.

    \b
    exit status 0  accepted: signed with the keys of this --roster, which every site showed on joining
    exit status 1  rejected: the certificate was altered, or its claims do not follow
    exit status 3  consistent, but not verified: anybody can sign with new keys

    The command recomputes every party's certificate from the study, and checks its signature and the
    coordinator's with the keys in the file. The digits of the roster show that these are the right keys. The
    digest of the model is recomputed from the weights in the folder; each party signed it and saw it on its
    screen.
    """
    from discreet.adapters.joint_evaluation import FILE as SCORES
    from discreet.adapters.joint_study import joint_of
    from discreet.parties.joint import JointCertificate

    joint = JointCertificate.load(path)
    if roster is not None and not joint.has_roster(roster):
        raise CertificateRejected(f"{path} was made with the roster {joint.fingerprint}, not {roster}.")
    found = {name: verification.guarantee for name, verification in joint.verify().items()}
    lines = [f"  {name}: {guarantee}" for name, guarantee in found.items()]
    lines += [f"  {name}: no certificate" for name in joint.missing]
    place = folder or path.parent
    if folder is not None or any((place / name).exists() for name in ("weights.safetensors", SCORES)):
        weights = joint_of(joint.study).insist_on(place, joint.model)
    else:
        weights = "no weights at hand: name the folder of the model with --model"
    vouched = "accepted" if roster is not None else f"consistent; nobody vouches for it. {_COMPARE}"
    given = ", ".join(joint.given) or "none of the parties"
    text = f"{path}: {vouched}\n  the signatures are right; {weights}\n  {given} signed for this model\n"
    text += f"Roster {joint.fingerprint}. Model {joint.model}"
    data = {name: guarantee.epsilon._asdict() for name, guarantee in found.items()}
    return CommandResult(
        {
            "parties": data,
            "missing": joint.missing,
            "roster": joint.fingerprint,
            "roster_digest": joint.roster_digest,
            "model": joint.model,
            "weights": weights,
            "given": joint.given,
            "accepted": roster is not None,
        },
        "\n".join([text, *lines]),
        status=0 if roster is not None else UNVOUCHED,
    )


@study.command("revoke")
@click.argument("folder", metavar="KITS", type=FILE)
@click.argument("party")
def revoke(folder: Path, party: str) -> CommandResult:
    """Exclude a party from now on, even in a running study. KITS is the folder of the coordinator's kit.

    To admit it again, create new kits.
    """
    from discreet.parties.network.kits import revoke as revoke_kit
    from discreet.parties.network.kits import revoked_parties

    revoke_kit(folder, party)
    return CommandResult({"revoked": sorted(revoked_parties(folder))}, f"{party} is refused from now on.")
