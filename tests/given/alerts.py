"""Which alerts fire, by the rules that are deployed, over what real processes showed at `/metrics`.

    before, after   what a process showed at two moments; after is None: it could not be reached any more
    firing          the alerts after a day in which all goes on as between the two

promtool evaluates the rules in its own time. A counter grows every two minutes by what it grew between the moments, an
age grows if it did, and so does a time stamp; all else stays. Names, labels and values are those of the process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from emulators.lacking import find_promtool
from tests.given.repository import ROOT

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
DAEMON, SERVICE = "tiered-recovery", "photos"
MINUTES = 23 * 60
STEP_MINUTES, STEPS = 2, MINUTES // 2
SUFFIXES = ("_total", "_count", "_bucket", "_sum")

Sample = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Scraped:
    """`text`: what `/metrics` showed; None: it was not reached. `at`: when, in seconds (Unix)."""

    text: str | None
    at: float

    def samples(self) -> Mapping[Sample, float]:
        asked = "\n".join(line for line in (self.text or "").splitlines() if re.split("[ {]", line, maxsplit=1)[0] in ASKED)
        samples = (each for family in text_string_to_metric_families(f"{asked}\n") for each in family.samples)
        return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}


@dataclass(frozen=True, slots=True)
class Target:
    """What one process showed. `job`: as Prometheus would call it. `others`: series that somebody else tells."""

    job: str
    before: Scraped
    after: Scraped
    others: Mapping[str, float] = field(default_factory=dict)

    def series(self) -> Iterator[dict[str, str]]:
        before, after = self.before.samples(), self.after.samples()
        passed_s = self.after.at - self.before.at
        yield _series(("up", ()), self.job, f"1 {float(self.after.text is not None):g}x{STEPS}")
        for sample, value in {**before, **after}.items():
            name, was = sample[0], before.get(sample)
            if sample not in after:
                yield _series(sample, self.job, f"{value!r} stale")
                continue
            step, first, begins = 0.0, value, ""
            if name.endswith(SUFFIXES):
                step, begins = value - (was or 0.0), "" if was is None else f"{was!r} "
            elif name.endswith("_timestamp_seconds"):
                first, step = value - self.after.at, 60.0 * STEP_MINUTES if was is None or value > was else 0.0
            elif name.endswith("_age_seconds") and was is not None and passed_s > 0:
                step = 60.0 * STEP_MINUTES if value - was > passed_s / 2 else 0.0
            yield _series(sample, self.job, f"{begins}{first!r}+{step!r}x{STEPS}")
        for name, told in self.others.items():
            yield {"series": name, "values": f"{told!r}x{STEPS}"}


def _series(sample: Sample, job: str, values: str) -> dict[str, str]:
    labels = {**dict(sample[1]), "job": job, "namespace": "tests", "instance": job}
    return {"series": f"{sample[0]}{{{', '.join(f'{name}={_quoted(value)}' for name, value in labels.items())}}}", "values": values}


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def metrics_of_rules() -> set[str]:
    """Every metric that a rule asks for."""
    bare = [re.sub(r"\{[^}]*\}|\"[^\"]*\"|\b(by|on|unless on)\s*\([^)]*\)", " ", rule["expr"]) for rule in ALERTS]
    return {name for each in bare for name in re.findall(r"\b(?:tiered|kube)_[a-z_]+\b", each)}


ASKED = metrics_of_rules()


def promtool() -> str:
    """Debian's, as `.ci/run` gets it. Where there is none, the test is skipped; where CI is set, it fails."""
    found = find_promtool()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("promtool is not installed")
    return found


def firing(targets: Sequence[Target], directory: Path) -> set[str]:
    """The alerts that fire at any of some moments of the day. `directory`: for promtool's files."""
    tests: dict[str, Any] = {
        "rule_files": [str(RULES)], "evaluation_interval": "1h",
        "tests": [{
            "interval": f"{STEP_MINUTES}m", "input_series": [each for target in targets for each in target.series()],
            "promql_expr_test": [
                {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minutes}m", "exp_samples": [_NONE]}
                for minutes in (120, MINUTES)
            ],
        }],
    }  # fmt: skip
    path = directory / "alerts.yaml"
    path.write_text(json.dumps(tests))  # it is YAML, too
    done = subprocess.run([promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert "got:" in said, said  # what is expected never comes, so it tells what did
    got = [line for line in said.splitlines() if "got:" in line]
    assert len(got) == 2, said
    return set(re.findall(r'alertname="?\\?"?(\w+)', "".join(got)))


_NONE = {"labels": '{alertname="none"}', "value": 1}
