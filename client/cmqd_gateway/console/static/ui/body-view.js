/**
 * The viewer of a message's body: views, search, folding, pieces.
 *
 * A piece of `PIECE_ROWS` rows is in the document at a time, so a body of 1 MiB draws as fast as a small body. All parts
 * of a body reach the document as text nodes.
 */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { bytes as byteSize, count, visible } from '../app/format.js';
import { addTexts, t } from '../app/text.js';
import { HEX_BYTES, MAX_RANGES, PIECE_ROWS, hexDigits, marked, printable } from './body-content.js';
import texts from './body-view.text.js';
import { copyText } from './copy.js';
import { icon } from './icon.js';

addTexts(texts);
/** Characters of the digits of a full row of the hex view. */
const HEX_WIDTH = HEX_BYTES * 3 + 1;
/** Marks of a row at most: a search for one letter would otherwise make tens of thousands of elements. */
const ROW_MARKS = 20;
let states = 0;

/** Return the state of a viewer of a body. `mode` is used if the body has this view. */
export function bodyState(content, mode = null) {
  states += 1;
  return {
    id: `body-${states}`,
    content,
    mode: content.modes.includes(mode) ? mode : content.modes[0],
    piece: 0,
    folded: new Set(),
    query: '',
    ranges: [],
    current: -1,
  };
}

/** Search a text in the body, mark its ranges, and go to the first of them. */
export function findInBody(state, query) {
  state.query = query;
  state.ranges = state.content.find(query, state.mode);
  state.current = -1;
  if (state.ranges.length > 0) {
    goToMatch(state, 0);
  }
}

/** Make a range the current one, with its piece in the document and its row unfolded. */
export function goToMatch(state, index) {
  state.current = (index + state.ranges.length) % state.ranges.length;
  const rows = state.content.rows(state.mode);
  const row = rows.rowAt(state.ranges[state.current][0]);
  for (const opening of [...state.folded]) {
    if (opening < row && row <= rows.closeOf(opening)) {
      state.folded.delete(opening);
    }
  }
  state.piece = Math.floor(countShown(state, row) / PIECE_ROWS);
}

/** Show another view of the body; the search is made anew, because its offsets belong to the view. */
export function setMode(state, mode) {
  state.mode = mode;
  state.piece = 0;
  state.folded.clear();
  findInBody(state, state.query);
}

/** Fold or unfold the object or list that a row opens. */
export function fold(state, row) {
  if (!state.folded.delete(row)) {
    state.folded.add(row);
  }
  state.piece = Math.floor(countShown(state, row) / PIECE_ROWS);
}

/** Return the number of rows before a row that no fold hides. A folded row stands for its object or list. */
function countShown(state, end) {
  const rows = state.content.rows(state.mode);
  let shown = end;
  let hiddenUntil = -1;
  for (const opening of [...state.folded].sort((one, other) => one - other)) {
    // A fold inside another fold hides no further rows.
    if (opening > hiddenUntil && opening < end) {
      hiddenUntil = rows.closeOf(opening);
      shown -= Math.min(hiddenUntil, end - 1) - opening;
    }
  }
  return shown;
}

/** Return the rows of the current piece as `[{ index, row }]`. */
export function pieceOf(state) {
  const rows = state.content.rows(state.mode);
  const piece = [];
  let hidden = 0;
  // Folds before the piece move its first row; the rest of the walk is as long as the piece.
  let index = state.piece * PIECE_ROWS;
  if (state.folded.size > 0) {
    for (index = 0; hidden < state.piece * PIECE_ROWS && index < rows.count; hidden += 1) {
      index = after(state, rows, index);
    }
  }
  while (piece.length < PIECE_ROWS && index < rows.count) {
    piece.push({ index, row: rows.row(index) });
    index = after(state, rows, index);
  }
  return piece;
}

function after(state, rows, index) {
  return (state.folded.has(index) ? rows.closeOf(index) : index) + 1;
}

// ---------------------------------------------------------------- drawing

/**
 * Return the viewer.
 *
 * @param state what `bodyState` returned.
 * @param update draws the page again.
 * @param label name of the body for screen readers.
 */
export function bodyView({ state, update, label }) {
  const change = (action) => () => {
    action();
    update();
  };
  return html`<section class="body-view" aria-label=${label}>
    <div class="body-tools">
      <div class="choice" role="group" aria-label=${t('body.views')}>
        ${state.content.modes.map(
          (mode) => html`<button
            type="button" class="small" aria-pressed=${mode === state.mode} @click=${change(() => setMode(state, mode))}
          >${t(`body.${mode}`)}</button>`,
        )}
      </div>
      <span class="soft number">${byteSize(state.content.size)}</span>
      <button type="button" class="quiet small" @click=${() => copyText(state.content.text)}>${t('body.copy')}</button>
      ${search(state, update)}
    </div>
    ${pieces(state, update)}
    <pre class="body-rows ${state.mode}" id=${state.id} tabindex="0" aria-label=${label}>${pieceOf(state).map(
      ({ index, row }) => (state.mode === 'hex' ? hexRow(state, row) : textRow(state, index, row, change)),
    )}</pre>
  </section>`;
}

/** Scroll the current range into sight, after the next drawing. */
export function showMatch(state) {
  requestAnimationFrame(() =>
    requestAnimationFrame(() =>
      document.getElementById(state.id)?.querySelector('mark.current')?.scrollIntoView({ block: 'nearest' }),
    ),
  );
}

function search(state, update) {
  const total = state.ranges.length;
  const move = (step) => {
    if (total > 0) {
      goToMatch(state, state.current + step);
      showMatch(state);
      update();
    }
  };
  const onKey = (event) => {
    if (event.key === 'Enter') {
      event.preventDefault();
      move(event.shiftKey ? -1 : 1);
    }
  };
  const values = {
    current: count(state.current + 1),
    total: total === MAX_RANGES ? `${count(total)}+` : count(total),
  };
  const found = total === 0 ? t('body.no-match') : t('body.match-of', values);
  return html`<div class="body-search">
    <label class="visually-hidden" for=${`${state.id}-search`}>${t('body.find')}</label>
    <input
      id=${`${state.id}-search`} type="search" autocomplete="off" spellcheck="false" placeholder=${t('body.find')}
      .value=${state.query} @keydown=${onKey}
      @input=${(event) => {
        findInBody(state, event.target.value);
        showMatch(state);
        update();
      }}
    />
    <span class="soft number" role="status">${state.query === '' ? nothing : found}</span>
    ${matchButton('up', t('body.previous-match'), total, () => move(-1))}
    ${matchButton('down', t('body.next-match'), total, () => move(1))}
  </div>`;
}

function matchButton(symbol, text, total, action) {
  return html`<button type="button" class="quiet small" title=${text} ?disabled=${total === 0} @click=${action}>
    ${icon(symbol)}<span class="visually-hidden">${text}</span>
  </button>`;
}

function pieces(state, update) {
  const total = countShown(state, state.content.rows(state.mode).count);
  const last = Math.ceil(total / PIECE_ROWS) - 1;
  if (last === 0) {
    return nothing;
  }
  const go = (piece) => {
    state.piece = piece;
    document.getElementById(state.id)?.scrollTo(0, 0);
    update();
  };
  const button = (text, piece) =>
    html`<button type="button" class="small" ?disabled=${piece === state.piece} @click=${() => go(piece)}>${text}</button>`;
  const first = state.piece * PIECE_ROWS;
  const values = {
    first: count(first + 1),
    last: count(Math.min(first + PIECE_ROWS, total)),
    total: count(total),
  };
  return html`<nav class="body-pieces" aria-label=${t('body.pieces')}>
    <span class="soft number" role="status">${t('body.piece-of', values)}</span>
    ${button(t('body.first'), 0)} ${button(t('ui.previous'), Math.max(0, state.piece - 1))}
    ${button(t('ui.next'), Math.min(last, state.piece + 1))} ${button(t('body.last'), last)}
  </nav>`;
}

function textRow(state, index, row, change) {
  const indent = '  '.repeat(row.depth) + (row.continues && state.mode === 'json' ? '  ' : '');
  const isFolded = state.folded.has(index);
  const toggle = row.opens
    ? html`<button
        type="button" class="fold" aria-expanded=${!isFolded} aria-label=${t('body.fold', { row: count(index + 1) })}
        @click=${change(() => fold(state, index))}
      ></button>`
    : nothing;
  const rest = isFolded ? foldedRest(state, index) : nothing;
  const parts = row.parts.map((part) => partView(state, part));
  return html`<span class="body-row">${toggle}${indent}${parts}${rest}${'\n'}</span>`;
}

/** Return the number of hidden rows and the end of a folded object or list. */
function foldedRest(state, index) {
  const rows = state.content.rows(state.mode);
  const close = rows.closeOf(index);
  const end = rows
    .row(close)
    .parts.map((part) => part.text)
    .join('');
  return html`<span class="body-folded">${t('body.folded', { rows: count(close - index - 1) })}</span>${end}`;
}

function partView(state, part) {
  const content =
    part.start < 0 || state.ranges.length === 0 ? visible(part.text) : marks(state, part.text, part.start);
  return part.kind === 'plain' || part.kind === 'mark'
    ? content
    : html`<span class="json-${part.kind}">${content}</span>`;
}

/** Return a text with its marks: the first `ROW_MARKS` of a row, and the current one. */
function marks(state, text, start) {
  const shown = [];
  let plain = '';
  for (const part of marked(text, start, state.ranges)) {
    const isMarked = part.range >= 0 && (shown.length < ROW_MARKS * 2 || part.range === state.current);
    if (isMarked) {
      shown.push(plain, mark(state, part.range, visible(part.text)));
      plain = '';
    } else {
      plain += visible(part.text);
    }
  }
  return [...shown, plain];
}

function mark(state, range, text) {
  return html`<mark class=${range === state.current ? 'current' : ''}>${text}</mark>`;
}

function hexRow(state, row) {
  const codes = [...row.bytes];
  const digits = codes
    .map((code, index) => hexDigits(code) + (index === 7 ? '  ' : ' '))
    .join('');
  const characters = codes.map(printable).join('');
  const hexParts = marked(characters, row.start, state.ranges).map((part) => ({
    length: part.text.length,
    range: part.range,
  }));
  let index = 0;
  const shown = hexParts.map(({ length, range }) => {
    const from = column(index);
    index += length;
    // The space behind the last marked byte is outside of the mark.
    const to = range < 0 ? column(index) : column(index - 1) + 2;
    const gap = range < 0 ? '' : digits.slice(to, column(index));
    const text = digits.slice(from, to);
    return range < 0 ? text : html`${mark(state, range, text)}${gap}`;
  });
  const offset = row.start.toString(16).padStart(8, '0');
  const space = ' '.repeat(HEX_WIDTH - digits.length);
  return html`<span class="body-row"><span class="body-offset">${offset}</span>  ${shown}${space} <span class="body-characters">${
    state.ranges.length === 0 ? characters : marks(state, characters, row.start)
  }</span>${'\n'}</span>`;
}

/** Return the column of a byte in the digits of a row of the hex view; eight bytes form a group. */
function column(index) {
  return index * 3 + (index > 7 ? 1 : 0);
}
