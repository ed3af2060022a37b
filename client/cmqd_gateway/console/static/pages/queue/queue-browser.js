/** The messages of a queue by state: pages of a peek, a search in the bodies of a page, and a message in full. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api } from '../../app/api.js';
import { count, shortCount } from '../../app/format.js';
import { href, replaceQuery } from '../../app/router.js';
import { t } from '../../app/text.js';
import { BodyContent, marked } from '../../ui/body-content.js';
import { bodyState, bodyView, findInBody, showMatch } from '../../ui/body-view.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { card, emptyState, moment } from '../../ui/parts.js';
import { chainPager, table } from '../../ui/table.js';
import { messageFacts, previewOf, stateBadge } from './queue-message.js';

const STATES = ['active', 'in_flight', 'delayed', 'half', 'rewindable'];
const PAGE_MESSAGES = 20;
const CONTEXT = 60;

export function createBrowser({ name, path, query, update, signal }) {
  const state = {
    chosen: STATES.includes(query.get('state')) ? query.get('state') : 'all',
    /** `start` of each page up to the current one. */
    starts: ['0'],
    next: null,
    messages: null,
    error: null,
    isLoading: false,
    counts: null,
    search: '',
    opened: new Map(),
  };
  let loads = 0;

  async function load() {
    loads += 1;
    const load = loads;
    state.isLoading = true;
    update();
    try {
      const states = state.chosen === 'all' ? undefined : [state.chosen];
      const page = await api.get(
        `${path}/messages`,
        { max_messages: PAGE_MESSAGES, start: state.starts.at(-1), states },
        { signal },
      );
      // A page that was asked for earlier must not replace the page of a later choice.
      if (load !== loads) {
        return;
      }
      state.messages = page.messages.map(withContent);
      state.next = page.next_start;
      state.error = null;
      const ids = new Set(page.messages.map((message) => message.id));
      [...state.opened.keys()].filter((id) => !ids.has(id)).forEach((id) => state.opened.delete(id));
    } catch (error) {
      if (signal.aborted || load !== loads) {
        return;
      }
      state.error =
        error.code === 'queue_not_found' || (error.isAway && state.messages !== null) ? null : error;
    }
    state.isLoading = false;
    update();
  }

  /**
   * Take new counts of the queue: a list that is shorter than a page follows them, as the first message of a newcomer's
   * queue. A longer list, a search and an opened message stay as they are under the eyes of their reader.
   */
  function follow(counts) {
    const text = JSON.stringify(counts);
    const isNew = state.counts !== null && state.counts !== text;
    state.counts = text;
    const isShort = state.messages !== null && state.messages.length < PAGE_MESSAGES && state.starts.length === 1;
    if (isNew && isShort && state.opened.size === 0 && state.search === '' && !state.isLoading) {
      load();
    }
  }

  /** A message with its body as content; of a message that is on the page already, the content stays. */
  function withContent(message) {
    const known = state.messages?.find((one) => one.id === message.id);
    return {
      ...message,
      content: known?.content ?? new BodyContent(message.body, message.encoding),
      body: undefined,
    };
  }

  function choose(chosen) {
    Object.assign(state, { chosen, starts: ['0'], next: null, messages: null });
    state.opened.clear();
    replaceQuery({ state: chosen === 'all' ? null : chosen });
    load();
  }

  function go(starts) {
    Object.assign(state, { starts, messages: null });
    load();
  }

  function toggle(message) {
    if (!state.opened.delete(message.id)) {
      const body = bodyState(message.content);
      state.opened.set(message.id, body);
      if (state.search !== '') {
        findInBody(body, state.search);
        showMatch(body);
      }
    }
    update();
  }

  /** Search the bodies of the page; messages without the text are left out of the table. */
  function setSearch(text) {
    state.search = text;
    for (const body of state.opened.values()) {
      findInBody(body, text);
    }
    update();
  }

  function found() {
    return state.messages
      .map((message) => ({
        message,
        ranges: message.content.find(state.search, message.content.readingMode),
      }))
      .filter(({ ranges }) => state.search === '' || ranges.length > 0);
  }

  function view(info) {
    return html`<div id="messages">${card(
      t('queue.messages'),
      html`
      <div class="browse">
        ${stateChoice(info)}
        <p class="soft hint">${state.chosen === 'all' ? t('queue.browse-text') : t(`queue.state-text.${state.chosen}`)}
          ${state.chosen === 'half' ? html`<a href=${href('half-messages', { queue: name })}>${t('queue.half-page')}</a>` : nothing}
        </p>
        ${problem(state.error)}
        ${state.messages !== null && state.messages.length > 0 ? searchView() : nothing}
      </div>
      ${state.error && state.messages === null ? nothing : listView()}
      ${pages()}
    `,
      {
        actions: html`<button class="small" aria-busy=${state.isLoading} @click=${load}>${icon('refresh')}${t('ui.refresh')}</button>`,
      },
    )}</div>`;
  }

  function stateChoice({ attributes, counts }) {
    const shown = STATES.filter(
      (each) =>
        counts[each] > 0 ||
        state.chosen === each ||
        !['half', 'rewindable'].includes(each) ||
        (each === 'half' ? attributes.transactional : attributes.rewind > 0),
    );
    return html`<div class="choice" role="group" aria-label=${t('queue.states')}>
      ${['all', ...shown].map(
        (
          each,
        ) => html`<button class="small" aria-pressed=${each === state.chosen} @click=${() => choose(each)}>
          ${t(`queue.state.${each}`)}${each === 'all' ? nothing : html` <span class="soft number">${shortCount(counts[each])}</span>`}
        </button>`,
      )}
    </div>`;
  }

  function searchView() {
    const results = state.search === '' ? [] : found();
    const matches = results.reduce((total, { ranges }) => total + ranges.length, 0);
    const values = {
      messages: count(results.length),
      all: count(state.messages.length),
      matches: count(matches),
    };
    return html`<div class="toolbar" role="search">
      <label class="visually-hidden" for="message-search">${t('queue.find')}</label>
      <input
        id="message-search" type="search" autocomplete="off" spellcheck="false" placeholder=${t('queue.find')} .value=${state.search}
        @input=${(event) => setSearch(event.target.value)}
      />
      <span class="soft number" role="status">${
        state.search === ''
          ? nothing
          : results.length === 0
            ? t('queue.found-none')
            : t('queue.found', values)
      }</span>
    </div>`;
  }

  function listView() {
    if (state.messages !== null && state.messages.length === 0) {
      return emptyView();
    }
    const rows = state.messages === null ? null : found();
    if (rows !== null && rows.length === 0) {
      return nothing;
    }
    return table({
      label: t('queue.messages'),
      rows,
      rowKey: ({ message }) => message.id,
      columns: [
        { name: 'id', title: t('ui.message'), cell: ({ message }) => openButton(message) },
        { name: 'state', title: t('ui.state'), cell: ({ message }) => stateBadge(message.state) },
        {
          name: 'body',
          title: t('ui.body'),
          cell: ({ message, ranges }) => excerpt(message.content, ranges),
        },
        { name: 'sent', title: t('queue.sent'), cell: ({ message }) => moment(message.enqueue_time) },
        {
          name: 'receives',
          title: t('queue.receives'),
          align: 'end',
          cell: ({ message }) => count(message.receive_count),
        },
      ],
      detail: ({ message }) => (state.opened.has(message.id) ? detailView(message) : nothing),
    });
  }

  function openButton(message) {
    return html`<button class="quiet small open-message" aria-expanded=${state.opened.has(message.id)} @click=${() => toggle(message)}>
      ${icon('right')}<code>${message.id}</code>
    </button>`;
  }

  function detailView(message) {
    const label = `${t('ui.body')} ${message.id}`;
    return html`<div class="message-full">
      ${messageFacts(message)} ${bodyView({ state: state.opened.get(message.id), update, label })}
    </div>`;
  }

  function emptyView() {
    if (state.next !== null || state.starts.length > 1) {
      return emptyState({ title: t('queue.empty-page'), text: t('queue.empty-page-text') });
    }
    if (state.chosen !== 'all') {
      return emptyState({ title: t('queue.none-of-state'), text: t(`queue.state-text.${state.chosen}`) });
    }
    return emptyState({
      title: t('queue.empty'),
      text: t('queue.empty-text'),
      command: `cmq send ${name} 'hello'`,
      python: `await client.queue("${name}").send(b"hello", headers={"source": "test"})`,
    });
  }

  function pages() {
    const { starts, next } = state;
    return chainPager({ starts, next, onPage: go, isLoading: state.isLoading });
  }

  return {
    get chosen() {
      return state.chosen;
    },
    choose,
    follow,
    load,
    view,
  };
}

/** Return the start of a body, or the surroundings of the first match of a search. */
function excerpt(content, ranges) {
  if (ranges.length === 0) {
    return previewOf(content);
  }
  const whole = content.textOf(content.readingMode);
  const from = Math.max(0, ranges[0][0] - CONTEXT);
  const text = whole.slice(from, ranges[0][1] + CONTEXT);
  const parts = marked(text, from, ranges).map((part) =>
    part.range < 0 ? part.text : html`<mark>${part.text}</mark>`,
  );
  return html`<code class="excerpt">${from > 0 ? '…' : nothing}${parts}${from + text.length < whole.length ? '…' : nothing}</code>`;
}
