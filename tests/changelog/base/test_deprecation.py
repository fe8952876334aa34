"""What a release deprecates warns whoever uses it."""

from __future__ import annotations

import warnings

import pytest

from changelog.base.deprecation import deprecated


def test_a_program_gets_a_warning_that_names_its_own_line() -> None:
    def put() -> None:
        deprecated("tiered.Store.put", "call store")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        put()
    [warning] = caught
    assert warning.category is DeprecationWarning and warning.filename == __file__
    assert str(warning.message) == "tiered.Store.put is deprecated, and the next release will not have it: call store"


@pytest.mark.parametrize("name", ["setting lease.expiry_s", "command tiered ls --limit"])
def test_an_operator_gets_a_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    deprecated(name, "use another")
    [record] = caplog.records
    assert (record.levelname, record.__dict__["event"], record.__dict__["fields"]) == ("WARNING", "deprecated", {"name": name})
    assert record.__dict__["why"] == "the next release will not have it: use another"
