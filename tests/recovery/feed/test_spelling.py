"""Messages as JSON and as text: the published examples, round trips, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.feed import FeedError, Message, Progress, Rule, Update, Updates
from recovery.feed.avro import REFERENCES
from recovery.feed.spelling import (
    from_json,
    from_line,
    from_text,
    to_json,
    to_line,
    to_text,
)
from tests.given.feeds import in_a_container, json_values, longs, progresses

PUBLISHED = """
update (record0, time0, +2)
update (record1, time0, +1)
update (record2, time0, +1)
progress (time0, 3)
update (record1, time1, -1)
update (record2, time1, +1)
progress (time1, 2)
update (record0, time2, -1)
update (record2, time2, -1)
progress (time2, 2)
progress (time3, 0)
""".strip().splitlines()


def test_the_published_example_can_be_pasted_in() -> None:
    messages = [from_text(line) for line in PUBLISHED]
    assert messages[0] == Updates((Update("record0", 0, 2),))
    assert messages[3] == Progress((0,), (1,), ((0, 3),))
    assert messages[-1] == Progress((3,), (4,), ())
    assert [line for each in messages for line in to_text(each)] == PUBLISHED


def test_the_objects_of_the_specification_are_read_and_written() -> None:
    update = '{"array":[{"data":{"blob":"o/1","object":"o"},"time":7,"diff":1}]}'
    progress = '{"com.materialize.cdc.progress":{"lower":[7],"upper":[8],"counts":[{"time":7,"count":1}]}}'
    assert from_line(update) == Updates((Update({"object": "o", "blob": "o/1"}, 7, 1),))
    assert from_line(progress) == Progress((7,), (8,), ((7, 1),))
    assert [to_line(from_line(each)) for each in (update, progress)] == [update, progress]


@settings(max_examples=60)
@given(st.one_of(st.lists(st.builds(Update, json_values, longs, longs), max_size=3).map(tuple).map(Updates), progresses))
def test_a_message_comes_back_from_json_and_from_text(message: Message) -> None:
    assert from_json(to_json(message)) == message
    assert from_line(to_line(message)) == message
    assert to_line(from_json(json.loads(json.dumps(to_json(message))))) == to_line(message)
    back = [from_text(line) for line in to_text(message)]
    if isinstance(message, Updates):  # each update becomes a message of its own
        assert [each for found in back if isinstance(found, Updates) for each in found.updates] == list(message.updates)
    else:
        assert back == [message]


references = st.fixed_dictionaries({"object": st.text(max_size=5), "blob": st.text(max_size=5)})


@settings(max_examples=60)
@given(st.one_of(st.lists(st.builds(Update, references, longs, longs), max_size=3).map(tuple).map(Updates), progresses))
def test_a_message_comes_back_from_avro(message: Message) -> None:
    assert in_a_container(message, REFERENCES) == message


@pytest.mark.parametrize(("line", "rule"), [
    ("", Rule.FORM), ("{", Rule.FORM), ("[]", Rule.FORM), ("{}", Rule.FORM),
    ('{"array":[],"more":1}', Rule.FORM), ('{"other":[]}', Rule.FORM),
    ('{"updates":[]}', Rule.FORM),
    ('{"array":{}}', Rule.FORM), ('{"array":[1]}', Rule.FORM), ('{"array":[{"data":1,"time":0}]}', Rule.FORM),
    ('{"array":[{"data":1,"time":0,"diff":1,"more":1}]}', Rule.FORM), ('{"array":[{"data":1,"time":"0","diff":1}]}', Rule.VALUE),
    ('{"array":[{"data":1,"time":0,"diff":true}]}', Rule.VALUE), ('{"array":[{"data":1,"time":0,"diff":1.0}]}', Rule.VALUE),
    ('{"array":[{"data":NaN,"time":0,"diff":1}]}', Rule.FORM), ('{"array":[{"data":1,"time":0,"time":1,"diff":1}]}', Rule.FORM),
    ('{"array":[{"data":1,"time":9223372036854775808,"diff":1}]}', Rule.VALUE), ('{"array":[' + "[" * 100_000, Rule.FORM),
    ('{"array":[{"data":' + "9" * 5000 + ',"time":0,"diff":1}]}', Rule.FORM), ('{"com.materialize.cdc.progress":[]}', Rule.FORM),
    ('{"com.materialize.cdc.progress":{"lower":0,"upper":[1],"counts":[]}}', Rule.FORM),
    ('{"com.materialize.cdc.progress":{"lower":[0],"upper":[1,2],"counts":[]}}', Rule.VALUE),
    ('{"com.materialize.cdc.progress":{"lower":[0],"upper":[1],"counts":[[0,1]]}}', Rule.FORM),
    ('{"com.materialize.cdc.progress":{"lower":[null],"upper":[1],"counts":[]}}', Rule.VALUE),
    ('{"array":[{"data":"\\ud800","time":0,"diff":1}]}', Rule.VALUE),
])  # fmt: skip
def test_json_that_is_no_message_is_refused(line: str, rule: Rule) -> None:
    with pytest.raises(FeedError) as raised:
        from_line(line)
    assert raised.value.rule is rule
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("line", [
    "", "update", "update (record0, time0)", "update (record0, 0, +1)", "update (record0, time0, 1)", "update (re cord, time0, +1)",
    "progress (time0)", "progress (time0, three)", "progress (time0 to time1; time0: 1)",
    "update (record0, time9223372036854775808, +1)",
    "update (record0, time" + "9" * 5000 + ", +1)", "progress (time9223372036854775807, 1)", "delete (record0, time0, +1)",
    "update (, time0, +1)", "update (record\u0660, time\u0660, +1)",
])  # fmt: skip
def test_text_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(FeedError) as raised:
        from_text(line)
    assert len(str(raised.value)) < 1000


def test_text_writes_a_record_that_is_no_word_as_json() -> None:
    for data, text in [("a b", '"a b"'), ("true", '"true"'), ("7", '"7"'), (True, "true"), ({"a": ", time1, +1)"}, '{"a":", time1, +1)"}')]:
        (line,) = to_text(Updates((Update(data, 0, 1),)))
        assert line == f"update ({text}, time0, +1)"
        assert from_text(line) == Updates((Update(data, 0, 1),))
