/** The queues of a kind with their counts, in pages and by search; the details of the chosen queue stand below. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api } from '../../app/api.js';
import { replaceQuery } from '../../app/router.js';
import { addTexts, t } from '../../app/text.js';
import { queueLink } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { pager, table } from '../../ui/table.js';
import texts from './queue-choice.text.js';

addTexts(texts);

const SHOWN_QUEUES = 20;

/**
 * `selection` and `sort` are parameters of the list. `keys` names texts: `label` of the list, `queue` of its first
 * column, `search`, and `none` for a search without a result. `columns` are the columns with counts. `createDetail`
 * makes the details of a queue from its name.
 */
export function createQueueChoice({ query, update, signal, selection, sort, keys, columns, createDetail }) {
  const state = { queues: null, total: 0, offset: 0, search: '', error: null, chosen: query.get('queue') };
  let detail = null;
  let latest = 0;

  async function load() {
    const number = (latest += 1);
    try {
      const found = await api.get(
        '/queue-summaries',
        { selection, search: state.search, sort, descending: 'true', offset: state.offset, limit: SHOWN_QUEUES },
        { signal },
      );
      // The answer to an earlier search or page must not replace the answer to a later one.
      if (number !== latest) {
        return;
      }
      Object.assign(state, { queues: found.queues, total: found.total, error: null });
      if (state.chosen === null && found.queues.length > 0) {
        choose(found.queues[0].name);
      }
    } catch (error) {
      if (signal.aborted || number !== latest) {
        return;
      }
      state.error = error.isAway && state.queues !== null ? null : error;
    }
    update();
  }

  function choose(name) {
    state.chosen = name;
    detail = createDetail(name);
    detail.load();
    update();
  }

  function chooseByHand(name) {
    choose(name);
    replaceQuery({ queue: name });
    // Keyboards and screen readers go on at the queue that was chosen.
    requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector('#chosen-queue h2')?.focus()));
  }

  const searchField = createSearch(signal, state, () => {
    state.offset = 0;
    load();
  });

  function view() {
    if (state.error && state.queues === null) {
      return nothing;
    }
    return html`<section class="card" aria-label=${t(keys.label)}>
      ${state.search !== '' || state.total > SHOWN_QUEUES
        ? html`<div class="toolbar list-search" role="search">${searchField(t(keys.search))}</div>`
        : nothing}
      ${table({
        label: t(keys.label),
        rows: state.queues,
        rowKey: (queue) => queue.name,
        empty: html`<p class="loading">${t(keys.none)}</p>`,
        columns: [
          { title: t(keys.queue), cell: (queue) => queueLink(queue.name) },
          ...columns(),
          { title: '', cell: showButton },
        ],
      })}
      ${pager({
        offset: state.offset,
        limit: SHOWN_QUEUES,
        total: state.total,
        onPage: (offset) => {
          state.offset = offset;
          load();
        },
      })}
    </section>`;
  }

  function showButton({ name }) {
    const isChosen = name === state.chosen;
    return html`<button class="small" aria-pressed=${isChosen} @click=${() => chooseByHand(name)}>
      ${t(isChosen ? 'queue-choice.chosen' : 'queue-choice.show')}<span class="visually-hidden"> ${name}</span></button
    >`;
  }

  if (state.chosen !== null) {
    choose(state.chosen);
  }
  load();

  return {
    load,
    view,
    get detail() {
      return detail;
    },
    get error() {
      return state.error;
    },
    /** True if there is no queue of the kind. */
    get isEmpty() {
      return state.queues?.length === 0 && state.search === '' && state.offset === 0;
    },
  };
}
