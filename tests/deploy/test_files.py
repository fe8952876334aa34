"""What is in `deploy/` is well-formed, fits together, and fits the code. docs/runbook.md has a section for each alert.

Tools that are not on this machine are left out with a reason: promtool, kubectl, systemd-analyze.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from recovery.cli.audit.ending import INTERRUPTED
from tests.given.command_line import assert_accepted
from tests.given.repository import ROOT
from tests.test_prose import anchors
from tiered import Settings, load_settings
from tiered.sinks import SINKS
from tiered.telemetry.metrics import CALLER, CANCELLED, FAILED, OK, OTHER, REFUSED

DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FEED = DEPLOY / "kubernetes-feed"
UNITS = sorted((DEPLOY / "systemd").glob("*.service")) + sorted((DEPLOY / "systemd").glob("*.timer"))
SERVICES = DEPLOY / "systemd" / "services.conf"
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
OF_OTHERS = ("up", "kube_job_failed", "kube_job_status_failed", "kube_cronjob_status_last_successful_time", "kube_cronjob_created")
PORT = 9464

Manifest = dict[str, Any]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def manifests(*kinds: str) -> Iterator[Manifest]:
    for path in KUBERNETES:
        yield from (each for each in yaml.safe_load_all(path.read_text()) if not kinds or each["kind"] in kinds)


def pods() -> Iterator[Manifest]:
    """The specifications of the pods, and last that of the writer of the feed."""
    for each in manifests("Deployment"):
        yield each["spec"]["template"]["spec"]
    for each in manifests("CronJob"):
        yield each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    yield feed_manifests()["Deployment"]["spec"]["template"]["spec"]


def feed_manifests() -> dict[str, Manifest]:
    return {each["kind"]: each for each in yaml.safe_load_all((FEED / "feed.yaml").read_text())}


def one(kind: str, name: str | None = None) -> Manifest:
    [found] = [each for each in manifests(kind) if name in (None, each["metadata"]["name"])]
    return found


def accepted(text: str, tmp_path: Path) -> Settings:
    (tmp_path / "tiered.yaml").write_text(text)
    return load_settings(tmp_path / "tiered.yaml")


# --- Kubernetes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*KUBERNETES, *sorted(FEED.glob("*.yaml"))], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kubernetes_validate  # noqa: PLC0415 it warns of its own imports
    for manifest in yaml.safe_load_all(path.read_text()):
        if manifest["apiVersion"].startswith(("monitoring.coreos.com/", "kustomize.config.k8s.io/")):
            continue  # not Kubernetes' own: another test looks at them
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_a_manifest_with_a_typo_would_be_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kubernetes_validate  # noqa: PLC0415
    wrong = one("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_kustomize_puts_every_manifest_together() -> None:
    rendered = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", DEPLOY / "kubernetes")))
    alone = [each for each in manifests() if each["kind"] not in ("Kustomization", "ServiceMonitor")]
    assert sorted((each["kind"], each["metadata"]["name"]) for each in rendered) == sorted(
        (each["kind"], each["metadata"]["name"]) for each in alone
    )
    assert {each["metadata"]["namespace"] for each in rendered} == {"tiered"}
    images = re.findall(r"image: (\S+)", yaml.safe_dump_all(rendered))
    assert len(images) == 2 and all(re.fullmatch(r"registry\.example\.com/tiered:\d+\.\d+\.\d+", image) for image in images)


def test_kustomize_makes_the_same_for_postgresql_and_s3_without_a_password_in_the_settings(tmp_path: Path) -> None:
    folder = DEPLOY / "kubernetes-postgres-s3"
    [patch] = [each["patch"] for each in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"] if "ConfigMap" in str(each)]
    written = yaml.safe_load(yaml.safe_load(patch)[0]["value"])
    assert "postgres" not in written or "dsn" not in written["postgres"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIERED_POSTGRES__DSN", "postgresql://tiered:secret@db.example.com/tiered?sslmode=verify-full&sslrootcert=system")
        settings = accepted(yaml.safe_dump(written), tmp_path)
    assert (settings.rows_kind, settings.blobs_kind, settings.changelog) == ("postgres", "s3", "postgres")
    rendered = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", folder)))
    secret = {"secretRef": {"name": "postgres-and-s3"}}
    specs = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] == "Deployment"]
    specs += [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in rendered if each["kind"] == "CronJob"]
    assert len(specs) == 2 and all(spec["containers"][0]["envFrom"] == [secret] for spec in specs)
    assert not [each for each in rendered if "iam.gke.io" in str(each)]
    ways_out = [each["spec"]["egress"] for each in rendered if each["kind"] == "NetworkPolicy"]
    assert len(ways_out) == 2 and all({"ports": [{"protocol": "TCP", "port": 5432}]} in each for each in ways_out)


def test_the_writer_of_the_feed_is_put_beside_the_rest_with_settings_that_are_accepted(tmp_path: Path) -> None:
    """The settings are those of the cluster, with a feed. Nothing else of the rest is changed."""
    plain = yaml.safe_load(one("ConfigMap")["data"]["tiered.yaml"])
    [patch] = yaml.safe_load((FEED / "kustomization.yaml").read_text())["patches"]
    [operation] = yaml.safe_load(patch["patch"])
    name = one("ConfigMap")["metadata"]["name"]
    assert operation["path"] == "/data/tiered.yaml" and patch["target"] == {"kind": "ConfigMap", "name": name}
    text = operation["value"]
    assert {**yaml.safe_load(text), "feed": None} == {**plain, "feed": None}
    settings = accepted(text, tmp_path)
    assert settings.feed.enabled and settings.feed.to == ("gs://my-feed/live",)
    found = feed_manifests()
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["feed", "run"] and found["Deployment"]["spec"]["replicas"] == 2
    wanted = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert wanted == found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]


def test_kustomize_puts_the_writer_of_the_feed_beside_the_rest() -> None:
    rendered = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", FEED)))
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    assert {("Deployment", "tiered-feed"), ("Deployment", "tiered-recovery"), ("CronJob", "tiered-audit")} <= names
    assert {each["metadata"]["namespace"] for each in rendered} == {"tiered"}
    [settings] = [each for each in rendered if each["kind"] == "ConfigMap"]
    assert "gs://my-feed/live" in settings["data"]["tiered.yaml"]


def test_the_pods_may_do_next_to_nothing() -> None:
    found = list(pods())
    assert len(found) == 3
    for pod in found:
        [container] = pod["containers"]
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}
        }
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        }
        assert pod["automountServiceAccountToken"] is False
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    accounts = [pod["serviceAccountName"] for pod in found]
    known = [*manifests("ServiceAccount"), feed_manifests()["ServiceAccount"]]
    assert sorted(accounts) == sorted(each["metadata"]["name"] for each in known)


def test_no_variable_of_a_service_is_taken_for_a_setting() -> None:
    """Kubernetes sets NAME_PORT and others for each Service of the namespace. Settings refuse unknown TIERED_ names."""
    assert not any(each["metadata"]["name"].startswith("tiered") for each in manifests("Service"))
    assert all(pod["enableServiceLinks"] is False for pod in pods())


def test_everything_selects_the_daemons_and_finds_their_port() -> None:
    deployment, service, monitor = one("Deployment"), one("Service"), one("ServiceMonitor")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    wanted = deployment["spec"]["selector"]["matchLabels"]
    assert deployment["spec"]["replicas"] == 2 and wanted.items() <= labels.items()
    assert one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == wanted == service["spec"]["selector"]
    assert one("NetworkPolicy", "tiered-recovery")["spec"]["podSelector"]["matchLabels"] == wanted
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "tiered-recovery"
    [port], [served], [endpoint] = container["ports"], service["spec"]["ports"], monitor["spec"]["endpoints"]
    assert port == {"name": "http", "containerPort": PORT} and served["targetPort"] == "http" and endpoint["port"] == served["name"]
    [into] = one("NetworkPolicy", "tiered-recovery")["spec"]["ingress"]
    assert into["ports"] == [{"protocol": "TCP", "port": PORT}]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_the_settings_of_the_cluster_are_accepted(tmp_path: Path) -> None:
    text = one("ConfigMap")["data"]["tiered.yaml"]
    settings = accepted(text, tmp_path)
    assert settings.changelog == "bigtable"
    assert yaml.safe_load(text)["daemon"]["http_port"] == PORT
    grace_s = one("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > settings.recovery.shutdown_budget_s + 10


def test_the_commands_of_the_cluster_exist() -> None:
    for pod in pods():
        arguments = [each.replace("$(JOB_NAME)", "job") for each in pod["containers"][0]["args"]]
        while arguments[0].startswith("-"):
            arguments = arguments[2:]
        assert_accepted(arguments)


# --- what is named -------------------------------------------------------------------------------

TEXTS = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix not in (".json", ".py", ".pyc")]
FILE = re.compile(r"(?<![\w./:*=$)\"-])(?!labels\.)[\w./-]*\w\.(?:yaml|sh|py|md|json|j2|service|timer|toml|txt)\b(?!\s*=)")
MADE = ("./tiered.yaml", "/data/tiered.yaml", "/src/constraints.txt")
"""The user's own, a place within a manifest, and a place within the image."""


SECTIONS = {
    name: each.model_fields for name, field in Settings.model_fields.items()
    for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type) and issubclass(each, BaseModel)
}  # fmt: skip


def installed() -> set[str]:
    """Where the steps for systemd put the files of the checkout."""
    found = {"/etc/systemd/system"}
    for step in re.findall(r"(?m)^# (?:install|cp) (?:-\w+ |\d+ )*(.+)$", (DEPLOY / "README.md").read_text()):
        *sources, place = step.split()
        for source in (path for pattern in sources for path in ROOT.glob(pattern)):
            below = {f"{place}{path.relative_to(source.parent)}" for path in [source, *source.rglob("*")]}
            found |= below if place.endswith("/") else {place}
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_that_is_named_exists_or_is_installed(path: Path) -> None:
    """`prometheusrule.sh` was none, and the units pointed to a page that no step installed."""
    text = path.read_text()
    known = installed() if path.parent.name == "systemd" or path.name == "README.md" else {"/etc/tiered/tiered.yaml"}
    for name in {*FILE.findall(text), *re.findall(r"file:(/\S+)", text)} - {*MADE, *known}:
        bases = () if name.startswith("/") else (path.parent, ROOT, *DEPLOY.iterdir())
        assert any((base / name).exists() for base in bases), name


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_command_and_setting_that_is_named_exists(path: Path) -> None:
    text = path.read_text()
    for line in re.findall(r"`tiered ((?!-)[^`\n]+)`", text):
        assert_accepted(line.split())
    for section, key in re.findall(r"(?<![\w./-])([a-z]+)\.(?!yaml)([a-z_]+)\b(?![./(])", text):
        assert section not in SECTIONS or key in SECTIONS[section], f"{section}.{key}"
    for name in re.findall(r"\bTIERED_([A-Z_]+)\b(?!_PORT)", text):
        section, _, key = name.lower().partition("__")
        assert name in ("SOMETHING_PORT", "CONFIG") or key in SECTIONS.get(section, ()) or section in Settings.model_fields, name


# --- the image -----------------------------------------------------------------------------------


def instructions(stage: int) -> list[tuple[str, str]]:
    """The instructions of one stage of the Dockerfile: name and the rest, on one line."""
    lines = "\n".join(line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    found = [tuple(line.split(maxsplit=1)) for line in re.sub(r"\s*\\\n\s*", " ", lines).splitlines() if line]
    starts = [number for number, (name, _) in enumerate(found) if name == "FROM"] + [len(found)]
    return found[starts[stage] : starts[stage + 1]]  # type: ignore[return-value]


def test_the_image_is_built_from_what_is_there() -> None:
    copied = [path for name, rest in instructions(0) if name == "COPY" for path in rest.split()[:-1]]
    sent = [line.removeprefix("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied) == sorted(sent) and all((ROOT / path).exists() for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hatch = project["tool"]["hatch"]
    readme = {each["path"] for each in hatch["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]}
    assert readme and set(hatch["build"]["targets"]["wheel"]["packages"]) | readme <= set(copied)
    assert re.findall(r"\[([a-z0-9,]+)\]\"", (DEPLOY / "Dockerfile").read_text()) == ["image"]
    [brought] = project["project"]["optional-dependencies"]["image"]
    extras = set(re.fullmatch(r"tiered\[(.+)\]", brought)[1].split(","))  # type: ignore[index]
    assert extras == {"daemon", "gcp", "postgres", "s3", "audit", "feed", "kafka", "zstd"} | {kind.extra for kind in SINKS if kind.extra}
    assert extras <= set(project["project"]["optional-dependencies"])


def test_the_image_has_a_pinned_base_no_root_and_a_health_check() -> None:
    bases = [rest.split()[0] for stage in (0, 1) for name, rest in instructions(stage) if name == "FROM"]
    assert len(set(bases)) == 1 and re.fullmatch(r"python:3\.11-slim-[a-z]+", bases[0])
    last = dict(instructions(1))
    assert last["USER"] == "65532:65532" and last["EXPOSE"] == str(PORT)
    assert f"http://127.0.0.1:{PORT}/healthz" in last["HEALTHCHECK"] and f"TIERED_DAEMON__HTTP_PORT={PORT}" in last["ENV"]
    assert json.loads(last["ENTRYPOINT"]) == ["tiered"] and json.loads(last["CMD"]) == ["recover"]
    assert list(dict(instructions(1))).index("USER") < list(dict(instructions(1))).index("ENTRYPOINT")


# --- systemd -------------------------------------------------------------------------------------


def systemd_analyze() -> str:
    """Debian's package systemd has it. `.ci/run` installs that, so where CI is set, nothing is skipped."""
    found = shutil.which("systemd-analyze")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("systemd-analyze is not installed: apt-get install systemd")
    return found


def put_units(directory: Path, dropped_in: str | None) -> None:
    """The units, with a drop-in for all of them: where there are no such user and no such command."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/tiered/bin/tiered", "/bin/true")
        (directory / unit.name).write_text(re.sub(r"(?m)^(User|Group)=.*\n", "", text))
    if dropped_in is not None:
        (directory / "tiered-.service.d").mkdir()
        (directory / "tiered-.service.d/services.conf").write_text(dropped_in)


@pytest.mark.parametrize("dropped_in", [None, SERVICES.read_text()], ids=["embedded", "services"])
def test_systemd_accepts_the_units_and_they_may_do_little(tmp_path: Path, dropped_in: str | None) -> None:
    put_units(tmp_path, dropped_in)
    said = run(systemd_analyze(), "verify", *[f"./{unit.name}" for unit in UNITS], cwd=tmp_path)
    assert said == ""
    services = [unit for unit in UNITS if unit.suffix == ".service"]
    assert len(services) == 4
    for unit in services:
        shutil.copy(unit, tmp_path)
        rated = ("security", "--offline=true", "--threshold=20", "--json=short", f"./{unit.name}")
        [reach] = [each for each in json.loads(run(systemd_analyze(), *rated, cwd=tmp_path)) if each["json_field"] == "IPAddressDeny"]
        assert ("localhost" in reach["description"]) is (dropped_in is None), "a store in services is out of reach of its own machine"


def test_a_typo_in_what_is_dropped_in_would_be_found(tmp_path: Path) -> None:
    put_units(tmp_path, SERVICES.read_text().replace("IPAddressDeny", "IPAdressDeny"))
    assert "IPAdressDeny" in run(systemd_analyze(), "verify", "./tiered-recover.service", cwd=tmp_path)


def test_what_the_units_say_of_their_ends_is_so() -> None:
    """Of what SIGTERM kills, systemd says: a daemon ended well, and a pass did not. A stopped audit ends with 130."""
    ends = {unit.stem: re.findall(r"(?m)^SuccessExitStatus=(.*)$", unit.read_text()) for unit in UNITS if unit.suffix == ".service"}
    kinds = {unit.stem: re.findall(r"(?m)^Type=(.*)$", unit.read_text()) for unit in UNITS if unit.suffix == ".service"}
    assert ends == {"tiered-audit": [str(INTERRUPTED)], "tiered-feed": [], "tiered-recover": [], "tiered-recover-once": ["SIGTERM"]}
    assert {name for name, kind in kinds.items() if kind == ["oneshot"]} == {"tiered-audit", "tiered-recover-once"}


def test_each_unit_runs_a_command_that_exists_and_each_timer_a_unit(tmp_path: Path) -> None:
    for unit in UNITS:
        if unit.suffix == ".timer":
            assert unit.with_suffix(".service").exists()
            continue
        [command] = re.findall(r"(?m)^ExecStart=/opt/tiered/bin/tiered --config /etc/tiered/tiered\.yaml (.*)$", unit.read_text())
        assert_accepted(command.split())
    settings = accepted((DEPLOY / "systemd/tiered.yaml").read_text(), tmp_path)
    assert settings.directory == Path("/var/lib/tiered/store")  # below StateDirectory=tiered, which the units may write to
    services = accepted((DEPLOY / "systemd/tiered-services.yaml").read_text(), tmp_path)
    assert (services.rows_kind, services.blobs_kind, services.changelog) == ("postgres", "s3", "postgres")
    assert services.daemon == settings.daemon, "the pages and the rules know one port"


# --- Prometheus and Grafana ----------------------------------------------------------------------


@pytest.mark.night
def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    promtool = tool("promtool")
    run(promtool, "check", "rules", DEPLOY / "prometheus/rules.yaml")
    run(promtool, "check", "config", DEPLOY / "prometheus/scrape.yaml")
    run(promtool, "test", "rules", DEPLOY / "prometheus/rules_test.yaml", DEPLOY / "prometheus/rules_days_test.yaml")


def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool")
    rules = [{"record": f"query:{number}", "expr": _filled_in(query)} for number, query in enumerate(queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(promtool, "check", "rules", tmp_path / "rules.yaml")


def test_every_alert_is_tested() -> None:
    tested = yaml.safe_load((DEPLOY / "prometheus/rules_test.yaml").read_text())["tests"][0]["alert_rule_test"]
    assert sorted(each["alertname"] for each in tested) == sorted(rule["alert"] for rule in ALERTS)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_leads_to_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == "docs/runbook.md" and anchor == rule["alert"].lower() and anchor in anchors(ROOT / page)
    section = (ROOT / page).read_text().split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
    for part in ("**It means**", "**Look at**", "**Type**"):
        assert part in section, f"{rule['alert']} does not say {part}"
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert ("**Wake someone**: yes" in section) is (rule["labels"]["severity"] == "page")


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    headings = re.findall(r"(?m)^## (Tiered\w+)$", (ROOT / "docs/runbook.md").read_text())
    assert headings == [rule["alert"] for rule in ALERTS]


def test_the_rules_as_an_object_of_the_operator_are_the_same_rules() -> None:
    printed = yaml.safe_load(run("sh", DEPLOY / "prometheus/as_prometheusrule.sh"))
    assert printed["kind"] == "PrometheusRule" and printed["spec"] == RULES


def queries() -> list[str]:
    panels = json.loads((DEPLOY / "grafana/tiered.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def _filled_in(query: str) -> str:
    return re.sub(r"\$\w+", ".*", query)


def names(expression: str) -> set[str]:
    """The metrics that a query names: what is followed by a selector or a bracket that is no call, or stands alone."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\b(by|on|without|ignoring)\s*\([^)]*\)", " ", expression)
    return {name for name in re.findall(r"\b[a-z_]+\b(?!\s*\()", bare) if name == "up" or name.startswith(("tiered_", "kube_"))}


def _labels_asked_for(expression: str) -> list[tuple[str, str, str]]:
    """Label, how it is compared, and the value, of each selector."""
    return re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', expression)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_no_rule_names_the_errors_that_fail_one_by_one(rule: dict[str, Any]) -> None:
    """A list lacked `ServiceAwayError`, so the pager was silent. What is listed is left out; all else counts."""
    listed = [(label, how, value) for label, how, value in _labels_asked_for(rule["expr"]) if label in ("result", "error", "class")]
    assert [each for each in listed if each[1] == "=~"] == []
    of_one = {value for label, how, value in listed if how == "=" and label != "class"}
    assert of_one <= {"AtCapacityError"}, "an alert about one error alone is about nothing else"
    classes = {value for label, how, named in listed if label == "class" for value in named.split("|")}
    assert classes <= {OK, CALLER, CANCELLED, OTHER, REFUSED, FAILED}


def test_the_names_in_a_query_are_found() -> None:
    query = 'sum by (tiered_x) (rate(tiered_a_total{b="tiered_c"}[5m])) / tiered_d > time() - up'
    assert names(query) == {"tiered_a_total", "tiered_d", "up"}


def test_every_metric_that_is_asked_for_is_documented() -> None:
    asked = set().union(*map(names, [*(rule["expr"] for rule in ALERTS), *queries()]))
    assert len(asked) > 20
    ours = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked if name not in OF_OTHERS}
    documented = set(re.findall(r"\btiered_[a-z_]+\b", (ROOT / "docs/metrics.md").read_text()))
    assert sorted(ours - documented - {f"{name}_total" for name in documented}) == []


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((DEPLOY / "grafana/tiered.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and len({panel["title"] for panel in panels}) == len(panels)
    squares = [
        (x, y) for panel in panels for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(squares)) == len(squares) and max(x for x, _ in squares) < 24, "panels overlap, or are too far to the right"
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) <= variables
    assert all("$job" in query and "$namespace" in query for query in queries())
