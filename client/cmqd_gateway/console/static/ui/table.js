/** Tables with sorting on the server, and their pages. On a phone each row is a card with the titles of its columns. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { repeat } from '../vendor/lit-html-3.3.3/directives/repeat.js';
import { count } from '../app/format.js';
import { addTexts, t } from '../app/text.js';
import { icon } from './icon.js';
import texts from './ui.text.js';

addTexts(texts);

/**
 * Return a table.
 *
 * @param label name of the table for screen readers.
 * @param columns `[{ name, title, cell(row), align: 'end' for numbers, sort: name of the sort on the server,
 *   isActions: true for buttons, which stay in view while the table scrolls sideways }]`.
 * @param rows the rows; null = still loading.
 * @param rowKey function of a row: its identity.
 * @param sort `{ by, descending }`, the sort in force; `onSort(by, descending)` asks for another.
 * @param empty template in place of the table if there are no rows.
 * @param detail optional function of a row: a template below the row, or nothing.
 */
export function table({ label, columns, rows, rowKey, sort = null, onSort = null, empty = nothing, detail = null }) {
  if (rows === null) {
    return html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`;
  }
  if (rows.length === 0) {
    return empty;
  }
  return html`<div class="table-frame">
    <table aria-label=${label}>
      <thead>
        <tr>
          ${columns.map((column) => header(column, sort, onSort))}
        </tr>
      </thead>
      <tbody>
        ${repeat(
          rows,
          rowKey,
          (row) => html`<tr>
              ${columns.map(
                (column) => html`<td class=${`${column.align === 'end' ? 'end' : ''} ${column.isActions ? 'actions-cell' : ''}`} data-title=${column.title}>${column.cell(row)}</td>`,
              )}
            </tr>
            ${below(detail?.(row), columns.length)}`,
        )}
      </tbody>
    </table>
  </div>`;
}

function below(content, width) {
  return content && content !== nothing ? html`<tr class="detail"><td colspan=${width}>${content}</td></tr>` : nothing;
}

function header(column, sort, onSort) {
  if (!column.sort || !onSort) {
    return html`<th scope="col" class=${column.align === 'end' ? 'end' : ''}>${column.title}</th>`;
  }
  const isSorted = sort?.by === column.sort;
  // Numbers are wanted largest first.
  const descending = isSorted ? !sort.descending : column.align === 'end';
  return html`<th
    scope="col"
    class=${column.align === 'end' ? 'end' : ''}
    aria-sort=${isSorted ? (sort.descending ? 'descending' : 'ascending') : 'none'}
  >
    <button class="sort" title=${t('ui.sort', { title: column.title })} @click=${() => onSort(column.sort, descending)}>
      ${column.title}${isSorted ? icon(sort.descending ? 'down' : 'up') : nothing}
    </button>
  </th>`;
}

/** Return the buttons to the previous and next page of a list; nothing if it has one page. */
export function pager({ offset, limit, total, onPage }) {
  if (total <= limit && offset === 0) {
    return nothing;
  }
  const values = { first: count(Math.min(offset + 1, total)), last: count(Math.min(offset + limit, total)), total: count(total) };
  return html`<nav class="pager" aria-label=${t('ui.pages')}>
    <button ?disabled=${offset === 0} @click=${() => onPage(Math.max(0, offset - limit))}>${t('ui.previous')}</button>
    <span role="status">${t('ui.page-of', values)}</span>
    <button ?disabled=${offset + limit >= total} @click=${() => onPage(offset + limit)}>${t('ui.next')}</button>
  </nav>`;
}

/**
 * Return the pages of a list whose next page the broker names.
 *
 * @param starts the starts of the pages up to the current one, `next` the start of the next, or null.
 * @param onPage called with the starts up to another page.
 */
export function chainPager({ starts, next, onPage, isLoading = false }) {
  const isFirst = starts.length === 1;
  return isFirst && next === null
    ? nothing
    : html`<nav class="pager" aria-label=${t('ui.pages')}>
        <button ?disabled=${isFirst} @click=${() => onPage(starts.slice(0, 1))}>${t('ui.first-page')}</button>
        <button ?disabled=${isFirst} @click=${() => onPage(starts.slice(0, -1))}>${t('ui.previous')}</button>
        <span role="status">${t('ui.page-number', { page: count(starts.length) })}</span>
        <button ?disabled=${next === null || isLoading} @click=${() => onPage([...starts, next])}>${t('ui.next')}</button>
      </nav>`;
}
