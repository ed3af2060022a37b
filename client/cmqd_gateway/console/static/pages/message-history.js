/** The life of a message: its events in the order of the log, and the queues that it was in. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../app/api.js';
import { bytes, count, time, visible } from '../app/format.js';
import { href, replaceQuery } from '../app/router.js';
import { addTexts, hasText, t } from '../app/text.js';
import { icon } from '../ui/icon.js';
import { problem } from '../ui/notice.js';
import { badge, card, pageHead, queueLink } from '../ui/parts.js';
import { table } from '../ui/table.js';
import texts from './message-history.text.js';
import queueTexts from './queue/queue.text.js';

addTexts(texts);
addTexts(queueTexts);

const ID = /^Msg-[0-9a-f]{16}$/;
/** Name and value of a header. */
const HEADER = /^[^=]+=/;
/** Names of topics: these events stand in a topic, and not in a queue. */
const OF_TOPICS = new Set(['published', 'delivered', 'delivery_failed', 'delivery_dropped']);
/** The name of a queue or topic that the key may not see. */
const HIDDEN = '(hidden)';

export function page({ query, update, signal }) {
  const state = { id: query.get('message') ?? '', fault: null, found: null, history: null, error: null, isBusy: false };

  async function load() {
    const id = state.id.trim();
    replaceQuery({ message: id });
    state.fault = ID.test(id) || HEADER.test(id) ? null : t('history.wrong');
    if (state.fault) {
      update();
      return;
    }
    state.found = null;
    await (ID.test(id) ? read(id) : search(id));
  }

  async function read(id) {
    await ask(async () => ({ history: await api.get(`/messages/${segment(id)}/history`, {}, { signal }) }));
  }

  async function search(header) {
    await ask(async () => ({ found: await api.get('/messages', { header }, { signal }), history: null }));
    if (state.found?.messages.length === 1 && !state.error) {
      await read(state.found.messages[0].id);
    }
  }

  async function ask(request) {
    state.isBusy = true;
    update();
    try {
      Object.assign(state, await request(), { error: null });
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      Object.assign(state, { error, found: null, history: null });
    }
    state.isBusy = false;
    update();
  }

  if (state.id) {
    load();
  }
  addEventListener('cmqd:back', () => state.history && read(state.history.id), { signal });

  function view() {
    const actions = state.history
      ? html`<button aria-busy=${state.isBusy} @click=${() => read(state.history.id)}>${icon('refresh')}${t('ui.refresh')}</button>`
      : nothing;
    return html`<div class="page topics-page">
      ${pageHead({ title: t('history.title'), actions })}
      <p class="soft page-intro">${t('history.intro')}</p>
      ${card(t('history.find'), html`<div class="stack">${form()} ${problem(state.error)}</div>`)}
      ${state.found ? foundView(state.found, read) : nothing}
      ${state.history ? html`${placesView(state.history)} ${eventsView(state.history)}` : nothing}
    </div>`;
  }

  function form() {
    return html`<form
      class="lookup" novalidate
      @submit=${(event) => {
        event.preventDefault();
        load();
      }}
    >
      <div class="field">
        <label for="history-id">${t('history.id')}</label>
        <input
          id="history-id" class="code-input" placeholder="Msg-0000000000000001" autocomplete="off" spellcheck="false"
          aria-invalid=${state.fault ? 'true' : nothing} aria-describedby=${state.fault ? 'history-fault' : nothing}
          .value=${live(state.id)}
          @input=${(event) => {
            Object.assign(state, { id: event.target.value, fault: null });
            update();
          }}
        />
        ${state.fault ? html`<p class="fault" id="history-fault">${state.fault}</p>` : nothing}
      </div>
      <button type="submit" ?disabled=${state.isBusy}>${t('history.show')}</button>
    </form>`;
  }

  return { title: () => t('history.title'), view };
}

function foundView(found, read) {
  const columns = [
    { title: t('history.sent'), cell: (message) => time(message.sent_time) },
    { title: t('history.queue'), cell: (message) => message.source },
    {
      title: t('ui.message'),
      cell: (message) => html`<button class="quiet small message-id" @click=${() => read(message.id)}>${message.id}</button>`,
    },
  ];
  const rows = found.missing.map(({ first_lsn: first, last_lsn: last }) => t('history.rows', { first, last }));
  return card(
    t('history.found', { time: time(found.from_time) }),
    html`${rows.length > 0 ? html`<p class="soft">${t('history.missing', { rows: rows.join(', ') })}</p>` : nothing}
      ${found.is_cut ? html`<p class="soft">${t('history.cut', { count: count(found.messages.length) })}</p>` : nothing}
      ${found.messages.length > 0
        ? table({ label: t('history.find'), columns, rows: found.messages, rowKey: (message) => message.id })
        : html`<p>${t('history.none')}</p>`}`,
  );
}

function placesView(history) {
  const columns = [
    { title: t('ui.queue'), cell: (place) => nameView(place.queue, false) },
    { title: t('ui.state'), cell: (place) => html`${stateView(place.state)} ${certainty(place)}` },
    { title: t('history.since'), cell: (place) => time(place.since_time) },
    { title: t('history.until'), cell: (place) => (place.until_time ? time(place.until_time) : '–') },
    { title: t('ui.message'), cell: (place) => html`<code class="message-id">${place.id}</code>` },
  ];
  return card(t('history.places'), table({ label: t('history.places'), columns, rows: history.places, rowKey: (row) => row.id }));
}

function eventsView(history) {
  const columns = [
    { title: t('history.time'), cell: (event) => time(event.time) },
    { title: t('history.queue'), cell: (event) => nameView(event.queue, OF_TOPICS.has(event.kind)) },
    { title: t('history.event'), cell: (event) => html`${kindView(event.kind)} ${certainty(event)}` },
    { title: t('history.details'), cell: detailsView },
    { title: t('ui.message'), cell: (event) => (event.id ? html`<code class="message-id">${event.id}</code>` : '–') },
  ];
  const rows = history.events.map((event, index) => ({ ...event, index }));
  return card(
    t('history.events'),
    html`${history.left_out > 0 ? html`<p class="soft">${t('history.left-out', { count: count(history.left_out) })}</p>` : nothing}
      ${table({ label: t('history.events'), columns, rows, rowKey: (row) => row.index })}
      <p class="soft">${t('history.as-of', { row: count(history.last_lsn), time: time(history.last_time) })}</p>`,
  );
}

/** Return the facts of an event in a line. */
function detailsView(event) {
  const facts = [
    event.client_key ? clientView(event) : null,
    event.size > 0 ? bytes(event.size) : null,
    event.from_queue ? t('history.moved', { queue: event.from_queue }) : null,
    event.subscription ? t('history.subscription', { name: event.subscription }) : null,
    event.schedule ? t('history.schedule', { name: event.schedule }) : null,
    event.receive_count > 0 ? t('history.attempts', { count: count(event.receive_count) }) : null,
    event.until_time ? t('history.until-time', { time: time(event.until_time) }) : null,
    event.counted ? null : t('history.uncounted'),
    event.last_lsn > 0 ? t('history.rows', { first: count(event.first_lsn), last: count(event.last_lsn) }) : null,
    event.text ? visible(event.text) : null,
  ].filter(Boolean);
  return facts.length === 0 ? '–' : facts.map((fact, index) => html`${index > 0 ? ' · ' : ''}${fact}`);
}

/** Return the client of an event: its name is its own word, the key beside the name is proved. */
function clientView({ client_name: name, client_key: key, client_host: host, client_stated_by: peer }) {
  const client = name === '' ? key : `"${visible(name)}" (${key})`;
  if (host === '') {
    return t('history.by', { client });
  }
  return peer === '' ? t('history.by-host', { client, host }) : t('history.by-stated-host', { client, host, peer });
}

function nameView(name, isTopic) {
  if (name === '' || name === HIDDEN) {
    return name || '–';
  }
  return isTopic ? html`<a href=${href(`topics/${segment(name)}`)}>${name}</a>` : queueLink(name);
}

function kindView(kind) {
  const key = `history.kind.${kind}`;
  return hasText(key) ? t(key) : kind;
}

function stateView(state) {
  const key = `queue.state.${state}`;
  return hasText(key) ? badge(t(key), state === 'in_flight' ? 'in-flight' : state) : badge(kindView(state));
}

function certainty({ certain }) {
  return certain ? nothing : html`<span class="soft">${t('history.uncertain')}</span>`;
}
