"""Bodies as rows of text: JSON, text and hex, the ranges of a search, and bodies of 1 MiB."""

from typing import Any

import pytest
from playwright.sync_api import Page

_LOAD = """
  const { src } = document.querySelector('script[src$="app/main.js"]');
  const load = (path) => import(src.replace('app/main.js', path));
"""
"""A module of the page: its address has a version, and a second copy of a module would be another module."""

_CALL = """async ([body, encoding, mode, query]) => {
  const module = await load('ui/body-content.js');
  const content = new module.BodyContent(body, encoding);
  const used = mode ?? content.modes[0];
  const rows = content.rows(used);
  const shown = [];
  for (let index = 0; index < Math.min(rows.count, 2000); index += 1) {
    const row = rows.row(index);
    shown.push({
      text: '  '.repeat(row.depth) + row.parts.map((part) => part.text).join(''),
      bytes: row.bytes ? [...row.bytes] : null,
      parts: row.parts, opens: row.opens, continues: row.continues, close: rows.closeOf(index),
    });
  }
  const ranges = content.find(query, used);
  return {
    modes: content.modes, size: content.size, count: rows.count, rows: shown, ranges, preview: content.preview(),
    rowsOfRanges: ranges.slice(0, 100).map(([start]) => rows.rowAt(start)),
    found: used === 'hex' ? null : ranges.slice(0, 100).map(([start, end]) => content.textOf(used).slice(start, end)),
  };
}"""


def content(page: Page, body: str, *, encoding: str = "utf-8", mode: str | None = None, query: str = "") -> Any:
    return run(page, _CALL, [body, encoding, mode, query])


def run(page: Page, script: str, arguments: Any = None) -> Any:
    return page.evaluate(script.replace("=> {", "=> {" + _LOAD, 1), arguments)


def lines(shown: Any) -> list[str]:
    return [row["text"] for row in shown["rows"]]


def test_json_keeps_digits_repeated_names_and_order(page: Page):
    shown = content(page, ' {"id":12345678901234567890,"a":[1,-2.50e3,[],{ }],"id":true,\n"o":{"k":null} } ')

    assert shown["modes"] == ["json", "text", "hex"]
    assert lines(shown) == [
        "{",
        '  "id": 12345678901234567890,',
        '  "a": [',
        "    1,",
        "    -2.50e3,",
        "    [],",
        "    {}",
        "  ],",
        '  "id": true,',
        '  "o": {',
        '    "k": null',
        "  }",
        "}",
    ]
    assert [(index, row["close"]) for index, row in enumerate(shown["rows"]) if row["opens"]] == [
        (0, 12),
        (2, 7),
        (9, 11),
    ]


def test_punctuation_inside_of_strings_is_text(page: Page):
    shown = content(page, r'["a,]}:{[\"", "\\", {"k:,": "v"}]')

    assert lines(shown) == ["[", r'  "a,]}:{[\"",', r'  "\\",', "  {", '    "k:,": "v"', "  }", "]"]


def test_escapes_of_readable_characters_are_readable_and_others_stay(page: Page):
    shown = content(page, r'{"a": "\u8ba2\u5355 \ud83d\ude00 \\u8ba2 \u202e \u0022 \ud83d \u0000"}', query="订单 😀")

    assert lines(shown)[1] == r'  "a": "订单 😀 \\u8ba2 \u202e \u0022 \ud83d \u0000"'
    assert shown["found"] == ["订单 😀"]
    assert lines(content(page, r'{"a": "\u8ba2"}', mode="text")) == [r'{"a": "\u8ba2"}']


@pytest.mark.parametrize("body", ["", "hello", "{", '{"a": }', "[1] 2", "17", '"text"', "[" * 1000 + "]" * 1000])
def test_other_bodies_are_text(page: Page, body: str):
    shown = content(page, body)

    assert shown["modes"] == ["text", "hex"]
    assert "".join(lines(shown)) == body


def test_text_keeps_its_lines(page: Page):
    assert lines(content(page, "a\n\nb\r\n  c")) == ["a", "", "b\r", "  c"]
    assert content(page, "\n" * 5)["count"] == 5


def test_a_long_line_continues_in_further_rows_and_no_character_is_cut_in_two(page: Page):
    body = "x" * 499 + "😀" + "y" * 1000

    shown = content(page, body)

    assert [row["continues"] for row in shown["rows"]] == [False, True, True]
    assert "".join(lines(shown)) == body
    assert lines(shown)[0].endswith("😀")


def test_a_long_string_in_json_continues_in_further_rows(page: Page):
    shown = content(page, '{"a":"' + "[,}" * 500 + '","b":1}')

    assert [row["continues"] for row in shown["rows"]] == [False, False, True, True, True, False, False]
    assert "".join(lines(shown)).replace(" ", "") == '{"a":"' + "[,}" * 500 + '","b":1}'


def test_bytes_that_are_not_utf_8_are_shown_in_hex_first(page: Page):
    shown = content(page, "AAH/" + "QUJD" * 5, encoding="base64", query="00 01")

    assert shown["modes"] == ["hex", "text"]
    assert shown["size"] == 18
    assert shown["preview"].startswith("00 01 ff 41 42 43 41")
    assert [len(row["bytes"]) for row in shown["rows"]] == [16, 2]
    assert shown["rows"][0]["bytes"][:6] == [0, 1, 255, 65, 66, 67]
    assert shown["ranges"] == [[0, 2]]


@pytest.mark.parametrize(
    ("mode", "query", "found"),
    [
        ("text", "ADA", ["Ada", "ada"]),
        ("text", "a.a", []),
        ("text", '"name": ', []),
        ("json", '"name": "ada', ['"name":"Ada']),
        ("json", "[ 1 , 2", ["[1,\n2"]),
        ("json", "two  words", ["two words"]),
    ],
)
def test_a_search_finds_text_in_upper_and_lower_case(page: Page, mode: str, query: str, found: list[str]):
    body = '{"name":"Ada","other":"ada","list":[1,\n2],"text":"two words"}'

    assert content(page, body, mode=mode, query=query)["found"] == found


def test_a_search_in_hex_finds_text_and_bytes(page: Page):
    body = "0123456789abcdefDE AD"
    assert content(page, body, mode="hex", query="EFde")["ranges"] == [[14, 18]]
    assert content(page, body, mode="hex", query="0x6465")["ranges"] == [[13, 15]]
    assert content(page, body, mode="hex", query="64 65 66")["ranges"] == [[13, 16]]
    assert content(page, body, mode="hex", query="ef")["rowsOfRanges"] == [0]
    assert content(page, "订单", mode="hex", query="单")["ranges"] == [[3, 6]]


def test_a_range_belongs_to_the_row_in_which_it_starts(page: Page):
    shown = content(page, '{"a": 1, "b": {"c": 2, "d": 3}}', query='"')

    assert shown["rowsOfRanges"] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("text", "start", "ranges", "parts"),
    [
        ("abcdef", 10, [[9, 11], [12, 14], [15, 20]], [["a", 0], ["b", -1], ["cd", 1], ["e", -1], ["f", 2]]),
        ("abc", 0, [], [["abc", -1]]),
        ("abc", 0, [[0, 3]], [["abc", 0]]),
        ("abc", 5, [[0, 5], [8, 9]], [["abc", -1]]),
    ],
)
def test_a_text_is_cut_in_marked_and_plain_parts(
    page: Page, text: str, start: int, ranges: list[list[int]], parts: list[list[Any]]
):
    script = """async ([text, start, ranges]) => {
      const { marked } = await load('ui/body-content.js');
      return marked(text, start, ranges).map((part) => [part.text, part.range]);
    }"""

    assert run(page, script, [text, start, ranges]) == parts


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"", {"body": "", "encoding": "utf-8"}),
        ("\ufeff订单".encode(), {"body": "\ufeff订单", "encoding": "utf-8"}),
        (b"\xff\x00", {"body": "/wA=", "encoding": "base64"}),
    ],
)
def test_a_file_travels_as_text_or_in_base64(page: Page, data: bytes, body: dict[str, str]):
    script = """async (data) => {
      const { bodyOfBytes } = await load('ui/body-content.js');
      return bodyOfBytes(new Uint8Array(data));
    }"""

    assert run(page, script, list(data)) == body


@pytest.mark.parametrize("mode", ["json", "text", "hex"])
def test_a_body_of_1_mib_has_all_of_its_rows_and_few_of_them_in_a_piece(page: Page, mode: str):
    script = """async ([body, mode]) => {
      const { BodyContent, PIECE_ROWS } = await load('ui/body-content.js');
      const { bodyState, findInBody, goToMatch, pieceOf } = await load('ui/body-view.js');
      const state = bodyState(new BodyContent(body), mode);
      findInBody(state, 'needle');
      const first = pieceOf(state);
      const ranges = state.ranges.length;
      goToMatch(state, -1);
      const last = pieceOf(state);
      const rows = state.content.rows(mode);
      const row = rows.rowAt(state.ranges.at(-1)[0]);
      return {
        count: rows.count, ranges, sizes: [first.length, last.length], limit: PIECE_ROWS,
        isShown: last.some(({ index }) => index === row), piece: state.piece,
      };
    }"""
    items = ",\n".join(f'{{"number": {number}, "word": "needle"}}' for number in range(25_000))
    body = f"[{items}]"

    shown = run(page, script, [body, mode])

    assert shown["count"] > 20_000
    assert shown["ranges"] == 10_000
    assert shown["isShown"]
    assert shown["piece"] > 0
    assert max(shown["sizes"]) <= shown["limit"]


def test_a_fold_hides_its_rows_and_a_match_inside_opens_it(page: Page):
    script = """async () => {
      const { BodyContent } = await load('ui/body-content.js');
      const { bodyState, findInBody, fold, pieceOf } = await load('ui/body-view.js');
      const state = bodyState(new BodyContent('{"a": {"b": [1, 2], "c": 3}, "d": 4}'));
      const shown = () => pieceOf(state).map(({ index }) => index);
      const before = shown();
      fold(state, 2);
      const inner = shown();
      fold(state, 1);
      const outer = shown();
      findInBody(state, '2');
      return { before, inner, outer, after: shown() };
    }"""

    shown = run(page, script)

    assert shown["before"] == list(range(10))
    assert shown["inner"] == [0, 1, 2, 6, 7, 8, 9]
    assert shown["outer"] == [0, 1, 8, 9]
    assert shown["after"] == list(range(10))
