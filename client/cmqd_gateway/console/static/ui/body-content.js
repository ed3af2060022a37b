/**
 * Bodies of messages as rows of text: JSON, text and hex, with the ranges of a search.
 *
 * Pure: no document, no network. A body has up to 1 MiB. Rows keep offsets instead of strings, so a body is scanned
 * once and only the rows on the screen are cut out of it. The view of JSON changes the white space between tokens and
 * the escapes of readable characters, no more: numbers keep their digits and objects their repeated names, which a parse
 * and print would lose.
 */

/** Characters of a row at most; a longer line continues in the next row. */
export const ROW_LENGTH = 500;
/** Bytes of a row of the hex view. */
export const HEX_BYTES = 16;
/** Rows of a piece: the part of a body that is in the document at a time. */
export const PIECE_ROWS = 100;
/** Ranges that a search returns at most. */
export const MAX_RANGES = 10000;
/** Levels of indentation that are drawn; deeper rows stand at the last level. */
export const MAX_DEPTH = 24;

const QUOTE = 34;
const COMMA = 44;
const COLON = 58;
const BACKSLASH = 92;
const SPACE = 32;
const MINUS = 45;
const ZERO = 48;
const NINE = 57;

const isOpening = (code) => code === 91 || code === 123;
const isClosing = (code) => code === 93 || code === 125;

/** A body with the views that fit it. */
export class BodyContent {
  #bytes = null;
  #text;
  #json = null;
  #modes = null;
  #rows = new Map();

  /** Take a body as the JSON API gives it: text, or base64 of bytes that are not UTF-8. */
  constructor(body, encoding = 'utf-8') {
    if (encoding === 'base64') {
      this.#bytes = bytesOfBase64(body);
      this.#text = new TextDecoder().decode(this.#bytes);
      this.#modes = ['hex', 'text'];
    } else {
      this.#text = body;
    }
  }

  /** The names of the views, the best first. Found at the first use: a list of messages shows previews alone. */
  get modes() {
    this.#modes ??= isJson(this.#text) ? ['json', 'text', 'hex'] : ['text', 'hex'];
    return this.#modes;
  }

  /** The body as text; bytes that are not UTF-8 are shown as U+FFFD. */
  get text() {
    return this.#text;
  }

  get bytes() {
    this.#bytes ??= new TextEncoder().encode(this.#text);
    return this.#bytes;
  }

  /** The view for reading and for a search over many messages: JSON or text. */
  get readingMode() {
    return this.modes.includes('json') ? 'json' : 'text';
  }

  /** Return the text to which the offsets of a view belong. */
  textOf(mode) {
    if (mode !== 'json') {
      return this.#text;
    }
    this.#json ??= withoutEscapes(this.#text);
    return this.#json;
  }

  /** Bytes of the body. */
  get size() {
    return this.bytes.length;
  }

  /** Return the rows of a view; made at the first use. */
  rows(mode) {
    if (!this.#rows.has(mode)) {
      const made = {
        json: () => jsonRows(this.textOf('json')),
        text: () => textRows(this.#text),
        hex: () => hexRows(this.bytes),
      };
      this.#rows.set(mode, made[mode]());
    }
    return this.#rows.get(mode);
  }

  /** Return the first characters in one line, for a list of messages; of bytes that are not text, the first in hex. */
  preview(length = 160) {
    if (this.modes[0] === 'hex') {
      const first = [...this.bytes.subarray(0, HEX_BYTES * 2)].map(hexDigits).join(' ');
      return this.size > HEX_BYTES * 2 ? `${first} …` : first;
    }
    const text = this.textOf(this.readingMode);
    const start = text.slice(0, length * 2).replace(/\s+/g, ' ').trim();
    return start.length > length || text.length > length * 2 ? `${start.slice(0, length)}…` : start;
  }

  /**
   * Return the ranges `[start, end)` of a text in the body, in order, at most `MAX_RANGES`.
   *
   * Offsets are those of the rows of the view: characters, or bytes in the hex view. Upper and lower case are equal.
   * In JSON, white space beside punctuation in the searched text stands for any white space, because the view has
   * white space of its own.
   */
  find(query, mode) {
    if (!query) {
      return [];
    }
    if (mode === 'hex') {
      return rangesOf(bytePattern(query), binaryText(this.bytes));
    }
    return rangesOf(textPattern(query, mode === 'json'), this.textOf(mode));
  }
}

/**
 * Return true for an object or list in JSON; a bare number or string is shown as text.
 *
 * So is a body that opens a thousand lists at once: a million levels would take longer than the page may stand still.
 */
export function isJson(text) {
  if (!/^\s*[[{]/.test(text) || /\[{1000}/.test(text)) {
    return false;
  }
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Return JSON with readable characters in place of their escapes: many programs write `\\u8ba2` for a Chinese letter.
 *
 * Escapes of invisible characters stay: drawn, some of them turn the direction of the text around and hide its end.
 */
function withoutEscapes(json) {
  return json.includes('\\u')
    ? json.replace(
        /((?:^|[^\\])(?:\\\\)*)((?:\\u[0-9a-f]{4})+)/gi,
        (whole, before, escapes) => before + readable(escapes),
      )
    : json;
}

function readable(escapes) {
  const text = JSON.parse(`"${escapes}"`);
  return [...text]
    .map((character) => (/[\p{C}\p{Z}"\\]/u.test(character) ? escapeOf(character) : character))
    .join('');
}

function escapeOf(character) {
  return [...Array(character.length).keys()]
    .map((index) => `\\u${character.charCodeAt(index).toString(16).padStart(4, '0')}`)
    .join('');
}

/** Return the bytes of base64 (RFC 4648 with padding). */
export function bytesOfBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) {
    bytes[index] = binary.charCodeAt(index);
  }
  return bytes;
}

/** Return base64 of bytes. The call is made in slices: the arguments of a call have a limit. */
export function base64OfBytes(bytes) {
  return btoa(binaryText(bytes));
}

/** Return how a file's bytes travel in the JSON API: as text where they are UTF-8, else in base64. */
export function bodyOfBytes(bytes) {
  try {
    // Without ignoreBOM the decoder would drop a byte order mark, and the body would change.
    return {
      body: new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes),
      encoding: 'utf-8',
    };
  } catch {
    return { body: base64OfBytes(bytes), encoding: 'base64' };
  }
}

function binaryText(bytes) {
  const slices = [];
  for (let start = 0; start < bytes.length; start += 8192) {
    slices.push(String.fromCharCode(...bytes.subarray(start, start + 8192)));
  }
  return slices.join('');
}

// ---------------------------------------------------------------- search

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, '\\$&');
}

function textPattern(query, isLoose) {
  if (!isLoose) {
    return new RegExp(escaped(query), 'gi');
  }
  const tokens = query
    .trim()
    .split(/(\s+|[:,[\]{}])/)
    .filter((token) => token !== '');
  let pattern = '';
  tokens.forEach((token, index) => {
    if (/^\s+$/.test(token)) {
      const besidePunctuation =
        /^[:,[\]{}]$/.test(tokens[index - 1]) || /^[:,[\]{}]$/.test(tokens[index + 1]);
      pattern += besidePunctuation ? '' : '\\s+';
    } else if (/^[:,[\]{}]$/.test(token)) {
      pattern += `${index ? '\\s*' : ''}${escaped(token)}${index < tokens.length - 1 ? '\\s*' : ''}`;
    } else {
      pattern += escaped(token);
    }
  });
  return pattern ? new RegExp(pattern, 'gi') : new RegExp(escaped(query), 'gi');
}

/** Return the pattern of bytes: hex digits in pairs (`de ad`, `0xdead`), else the text in UTF-8. */
function bytePattern(query) {
  const digits = /^(?:0x)?((?:[0-9a-f]{2}\s?)+)$/i.exec(query.trim());
  const isHex = digits !== null && (/^0x/i.test(query.trim()) || /\s/.test(query.trim()));
  const bytes = isHex
    ? digits[1]
        .replace(/\s/g, '')
        .match(/../g)
        .map((pair) => parseInt(pair, 16))
    : [...new TextEncoder().encode(query)];
  const parts = bytes.map((byte) => {
    const character = String.fromCharCode(byte);
    // The flag i would make bytes of UTF-8 equal that differ, so only the letters of ASCII have both cases.
    if (!isHex && /[a-z]/i.test(character)) {
      return `[${character.toLowerCase()}${character.toUpperCase()}]`;
    }
    return `\\x${byte.toString(16).padStart(2, '0')}`;
  });
  return new RegExp(parts.join(''), 'g');
}

function rangesOf(pattern, text) {
  const ranges = [];
  for (const match of text.matchAll(pattern)) {
    if (!match[0].length) {
      continue;
    }
    ranges.push([match.index, match.index + match[0].length]);
    if (ranges.length === MAX_RANGES) {
      break;
    }
  }
  return ranges;
}

/**
 * Cut a text in marked and plain parts.
 *
 * `start` is the offset of the text's first character, `ranges` are in order. Returns `[{text, range}]`, where `range`
 * is the index of the range that covers the part, or -1.
 */
export function marked(text, start, ranges) {
  const parts = [];
  const end = start + text.length;
  let offset = start;
  for (
    let index = firstEndingAfter(ranges, start);
    index < ranges.length && ranges[index][0] < end;
    index += 1
  ) {
    const from = Math.max(ranges[index][0], offset);
    const to = Math.min(ranges[index][1], end);
    if (from > offset) {
      parts.push({ text: text.slice(offset - start, from - start), range: -1 });
    }
    parts.push({ text: text.slice(from - start, to - start), range: index });
    offset = to;
  }
  if (offset < end) {
    parts.push({ text: text.slice(offset - start), range: -1 });
  }
  return parts;
}

function firstEndingAfter(ranges, offset) {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle][1] <= offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// ---------------------------------------------------------------- rows

/**
 * Rows of a view. `row(index)` returns `{ depth, parts, opens, continues }`; `parts` are `{ text, start, kind }` with
 * the offset of the text in the body, or -1 for text that the view adds. `rowAt(offset)` is the row of an offset.
 */
class Rows {
  constructor(count, row, starts, closes = null) {
    this.count = count;
    this.row = row;
    this.starts = starts;
    this.closes = closes;
  }

  /** Return the row in which an offset of the body stands. */
  rowAt(offset) {
    let low = 0;
    let high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts(middle) <= offset) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  /** Return the row that closes the object or list that a row opens, or -1. */
  closeOf(index) {
    return this.closes === null ? -1 : this.closes(index);
  }
}

/** Return an array of twice the length: an array of a million objects would take fifty times the memory of numbers. */
function grown(values) {
  const larger = new Int32Array(values.length * 2);
  larger.set(values);
  return larger;
}

/** Return the end of a slice that does not cut a surrogate pair in two. */
function cut(text, end) {
  const code = text.charCodeAt(end - 1);
  return code >= 0xd800 && code <= 0xdbff && end < text.length ? end + 1 : end;
}

function textRows(text) {
  let bounds = new Int32Array(2048);
  let count = 0;
  let start = 0;
  do {
    let lineEnd = text.indexOf('\n', start);
    if (lineEnd < 0) {
      lineEnd = text.length;
    }
    do {
      const end = Math.min(lineEnd, cut(text, Math.min(start + ROW_LENGTH, lineEnd)));
      if (count * 2 === bounds.length) {
        bounds = grown(bounds);
      }
      bounds[count * 2] = start;
      bounds[count * 2 + 1] = end;
      count += 1;
      start = end;
    } while (start < lineEnd);
    start = lineEnd + 1;
  } while (start < text.length);
  const row = (index) => ({
    depth: 0,
    parts: [
      { text: text.slice(bounds[index * 2], bounds[index * 2 + 1]), start: bounds[index * 2], kind: 'plain' },
    ],
    opens: false,
    continues: index > 0 && bounds[index * 2 - 1] === bounds[index * 2],
  });
  return new Rows(count, row, (index) => bounds[index * 2]);
}

function hexRows(bytes) {
  const count = Math.max(1, Math.ceil(bytes.length / HEX_BYTES));
  const row = (index) => {
    const start = index * HEX_BYTES;
    return {
      depth: 0,
      parts: [],
      opens: false,
      continues: false,
      start,
      bytes: bytes.subarray(start, start + HEX_BYTES),
    };
  };
  return new Rows(count, row, (index) => index * HEX_BYTES);
}

/** Return the two hex digits of a byte. */
export function hexDigits(byte) {
  return byte.toString(16).padStart(2, '0');
}

/** Return the printable character of a byte, or a point. */
export function printable(byte) {
  return byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.';
}

const KINDS = ['mark', 'string', 'number', 'literal'];
/** Added to the kind of a row that continues the row before. */
const CONTINUES = KINDS.length;

/** Return the index in `KINDS` of a JSON token by its first character. */
function kindOf(code) {
  if (isOpening(code) || isClosing(code)) {
    return 0;
  }
  if (code === QUOTE) {
    return 1;
  }
  return code === MINUS || (code >= ZERO && code <= NINE) ? 2 : 3;
}

function spaceEnd(text, offset) {
  while (offset < text.length && text.charCodeAt(offset) <= SPACE) {
    offset += 1;
  }
  return offset;
}

function afterComma(text, offset) {
  const next = spaceEnd(text, offset);
  return text.charCodeAt(next) === COMMA ? spaceEnd(text, next + 1) : next;
}

function isDelimiter(code) {
  return code <= SPACE || code === COMMA || isClosing(code);
}

/** Return the end of the JSON token at an offset. */
function tokenEnd(text, offset, code) {
  if (isOpening(code) || isClosing(code)) {
    return offset + 1;
  }
  if (code === QUOTE) {
    let end = offset + 1;
    while (text.charCodeAt(end) !== QUOTE) {
      end += text.charCodeAt(end) === BACKSLASH ? 2 : 1;
    }
    return end + 1;
  }
  let end = offset + 1;
  while (end < text.length && !isDelimiter(text.charCodeAt(end))) {
    end += 1;
  }
  return end;
}

/** The numbers of a row of JSON: range of the name (empty in lists), range of the value, depth, kind, closing row. */
const [NAME_START, NAME_END, START, END, DEPTH, KIND, CLOSE, WIDTH] = [0, 1, 2, 3, 4, 5, 6, 7];

/**
 * Rows of valid JSON: a row for each value, and a row for the end of each object or list that is not empty.
 *
 * A long string continues in further rows.
 */
function jsonRows(text) {
  let table = new Int32Array(1024 * WIDTH);
  let count = 0;
  const open = [];
  let nameStart = 0;
  let nameEnd = 0;
  let offset = spaceEnd(text, 0);

  function add(start, end, kind) {
    const first = count * WIDTH;
    if (first === table.length) {
      table = grown(table);
    }
    table[first + NAME_START] = nameStart;
    table[first + NAME_END] = nameEnd;
    table[first + START] = start;
    table[first + END] = end;
    table[first + DEPTH] = Math.min(open.length, MAX_DEPTH);
    table[first + KIND] = kind;
    table[first + CLOSE] = -1;
    count += 1;
    nameStart = 0;
    nameEnd = 0;
  }

  function addScalar(start, end, kind) {
    for (let from = start; from < end;) {
      const to = cut(text, Math.min(from + ROW_LENGTH, end));
      add(from, to, from === start ? kind : kind + CONTINUES);
      from = to;
    }
  }

  while (offset < text.length) {
    const code = text.charCodeAt(offset);
    let end = tokenEnd(text, offset, code);
    const behind = spaceEnd(text, end);
    if (code === QUOTE && text.charCodeAt(behind) === COLON) {
      nameStart = offset;
      nameEnd = end;
      offset = spaceEnd(text, behind + 1);
      continue;
    }
    if (isClosing(code)) {
      table[open.pop() * WIDTH + CLOSE] = count;
      add(offset, end, 0);
    } else if (!isOpening(code)) {
      addScalar(offset, end, kindOf(code));
    } else if (isClosing(text.charCodeAt(behind))) {
      end = behind + 1;
      add(offset, end, 0);
    } else {
      add(offset, end, 0);
      open.push(count - 1);
    }
    offset = afterComma(text, end);
  }
  return rowsOfTable(text, table, count);
}

function rowsOfTable(text, table, count) {
  const valueAt = (index, column) => table[index * WIDTH + column];
  const isNamed = (index) => valueAt(index, NAME_END) > valueAt(index, NAME_START);

  function valueParts(index) {
    const start = valueAt(index, START);
    const end = valueAt(index, END);
    const kind = valueAt(index, KIND);
    const value = text.slice(start, end);
    if (kind !== 0 || value.length === 1) {
      return [{ text: value, start, kind: KINDS[kind % CONTINUES] }];
    }
    // An empty object or list: the white space between the two characters stays out of the row.
    return [
      { text: value[0], start, kind: 'mark' },
      { text: value.at(-1), start: end - 1, kind: 'mark' },
    ];
  }

  function row(index) {
    const parts = [];
    if (isNamed(index)) {
      const start = valueAt(index, NAME_START);
      parts.push({ text: text.slice(start, valueAt(index, NAME_END)), start, kind: 'name' });
      parts.push({ text: ': ', start: -1, kind: 'mark' });
    }
    parts.push(...valueParts(index));
    const opens = valueAt(index, CLOSE) >= 0;
    const isCutOff = index + 1 < count && valueAt(index + 1, KIND) >= CONTINUES;
    if (!opens && !isCutOff && text.charCodeAt(spaceEnd(text, valueAt(index, END))) === COMMA) {
      parts.push({ text: ',', start: -1, kind: 'mark' });
    }
    return { depth: valueAt(index, DEPTH), parts, opens, continues: valueAt(index, KIND) >= CONTINUES };
  }

  const starts = (index) => valueAt(index, isNamed(index) ? NAME_START : START);
  return new Rows(count, row, starts, (index) => valueAt(index, CLOSE));
}
