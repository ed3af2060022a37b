/** The queues of the account: search, sort and pages on the server, rates between two readings, create and edit. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, duration, rate, shortCount, time } from '../../app/format.js';
import { href, navigate, replaceQuery } from '../../app/router.js';
import { brokerUrl, can } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { badge, emptyState, pageHead } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { pager, table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { openQueueDialog } from './queue-form.js';
import texts from './queues.text.js';

addTexts(texts);

const PAGE_SIZE = 50;
const RELOAD_MS = 5_000;
const SELECTIONS = ['all', 'with_messages', 'dead_letter_queues', 'with_dead_letter_queue', 'transactional'];
const SORTS = ['name', 'active', 'in_flight', 'delayed', 'half', 'age', 'waiting_receives', 'dead_lettered'];

export function page({ query, update, signal, every }) {
  const state = {
    search: query.get('search') ?? '',
    sort: SORTS.includes(query.get('sort')) ? query.get('sort') : 'name',
    descending: query.get('descending') === 'true',
    selection: SELECTIONS.includes(query.get('only')) ? query.get('only') : 'all',
    offset: Math.max(0, Number.parseInt(query.get('offset') ?? '0', 10) || 0),
    page: null,
    error: null,
    isLoading: false,
  };
  /** The last reading of each queue that was on a page, for rates: `{ time, arrived, deleted }` by id. */
  let readings = new Map();
  let rates = new Map();
  let asking = new AbortController();

  async function load() {
    asking.abort();
    asking = new AbortController();
    const { signal: mine } = asking;
    const { search, sort, descending, selection, offset } = state;
    state.isLoading = true;
    try {
      const asked = { search, sort, descending, selection, offset, limit: PAGE_SIZE };
      const page = await api.get('/queue-summaries', asked, { signal: AbortSignal.any([signal, mine]) });
      if (page.queues.length === 0 && offset > 0 && page.total > 0) {
        // The last queues of the list were deleted: the last page that is left.
        show({ offset: Math.floor((page.total - 1) / PAGE_SIZE) * PAGE_SIZE });
        return;
      }
      note(page);
      Object.assign(state, { page, error: null });
    } catch (error) {
      if (signal.aborted || mine.aborted) {
        return;
      }
      if (!error.isAway || state.page === null) {
        // The shell says that the broker is away; the figures of before stay on the page.
        state.error = error;
      }
    }
    state.isLoading = false;
    update();
  }

  /** Keep the totals of a page, and make rates of the queues that an earlier page had too. */
  function note(page) {
    const now = Date.parse(page.time);
    const [noted, made] = [new Map(), new Map()];
    for (const queue of page.queues) {
      const before = readings.get(queue.id);
      noted.set(queue.id, { time: now, arrived: queue.arrived, deleted: queue.deleted });
      if (before && now > before.time) {
        const per = (name) => Math.max(0, ((queue[name] - before[name]) * 1000) / (now - before.time));
        made.set(queue.id, { arrived: per('arrived'), deleted: per('deleted') });
      } else if (before) {
        noted.set(queue.id, before);
      }
    }
    readings = noted;
    rates = made;
  }

  /** Show another part or order of the list; the address tells it, for a reload and for a link. */
  function show(changes) {
    Object.assign(state, { offset: 0 }, changes);
    replaceQuery({
      search: state.search,
      sort: state.sort === 'name' ? '' : state.sort,
      descending: state.descending ? 'true' : '',
      only: state.selection === 'all' ? '' : state.selection,
      offset: state.offset === 0 ? '' : state.offset,
    });
    load();
    update();
  }

  const searchField = createSearch(signal, state, () => show({}));

  async function create() {
    const name = await openQueueDialog({ signal });
    if (name !== null) {
      toast(t('queues.created', { queue: name }));
      navigate(href(`queues/${segment(name)}`));
    }
  }

  async function edit(name) {
    const info = await api.get(`/queues/${segment(name)}`, {}, { signal });
    if ((await openQueueDialog({ info, signal })) !== null) {
      toast(t('queues.saved', { queue: name }));
      load();
    }
  }

  addEventListener('cmqd:back', load, { signal });
  every(RELOAD_MS, load);
  load();
  if (query.get('create') && can('manage')) {
    // Other pages lead here with the dialog; a reload, or the way back, does not open it again.
    replaceQuery({ create: '' });
    create();
  }

  function columns() {
    const number = (name, value, options = {}) => ({
      name, title: t(`queues.column.${name}`), align: 'end', sort: name, cell: (queue) => quantity(value(queue)), ...options,
    });
    return [
      { name: 'name', title: t('queues.column.name'), sort: 'name', cell: nameCell },
      number('active', (queue) => queue.counts.active),
      number('in_flight', (queue) => queue.counts.in_flight),
      number('delayed', (queue) => queue.counts.delayed),
      state.selection === 'transactional' ? number('half', (queue) => queue.counts.half) : null,
      number('age', null, { cell: (queue) => ageCell(queue, state.page.time) }),
      // The server sorts by totals; a column of rates with that order would look unsorted.
      number('arrived', null, { sort: null, cell: (queue) => rateCell(rates.get(queue.id)?.arrived, queue.arrived) }),
      number('deleted', null, { sort: null, cell: (queue) => rateCell(rates.get(queue.id)?.deleted, queue.deleted) }),
      number('dead_lettered', (queue) => queue.dead_lettered),
      number('waiting_receives', (queue) => queue.waiting_receives),
      can('manage') ? { name: 'edit', title: '', align: 'end', cell: editCell } : null,
    ].filter(Boolean);
  }

  const editCell = (queue) => html`<button class="quiet small queue-edit" @click=${() => edit(queue.name)}>
    ${icon('edit')}<span class="visually-hidden">${t('queues.edit', { queue: queue.name })}</span>
  </button>`;

  function list() {
    const { page } = state;
    const isFiltered = state.search !== '' || state.selection !== 'all';
    return html`<section class="card queues-card" aria-busy=${state.isLoading && page === null}>
      ${table({
        label: t('ui.queues'),
        columns: page === null ? [] : columns(),
        rows: page?.queues ?? null,
        rowKey: (queue) => queue.id,
        sort: { by: state.sort, descending: state.descending },
        onSort: (sort, descending) => show({ sort, descending }),
        empty: isFiltered ? noMatch() : nothing,
      })}
      ${page === null ? nothing : pager({ offset: state.offset, limit: PAGE_SIZE, total: page.total, onPage: (offset) => show({ offset }) })}
    </section>`;
  }

  const noMatch = () => html`<div class="empty">
    <h2>${t('queues.none')}</h2>
    <p>${t('queues.none-text')}</p>
    <button @click=${() => show({ search: '', selection: 'all' })}>${t('queues.show-all')}</button>
  </div>`;

  function view() {
    const isEmpty = state.page?.total === 0 && state.search === '' && state.selection === 'all';
    const createButton = can('manage')
      ? html`<button class="primary" @click=${create}>${icon('plus')}${t('queues.create')}</button>`
      : nothing;
    return html`<div class="page">
      ${pageHead({ title: t('ui.queues'), actions: isEmpty ? nothing : createButton })} ${problem(state.error)}
      ${isEmpty
        ? html`<section class="card">${firstQueue(createButton)}</section>`
        : html`${toolbar(state, searchField, show)} ${state.error && state.page === null ? nothing : list()}`}
    </div>`;
  }

  return { title: () => t('ui.queues'), view };
}

function toolbar(state, searchField, show) {
  const matches = state.page === null ? '' : t('queues.matches', { n: count(state.page.total), one: state.page.total === 1 });
  return html`<div class="toolbar" role="search">
    ${searchField(t('ui.search-by-name'))}
    <label class="visually-hidden" for="queues-only">${t('queues.only')}</label>
    <select id="queues-only" @change=${(event) => show({ selection: event.target.value })}>
      ${SELECTIONS.map((name) => html`<option value=${name} ?selected=${name === state.selection}>${t(`queues.only.${name}`)}</option>`)}
    </select>
    <p class="soft number" role="status">${matches}</p>
  </div>`;
}

function nameCell(queue) {
  return html`<a class="queue-name" href=${href(`queues/${segment(queue.name)}`)}>${queue.name}</a>
    ${queue.transactional ? badge(t('queues.transactional'), 'half') : nothing}
    ${queue.is_dead_letter_queue ? badge(t('queues.is-dead-letter-queue'), 'dead') : nothing}
    ${queue.damaged > 0 ? badge(t('queues.damaged', { n: count(queue.damaged) }), 'bad') : nothing}`;
}

function quantity(value) {
  return html`<span class=${value === 0 ? 'zero' : ''} title=${count(value)}>${shortCount(value)}</span>`;
}

function ageCell(queue, now) {
  const oldest = queue.oldest_message_time;
  if (oldest === null) {
    return html`<span class="zero">–</span>`;
  }
  const seconds = Math.max(0, Math.round((Date.parse(now) - Date.parse(oldest)) / 1000));
  return html`<time datetime=${oldest} title=${time(oldest)}>${duration(seconds)}</time>`;
}

function rateCell(value, total) {
  const title = t('queues.total', { n: count(total) });
  return value === undefined
    ? html`<span class="zero" title=${title}>–</span>`
    : html`<span class=${value === 0 ? 'zero' : ''} title=${title}>${rate(value)}</span>`;
}

function firstQueue(createButton) {
  return emptyState({
    title: t('queues.first'),
    text: t('queues.first-text'),
    action: createButton,
    command: can('manage') ? 'cmq queue create orders\ncmq send orders "hello"' : null,
    python: can('manage') ? FIRST_PROGRAM() : null,
  });
}

const FIRST_PROGRAM = () => `import asyncio

from cmqd_client import connect


async def main() -> None:
    async with connect("${brokerUrl()}") as client:
        queue = await client.ensure_queue("orders")
        await queue.send(b"hello")


asyncio.run(main())
`;
