"""Questions of a study as bytes: every kind comes through unchanged, and nothing else is read."""

import hashlib
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import MalformedMessage
from discreet.linear.checked_questions import CATALOGUE, Question, checked_question
from discreet.linear.encoder import SchemaEncoding
from discreet.linear.gate.compiled_sums import ClippedGradient
from discreet.linear.gate.private_table import (
    EncodedRows,
    PersonRows,
    TargetColumn,
    TargetRows,
    UndeclaredColumns,
)
from discreet.linear.gate.records import Scores
from discreet.linear.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from discreet.linear.question_codec import MissingPart, question_digest, row_keys
from discreet.linear.question_codec import decode as decode_bytes
from discreet.linear.question_writer import encode, parts_of
from discreet.linear.row_views.column_views import Ranks, Residual
from discreet.linear.row_views.coordinates import (
    HalfOctaves,
    Marginals,
    Released,
    SmoothCurves,
    Standardised,
    Whitened,
)
from discreet.linear.row_views.curve_bases import Basis, Curve, Pair
from discreet.linear.row_views.targets import ClassOf, Target, TargetBin, TargetMoments
from discreet.linear.schema import Schema
from discreet.trusted.plain_data import digest_of
from discreet.trusted.queries import Blocks, Cells

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"bounds": [0, 100]},
            "pay": {"learn": True},
            "job": {"categories": ["a", "b"]},
            "sick": {"flag": "yes"},
        },
        "target": "sick",
    }
)
LEARNT = SchemaEncoding(SCHEMA.with_bounds({"pay": (0.0, 8.0)}), ("pay",), ("pay",))
LEARNT.missing = np.array([0.25, 0.75])
COLUMNS = LEARNT.columns
FOUR = np.arange(1.0, 5.0)
MARGINALS = Marginals(FOUR, FOUR, FOUR - 9, FOUR + 9, Released(FOUR, FOUR, 1.0))
ROTATION = np.asfortranarray(np.arange(25.0).reshape(5, 5) / 7)
WHITE = Whitened(MARGINALS, ROTATION)
BASIS = Basis(
    COLUMNS,
    (Curve(0, np.array([0.0, 0.5, 1.0]), np.array([1, 2])), Curve(1, np.array([0.0, 1.0]), np.array([1]))),
    (Pair((0, 1), (np.array([0.0, 1.0]), np.array([0.0, 1.0])), np.array([1, 2]), np.zeros(4)),),
)
COUNT = Blocks((Cells(ClassOf(Logistic()), (2,), (1.0,)),), 1.0)
ENCODED = EncodedRows(Logistic(), LEARNT, np.array([0, 2, 3]), (0.0, 1.0), 2, True)


def decode(body, parts, schema):
    """A question as a party accepts it."""
    return checked_question(decode_bytes(body, parts, schema), schema)


def asked(query=COUNT, view=None, fills=None, basis=None, **changes):
    made = Question(3, "counts", 0.25, 4, view or TargetRows(Logistic()), fills, basis, query)
    return made._replace(**changes)


QUERIES = {
    "counts": COUNT,
    "a target": Blocks(
        (Cells(TargetBin(0.0, 1.0, 8), (8,), (1.0,)), Cells(TargetMoments(0.0, 1.0), (1, 1), (0.5, 0.5))), 2.0
    ),
    "a gradient": ClippedGradient(Logistic(), WHITE, Target(), np.zeros(5), 1.0),
    "scores": Blocks(
        (Cells(HalfOctaves(), (57,), (1.0,)),),
        of=Scores(Standardised(MARGINALS, 1.0, True), Target(0.0, 1.0), np.zeros(5)),
    ),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_comes_through_unchanged(query):
    body = encode(asked(query), ())
    found = decode(body, {}, SCHEMA)
    assert found.query.digest == query.digest
    assert found[:4] == asked(query)[:4]
    assert encode(found, ()) == body


@pytest.mark.parametrize(
    "view",
    [
        TargetRows(Softmax(3), 4),
        TargetRows(Squared()),
        TargetColumn(3),
        PersonRows(),
        UndeclaredColumns(1, SCHEMA, 2),
        EncodedRows(Poisson(), LEARNT),
        EncodedRows(Huber(0.5), LEARNT, None, (-1.0, 2.0)),
        ENCODED,
    ],
)
def test_a_view_comes_through_unchanged(view):
    found = decode(encode(asked(view=view), ()), {}, SCHEMA).view
    assert type(found) is type(view)
    for name in ("loss", "bounds", "least", "whole_rows", "columns"):
        assert getattr(found, name, None) == getattr(view, name, None)
    assert digest_of(getattr(found, "seen", None)) == digest_of(getattr(view, "seen", None))


def test_an_encoding_is_rebuilt_from_the_own_schema():
    found = decode(encode(asked(view=ENCODED), ()), {}, SCHEMA).view.encoding
    assert found.schema == LEARNT.schema
    assert found.upper.tolist() == [100.0, 8.0]
    assert found is not LEARNT
    assert found.missing.tolist() == [0.25, 0.75]
    with pytest.raises(MalformedMessage):
        decode(encode(asked(view=ENCODED), ()), {}, None)


def test_fills_and_a_basis_come_through_unchanged():
    full = EncodedRows(Logistic(), LEARNT)
    found = decode(encode(asked(view=full, fills=np.array([0.0, 1.0]), basis=BASIS), ()), {}, SCHEMA)
    assert digest_of(found.basis) == digest_of(BASIS)
    assert found.fills.tolist() == [0.0, 1.0]
    curves = SmoothCurves(MARGINALS, ROTATION, BASIS)
    query = ClippedGradient(Logistic(), curves, Target(), np.zeros(5), 1.0)
    assert decode(encode(asked(query), ()), {}, SCHEMA).query.digest == query.digest


def test_the_memory_order_of_an_array_comes_through():
    found = decode(encode(asked(QUERIES["a gradient"]), ()), {}, SCHEMA).query.coordinates.rotation
    assert found.flags.f_contiguous
    assert not found.flags.c_contiguous
    assert found.flags.writeable


def test_released_numbers_that_move_no_row_are_not_sent():
    found = decode(encode(asked(QUERIES["a gradient"]), ()), {}, SCHEMA).query.coordinates
    assert found.marginals.released is None


def test_a_part_is_sent_once():
    whole = encode(asked(QUERIES["a gradient"]), ())
    parts = {}
    decode(whole, parts, SCHEMA)
    short = encode(asked(QUERIES["a gradient"]), set(parts_of(whole)))
    assert len(short) < len(whole) / 2
    assert question_digest(short) == question_digest(whole)
    assert decode(short, parts, SCHEMA).query.digest == QUERIES["a gradient"].digest
    with pytest.raises(MissingPart):
        decode(short, {}, SCHEMA)


def test_infinities_come_through():
    target = decode(encode(asked(QUERIES["a gradient"]), ()), {}, SCHEMA).query.target
    assert (target.lower, target.upper) == (-math.inf, math.inf)


class OwnLoss(Logistic):
    """A loss of a user's own."""


def test_only_the_catalogue_is_written():
    broken = Cells(ClassOf(Logistic()), (2,), (1.0,))
    object.__setattr__(broken, "sizes", {1, 2})
    for query in (Blocks((Cells(ClassOf(OwnLoss()), (2,), (1.0,)),), 1.0), broken):
        with pytest.raises(MalformedMessage):
            encode(asked(query), ())
    with pytest.raises(MalformedMessage):
        encode(asked(fills=np.array(["cell"], object)), ())


def test_the_catalogue_holds_neither_rows_nor_code():
    assert {"People", "Records", "RecordStore", "ScoreCells", "OwnLoss"}.isdisjoint(CATALOGUE)
    assert all(
        issubclass(kind, Loss | tuple)
        or kind.__module__.startswith(
            ("discreet.linear.gate.", "discreet.linear.row_views.", "discreet.trusted.queries")
        )
        for kind in CATALOGUE.values()
    )


# What nobody vouches for.


def header_of(body):
    end = 4 + int.from_bytes(body[:4], "little")
    return json.loads(body[4:end]), body[end:]


def with_header(header, rest=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + rest


def refused(body, schema=SCHEMA):
    with pytest.raises((MalformedMessage, MissingPart)):
        decode(body, {}, schema)


def changed(word, value, question=None):
    header, rest = header_of(encode(question or asked(), ()))
    header["question"][word] = value
    return with_header(header, rest)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("number", 0),
        ("number", -1),
        ("number", 1.0),
        ("number", True),
        ("number", "1"),
        ("stage", ""),
        ("stage", "x" * 29),
        ("stage", "käse"),
        ("stage", 7),
        ("share", 0.0),
        ("share", -0.5),
        ("share", 1.5),
        ("share", 1),
        ("share", {"float": "inf"}),
        ("share", {"float": "nan"}),
        ("steps", 0),
        ("steps", 2.0),
        ("view", None),
        ("view", "rows"),
        ("view", {"is": "TargetRows", "of": []}),
        ("view", {"is": "TargetRows", "of": [{"is": "Logistic", "of": []}, 0]}),
        ("view", {"is": "TargetRows", "of": [{"is": "Logistic", "of": []}, True]}),
        ("view", {"is": "TargetRows", "of": [7, None]}),
        ("view", {"is": "UndeclaredColumns", "of": [2, {"schema": True}, None]}),
        ("view", {"is": "UndeclaredColumns", "of": [1, None, None]}),
        ("view", {"is": "People", "of": [1, 2]}),
        ("fills", [0.5]),
        ("basis", {"is": "Columns", "of": [1, [], 0, 1.0]}),
        ("query", None),
        ("query", {"is": "ClassOf", "of": [{"is": "Logistic", "of": []}]}),
        ("query", {"is": "Blocks", "of": [[], -1.0, "l2", False, None]}),
        ("query", {"is": "Blocks", "of": [[], {"float": "inf"}, "l2", False, None]}),
        ("query", {"is": "RecordStore", "of": []}),
        ("query", {"is": "os.system", "of": ["true"]}),
        ("query", {"part": "00"}),
        ("query", {"is": ["Blocks"], "of": []}),
        ("query", {"unknown": 1}),
        ("query", {}),
    ],
)
def test_a_question_with_another_field_is_refused(word, value):
    refused(changed(word, value))


@pytest.mark.parametrize("value", ["2", 2.5, True, None, [2], 10**30, {"part": "0"}])
def test_numbers_of_another_type_are_refused(value):
    header, rest = header_of(encode(asked(), ()))
    header["question"]["query"]["of"][0][0]["of"][1] = [value]  # the size of the cells
    try:
        found = decode(with_header(header, rest), {}, SCHEMA)
    except (MalformedMessage, MissingPart):
        return
    assert type(found.query.size) is int
    assert found.query.size == value  # a table's limit on numbers refuses it later


def test_an_array_in_place_of_a_number_is_refused():
    broken = ClippedGradient(Logistic(), WHITE, Target(), np.zeros(5), 1.0)
    object.__setattr__(broken, "clip_norm", np.ones(5))
    refused(encode(asked(broken), ()))


def test_arrays_of_other_types_and_shapes_are_refused():
    full = EncodedRows(Logistic(), LEARNT)
    for fills in (np.zeros(3), np.array([0.5, np.nan]), np.array([0.0, 2.0]), np.zeros(2, np.float32)):
        refused(encode(asked(view=full, fills=fills), ()))
    for seen in ([0, 1], [1, 0, 2, 3], [0, 0, 2, 3], [-1, 2, 3], [2, 3, 4]):
        refused(encode(asked(view=EncodedRows(Logistic(), LEARNT, np.array(seen))), ()))
    view = EncodedRows(Logistic(), LEARNT, np.array([2, 3]))
    object.__setattr__(view, "seen", np.array([2.0, 3.0]))  # which no view is made with
    refused(encode(asked(view=view), ()))
    other = Basis(type(COLUMNS)(2), BASIS.curves)
    refused(encode(asked(view=full, basis=other), ()))
    refused(encode(asked(basis=BASIS), ()))


def test_bounds_that_are_none_are_refused():
    header, rest = header_of(encode(asked(view=EncodedRows(Logistic(), LEARNT)), ()))
    encoding = header["question"]["view"]["of"][1]["encoding"]
    for pair in ([1.0, 1.0], [2.0, 1.0], [0.0, 1e400], ["0", "x"], [0.0], 7):
        broken = json.loads(json.dumps(header))
        broken["question"]["view"]["of"][1]["encoding"]["bounds"] = [pair]
        text = json.dumps(broken).replace("Infinity", "1e999").encode()
        refused(len(text).to_bytes(4, "little") + text + rest)
    for word, value in (
        ("learnt", ["age"]),
        ("learnt", []),
        ("guessed", ["age"]),
        ("guessed", ["pay", "pay"]),
    ):
        broken = json.loads(json.dumps(header))
        broken["question"]["view"]["of"][1]["encoding"] = encoding | {word: value}
        refused(with_header(broken, rest))


def test_parts_must_be_what_their_digests_name():
    header, rest = header_of(encode(asked(QUERIES["a gradient"]), ()))
    refused(with_header(header, rest + b"x"))
    refused(with_header(header, rest[:-1]))
    refused(with_header(header, bytes(len(rest))))
    for place, value in (
        (1, "object"),
        (1, "float64 upside"),
        (2, [-1, 5]),
        (2, [10**9]),
        (2, "5"),
        (2, [1] * 9),
    ):
        broken = json.loads(json.dumps(header))
        broken["parts"][-1][place] = value
        refused(with_header(broken, rest))
    broken = json.loads(json.dumps(header))
    broken["parts"][0] = [1, 2]
    refused(with_header(broken, rest))


def test_nesting_is_limited():
    deep = 1
    for _ in range(200):
        deep = [deep]
    refused(changed("query", deep))
    parts, body, inner = [], b"", json.dumps([1] * 40).encode()
    for _ in range(12):  # each part holds the one before forty times
        digest = hashlib.sha256(json.dumps(["json", [len(inner)]]).encode() + inner).hexdigest()
        parts.append([digest, "json", [len(inner)]])
        body += inner
        inner = json.dumps([{"part": digest}] * 40).encode()
    header, _ = header_of(encode(asked(), ()))
    header["question"]["query"] = {"part": parts[-1][0]}
    refused(with_header(header | {"parts": parts}, body))


@pytest.mark.parametrize(
    "body", [b"", b"abcd", bytes(8), pickle.dumps({"a": 1}), b"\xff" * 40, "text", None, 7]
)
def test_other_bytes_are_refused(body):
    refused(body)


def test_json_is_read_strictly():
    for text in (
        '{"question": NaN, "parts": []}',
        '{"question": {}, "question": {}, "parts": []}',
        "[]",
        "{}",
        "[" * 10**5,
    ):
        refused(len(text).to_bytes(4, "little") + text.encode())


WHOLE = encode(
    asked(QUERIES["a gradient"], view=EncodedRows(Logistic(), LEARNT), fills=np.array([0.5, 0.5])), ()
)
END = 4 + int.from_bytes(WHOLE[:4], "little")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_changed_bytes_give_a_checked_question_or_none(place, value, cut):
    body = WHOLE[:place] if cut else WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :]
    try:
        found = decode(body, {}, SCHEMA)
    except (MalformedMessage, MissingPart):
        return
    assert place < END or body == WHOLE  # the bytes of parts are named by their digests
    assert type(found.query).__name__ in CATALOGUE


NAMES = st.sampled_from(sorted(CATALOGUE))
WORDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(sorted(CATALOGUE)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(
            lambda name, parts: {"is": name, "of": parts},
            st.sampled_from(sorted(CATALOGUE)),
            st.lists(inner, max_size=5),
        )
        | st.dictionaries(st.sampled_from(["part", "float", "schema", "encoding", "is"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["number", "stage", "share", "steps", "view", "fills", "basis", "query"]), WORDS)
def test_made_up_fields_give_a_checked_question_or_none(word, value):
    try:
        found = decode(changed(word, value), {}, SCHEMA)
    except (MalformedMessage, MissingPart):
        return
    assert type(found.query.size) is int
    assert found.query.bound > 0


def test_a_residual_is_part_of_the_catalogue():
    ranks = Ranks((FOUR,), (FOUR[:3],))
    residual = Residual(BASIS, np.zeros(7), np.zeros(()), Logistic(), Target(), 1.0)
    assert CATALOGUE["Ranks"] is type(ranks)
    assert CATALOGUE["Residual"] is type(residual)


# A decoder that returns anything.


class OwnEncoding(SchemaEncoding):
    """An encoding of which rows could depend on one another."""


class OwnQuestion(Question):
    """A question whose fields could change between two looks."""


def other_schema():
    return Schema.from_dict(
        {"columns": {"age": {"bounds": [0, 9]}, "sick": {"flag": "yes"}}, "target": "sick"}
    )


def with_field(value, name, content):
    object.__setattr__(value, name, content)
    return value


HOSTILE = {
    "no question": lambda: tuple(asked()),
    "a class of its own": lambda: OwnQuestion(*asked()),
    "a loss of a user": lambda: asked(view=TargetRows(OwnLoss())),
    "a loss of a user in the query": lambda: asked(Blocks((Cells(ClassOf(OwnLoss()), (2,), (1.0,)),), 1.0)),
    "an encoding of a user": lambda: asked(view=EncodedRows(Logistic(), OwnEncoding(LEARNT.schema))),
    "a list": lambda: asked(
        with_field(Blocks((Cells(ClassOf(Logistic()), (2,), (1.0,)),), 1.0), "blocks", [])
    ),
    "objects": lambda: asked(
        view=EncodedRows(Logistic(), LEARNT), fills=np.array([object(), object()], object)
    ),
    "an array of a subclass": lambda: asked(
        view=EncodedRows(Logistic(), LEARNT), fills=np.ma.masked_array([0.0, 1.0])
    ),
    "another schema": lambda: asked(view=UndeclaredColumns(1, other_schema(), None)),
    "a function": lambda: asked(with_field(Cells(ClassOf(Logistic()), (2,), (1.0,)), "sizes", lambda: 2)),
    "a number of numpy": lambda: asked(number=np.int64(3)),
    "a string that is more": lambda: asked(stage=type("Own", (str,), {})("counts")),
}


@pytest.mark.parametrize("twin", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_decoder_returns_is_checked(twin):
    with pytest.raises(MalformedMessage):
        checked_question(twin(), SCHEMA)


def test_the_encoding_of_a_decoder_is_made_again():
    theirs = SchemaEncoding(SCHEMA.with_bounds({"pay": (0.0, 8.0)}))
    theirs.lower, theirs.columns = np.array([7.0, 7.0]), None
    view = checked_question(
        asked(view=with_field(EncodedRows(Logistic(), LEARNT), "encoding", theirs)), SCHEMA
    ).view
    assert view.encoding.lower.tolist() == [0.0, 0.0]
    assert view.encoding.columns == COLUMNS
    lying = SchemaEncoding(SCHEMA.with_bounds({"pay": (0.0, 8.0)}))
    lying.missing = np.array([0.0, np.nan])
    with pytest.raises(MalformedMessage):
        checked_question(asked(view=EncodedRows(Logistic(), lying)), SCHEMA)


def test_rows_are_named_by_view_fills_and_basis():
    full = EncodedRows(Logistic(), LEARNT)
    keys = row_keys(encode(asked(view=full), ()))
    assert row_keys(encode(asked(QUERIES["a gradient"], view=full), ())) == keys
    other = row_keys(encode(asked(view=full, fills=np.array([0.0, 1.0])), ()))
    assert other[0] == keys[0]
    assert other[1] != keys[1]
