"""Builds are compared byte for byte. Each way in which a build may depend on its surroundings is planted, and found."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from emulators.release.build import build, change_times, differences, members, odd_environment, replace, unpacked
from emulators.release.tools import ToolError, not_as_summed, plain_environment, write_sums

PYTHON = Path(sys.executable)


@pytest.fixture
def first(small: Path, tmp_path: Path) -> Path:
    return build(PYTHON, small, tmp_path / "first", plain_environment())


def test_another_day_umask_zone_and_language_and_the_source_distribution_give_the_same_bytes(
    small: Path, first: Path, tmp_path: Path
) -> None:
    change_times(small)
    odd = odd_environment(plain_environment(), tmp_path / "home")
    second = build(PYTHON, small, tmp_path / "second", odd, umask=0o077)
    third = build(PYTHON, unpacked(first, tmp_path / "source"), tmp_path / "third", plain_environment())
    assert differences(first, second, "elsewhere") == differences(first, third, "from source") == []


def test_a_build_that_heeds_the_times_of_files_is_found(small: Path, tmp_path: Path) -> None:
    text = (small / "pyproject.toml").read_text()
    (small / "pyproject.toml").write_text(text.replace("[tool.hatch.build]", "[tool.hatch.build]\nreproducible = false"))
    first = build(PYTHON, small, tmp_path / "first", plain_environment())
    change_times(small)
    found = differences(first, build(PYTHON, small, tmp_path / "second", plain_environment()), "elsewhere")
    assert len(found) == 2 and all("small/other.py" in sentence for sentence in found)


def test_a_time_that_is_asked_for_is_heeded_so_builds_are_compared_without(
    small: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert differences(first, build(PYTHON, small, tmp_path / "plain", plain_environment()), "elsewhere") == []
    asked = build(PYTHON, small, tmp_path / "asked", plain_environment() | {"SOURCE_DATE_EPOCH": "1700000000"})
    assert len(differences(first, asked, "at another time")) == 2


def test_a_file_that_is_not_the_same_is_named(small: Path, first: Path, tmp_path: Path) -> None:
    (small / "small" / "other.py").write_text("ANSWER = 43\n")
    (small / "small" / "new.py").touch()
    found = differences(first, build(PYTHON, small, tmp_path / "second", plain_environment()), "later")
    assert found == [
        "small-1.2.0-py3-none-any.whl has other bytes when later: small-1.2.0.dist-info/RECORD, small/new.py, small/other.py",
        "small-1.2.0.tar.gz has other bytes when later: small-1.2.0/small/new.py, small-1.2.0/small/other.py",
    ]


def test_bytes_beside_the_members_are_found(small: Path, first: Path, tmp_path: Path) -> None:
    second = build(PYTHON, small, tmp_path / "second", plain_environment())
    [archive], [wheel] = second.glob("*.tar.gz"), second.glob("*.whl")
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()), 1, mtime=0))
    with ZipFile(wheel, "a") as opened:
        opened.comment = b"x"
    assert members(wheel) == members(next(first.glob("*.whl")))
    assert [sentence.partition(": ")[2] for sentence in differences(first, second, "elsewhere")] == [
        "in no member: compression, order, or bytes before or after them"
    ] * 2


def test_a_file_of_one_build_alone_and_two_builds_of_nothing_are_no_agreement(first: Path, tmp_path: Path) -> None:
    (nothing := tmp_path / "nothing").mkdir()
    assert differences(nothing, nothing, "elsewhere") == ["nothing was built"]
    assert len(differences(first, nothing, "elsewhere")) == 2


def test_a_build_that_fails_says_why(small: Path, tmp_path: Path) -> None:
    (small / "pyproject.toml").write_text('[project]\nname = "small"\n')
    with pytest.raises(ToolError, match=r"hatchling build .* ended with 1"):
        build(PYTHON, small, tmp_path / "first", plain_environment())


def test_a_copy_that_fails_half_way_leaves_what_was_built_before(first: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    replace(dist, first)
    assert not_as_summed(dist) == [] and len(list(dist.iterdir())) == 3
    (first / "zz").symlink_to("nowhere")
    with pytest.raises(OSError, match=r"nowhere|zz"):
        replace(dist, first)
    assert not_as_summed(dist) == [] and len(list(dist.iterdir())) == 3


def test_sums_tell_what_was_changed_added_or_taken(first: Path) -> None:
    assert not_as_summed(first) == [f"{first}/SHA256SUMS is missing: run the step build"]
    write_sums(first)
    assert not_as_summed(first) == []
    [archive], [wheel] = first.glob("*.tar.gz"), first.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    archive.rename(first / "renamed")
    assert not_as_summed(first) == [
        f"{first}/renamed is not named in SHA256SUMS", f"{wheel} was changed", f"{archive} is missing",
    ]
