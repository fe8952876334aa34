"""Which Java is taken, and what is said where there is none. The Javas are scripts, but for the wheel's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing
from recovery.audit.running import java
from recovery.audit.running.java import WHEEL, Java, find_java
from tests.given.java import plant


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java at all, but what a script needs. The answer: where to plant some."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", f"{tmp_path / 'on-path' / 'bin'}:{tmp_path / 'tools'}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    return tmp_path


def test_java_home_comes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(plant(bare / "home", "21")))
    plant(bare / "on-path", "17")
    assert find_java() == Java(bare / "home", 21, "JAVA_HOME")


def test_java_on_the_path_is_asked_where_its_home_is(bare: Path) -> None:
    plant(bare / "jdk", "17")
    (bare / "on-path" / "bin").mkdir(parents=True)
    (bare / "on-path" / "bin" / "java").write_text(f"#!/bin/sh\nexec {bare}/jdk/bin/java \"$@\"\n")
    (bare / "on-path" / "bin" / "java").chmod(0o755)
    assert find_java() == Java(bare / "jdk", 17, "PATH")


@pytest.mark.parametrize("specification", ["1.8", "11", "16", None])
def test_an_old_or_broken_java_home_does_not_hide_a_new_java(
    bare: Path, monkeypatch: pytest.MonkeyPatch, specification: str | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(plant(bare / "home", specification)))
    plant(bare / "on-path", "17")
    assert find_java().origin == "PATH"


@pytest.mark.parametrize(("specification", "version"), [("1.8", 8), ("16", 16)])
def test_a_java_that_is_too_old_is_named_with_what_to_install(bare: Path, specification: str, version: int) -> None:
    plant(bare / "on-path", specification)
    with pytest.raises(ConfigurationError) as told:
        find_java()
    assert str(told.value) == (
        f"Spark needs Java 17 or newer, and the one of PATH, {bare / 'on-path'}, is version {version}: "
        f"install one, or {installing('java')}, or audit with --engine local"
    )


@pytest.mark.parametrize(("script", "told"), [
    ("echo 'Picked up JAVA_TOOL_OPTIONS: -XX:Foo' >&2\necho Unrecognized VM option Foo >&2\nexit 1", "Unrecognized VM option Foo"),
    ("exit 3", "it ends with 3"),
    ("sleep 9", "it does not answer within 0.2 s"),
])  # fmt: skip
def test_a_java_that_does_not_start_is_told_with_what_it_said(
    bare: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    monkeypatch.setattr(java, "ANSWER_S", 0.2 if "sleep" in script else 30.0)
    executable = plant(bare / "on-path", None) / "bin" / "java"
    executable.write_text(f"#!/bin/sh\n{script.replace('sleep', '/bin/sleep')}\n")
    with pytest.raises(ConfigurationError) as raised:
        find_java()
    assert str(raised.value) == (
        f"Spark needs Java 17 or newer, and the one of PATH, {executable}, does not start: {told}: "
        f"install one, or {installing('java')}, or audit with --engine local"
    )


def test_no_java_at_all_is_one_sentence_with_what_to_install(bare: Path) -> None:
    with pytest.raises(ConfigurationError) as told:
        find_java()
    assert str(told.value) == (
        "Spark needs Java 17 or newer, and there is none, neither by JAVA_HOME nor on the PATH: "
        f"install one, or {installing('java')}, or audit with --engine local"
    )


def test_a_java_home_that_is_not_there_counts_as_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "gone"))
    with pytest.raises(ConfigurationError, match="there is none"):
        find_java()


def test_the_wheel_is_the_last_resort_and_runs_without_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    assert found.origin == WHEEL
    assert found.version >= 17

    asked = ["--add-modules=jdk.incubator.vector", "-Dtold=a b'c", "-XshowSettings:properties", "-version"]
    refused, done = (
        subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, timeout=60, check=False)
        for home in (found.home, found.home_in(tmp_path / "scratch of it"))
    )  # fmt: skip
    assert refused.returncode != 0, "the script is not needed any more"
    assert done.returncode == 0
    assert "told = a b'c" in done.stderr


def test_a_java_of_the_machine_needs_no_script(tmp_path: Path) -> None:
    assert Java(tmp_path / "jdk", 17, "PATH").home_in(tmp_path / "scratch") == tmp_path / "jdk"
    assert not (tmp_path / "scratch").exists()
