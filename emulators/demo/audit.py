"""The last step of the demo: audit the store that it leaves, after something was planted there for the audit to find.

    plant       three orphans, such as a process leaves that dies without a changelog, and one tombstone without a blob;
                and a sound object
    audit       on Spark; if it is not here or does not start, in processes of its own, and the demo says why. The grace
                is 0, because everything is seconds old and nobody writes any more
    compare     the audit must find what was planted and nothing else, or the demo fails. What was planted is shown as
                that; only a difference is shown as an audit shows what it found
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.demo.staging.stage import DemoStage
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Manifest, ManifestTally
from recovery.audit.reporting.run_verdict import PRICE_DEFAULT
from recovery.audit.running.jobs import AuditOptions, Engine
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.open import Backends, open_backends
from tiered.services.backends import Tombstone
from tiered.settings import Settings, load_settings

ORPHANS, ORPHAN_BYTES = 3, 300_000
EXPECTED = {
    FindingClass.ORPHAN: ManifestTally(number=ORPHANS, size=ORPHANS * ORPHAN_BYTES),
    FindingClass.DANGLING: ManifestTally(number=1, size=0),
}
SHOWN = {FindingClass.ORPHAN: "blobs that no row names", FindingClass.DANGLING: "a row whose blob is gone"}
SWAP_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit's result. `directory` holds its files.

    `flaws`: a sentence for each doubt, and for each difference between what was planted and what was found.
    """

    manifest: Manifest
    directory: Path
    flaws: tuple[str, ...]

    def shown(self) -> dict[str, Any]:
        totals = {class_.value: counted.number for class_, counted in self.manifest.totals.items()}
        return {"engine": self.manifest.engine, "totals": totals, "report": str(self.directory / "report.html")}


def run_demo_audit(stage: DemoStage, said: Console) -> Audited:
    """Plants, audits and compares. The audit's files are in the directory of the run.

    Raises `TieredError` if no audit can be made.
    """
    from recovery.cli.audit.output import show_summary

    settings = load_settings(stage.config)
    (where := stage.root / "audit").mkdir()
    said.print(f"\nAn audit reads it all again. Damage is planted first, for it to find: {ORPHANS} orphans and a dangling row.")
    anyio.run(_plant, settings)
    with _open_engine(said) as engine:
        said.print(f"On {engine.name} …")
        manifest = anyio.run(_audit, settings, where, engine)
    found = {class_: counted for class_, counted in manifest.totals.items() if class_ in FINDINGS}
    none = ManifestTally()
    flaws = [
        f"the audit found {found.get(class_, none).number} times {class_}, and {EXPECTED.get(class_, none).number} were planted"
        for class_ in sorted({*found, *EXPECTED})
        if found.get(class_) != EXPECTED.get(class_)
    ]
    wrong = (*manifest.doubts, *flaws)
    if wrong:
        show_summary(said, manifest, str(where), PRICE_DEFAULT)
    else:
        for class_, planted in EXPECTED.items():
            said.print(f"{class_:<12}{found[class_].number:>8,}   of {planted.number} that were planted: {SHOWN[class_]}")
        said.print(f"{'others':<12}{0:>8,}   findings besides, among {manifest.names:,} blobs")
    return Audited(manifest, where, wrong)


async def _plant(settings: Settings) -> None:
    async with open_backends(settings, SystemRuntime()) as backends:
        for number in range(ORPHANS):
            await _plant_blob(backends, *_change(f"planted/orphan-{number}"))
        await _plant_row(backends, *_change("planted/dangling"))
        # A short run on a busy machine may leave no object. An audit would take that for the wrong table, and doubt.
        sound = _change("planted/sound")
        await _plant_blob(backends, *sound)
        await _plant_row(backends, *sound)


def _change(key: str) -> tuple[str, ChangeId]:
    return ObjectId.create("demo", key).path, ChangeId.new(SystemRuntime())


async def _plant_blob(backends: Backends, path: str, token: ChangeId) -> None:
    upload = await backends.tiers.long_term.open_upload(blob_name(path, token), Metadata(), ORPHAN_BYTES)
    await upload.write(bytes(ORPHAN_BYTES))
    await upload.finalise()


async def _plant_row(backends: Backends, path: str, token: ChangeId) -> None:
    tombstone = Tombstone(blob_name(path, token), token=token)
    await backends.tiers.high_volume.swap(path, token, None, tombstone, SystemRuntime().boot_time() + SWAP_DEADLINE_S)


@contextmanager
def _open_engine(said: Console) -> Iterator[Engine]:
    from recovery.audit.running.cluster import open_spark
    from recovery.audit.running.jobs import carry_out
    from recovery.audit.running.local import LocalEngine

    try:
        if find_spec("pyspark") is None:
            raise ConfigurationError("pyspark is not installed, which `make setup` brings")
        spark = open_spark(carry_out)
        engine: Engine = spark.__enter__()
    except ConfigurationError as error:
        said.print(f"Without Spark, in processes of its own: {error}.")
        yield LocalEngine()
        return
    try:
        yield engine
    finally:
        spark.__exit__(None, None, None)


async def _audit(settings: Settings, where: Path, engine: Engine) -> Manifest:
    from recovery.audit.running.run import run_audit

    return await run_audit(settings, AuditOptions(str(where), grace_s=0, insist=True), engine, SystemRuntime(), lambda _: None)
