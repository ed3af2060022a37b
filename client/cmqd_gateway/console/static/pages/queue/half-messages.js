/** Half messages: the undecided messages of transactional queues, their checks, and decisions by hand. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, duration } from '../../app/format.js';
import { can } from '../../app/session.js';
import { addTexts, hasText, t } from '../../app/text.js';
import { BodyContent } from '../../ui/body-content.js';
import { bodyState, bodyView } from '../../ui/body-view.js';
import { confirmAction } from '../../ui/dialog.js';
import { icon } from '../../ui/icon.js';
import { problem } from '../../ui/notice.js';
import { card, emptyState, moment, pageHead } from '../../ui/parts.js';
import { chainPager, table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { createQueueChoice } from './queue-choice.js';
import { previewOf } from './queue-message.js';
import texts from './half-messages.text.js';
import queueTexts from './queue.text.js';

addTexts(texts);
addTexts(queueTexts);

const LOAD_MS = 5_000;
const PAGE_MESSAGES = 20;

export function page({ query, update, signal, every }) {
  const choice = createQueueChoice({
    query,
    update,
    signal,
    selection: 'transactional',
    sort: 'half',
    keys: {
      label: 'half-messages.queue', queue: 'half-messages.queue', search: 'half-messages.search', none: 'half-messages.none-found',
    },
    columns: () => [
      { title: t('half-messages.undecided'), align: 'end', cell: (queue) => count(queue.counts.half) },
      { title: t('half-messages.active'), align: 'end', cell: (queue) => count(queue.counts.active) },
    ],
    createDetail: (name) => createDetail({ name, update, signal, onChange: () => choice.load() }),
  });

  async function loadAll() {
    await Promise.all([choice.load(), choice.detail?.load()]);
  }

  addEventListener('cmqd:back', loadAll, { signal });
  every(LOAD_MS, loadAll);

  function view() {
    const actions = html`<button @click=${loadAll}>${icon('refresh')}${t('half-messages.refresh')}</button>`;
    return html`<div class="page listed">
      ${pageHead({ title: t('half-messages.title'), actions })} ${problem(choice.error)}
      ${choice.isEmpty ? emptyView() : html`<p class="soft page-intro">${t('half-messages.intro')}</p>${choice.view()}`}
      ${choice.detail ? choice.detail.view() : nothing}
    </div>`;
  }

  return { title: () => t('half-messages.title'), view };
}

function emptyView() {
  return html`<section class="card">
    ${emptyState({
      title: t('half-messages.empty'),
      text: t('half-messages.empty-text'),
      command: 'cmq queue create payments --transactional',
      python:
        'await client.ensure_queue("payments", transactional=True)\n' +
        'async with TransactionProducer(client.queue("payments"), checker=was_it_charged) as producer:\n' +
        '    await producer.send(b"42 apples", charged, order)',
    })}
  </section>`;
}

/** The undecided half messages of the chosen queue. */
function createDetail({ name, update, signal, onChange }) {
  const path = `/queues/${segment(name)}`;
  const state = { info: null, messages: null, contents: new Map(), error: null, starts: ['0'], next: null, opened: new Map() };

  async function load() {
    try {
      state.info = await api.get(path, {}, { signal });
      await loadMessages();
      state.error = null;
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      state.error = error.isAway && state.messages !== null ? null : error;
    }
    update();
  }

  async function loadMessages() {
    const { starts } = state;
    const [start, max_messages] = [starts.at(-1), PAGE_MESSAGES];
    const list = await api.get(`${path}/half-messages`, { start, max_messages }, { signal });
    // The list has no bodies; a peek at the same part of the queue has. Bodies never change, so known ones are kept.
    if (list.messages.some(({ id }) => !state.contents.has(id))) {
      await loadBodies({ start, max_messages, states: ['half'] });
    }
    // Another page was asked for meanwhile.
    if (starts !== state.starts) {
      return;
    }
    state.messages = list.messages;
    state.next = list.next_start;
  }

  async function loadBodies(part) {
    try {
      const { messages } = await api.get(`${path}/messages`, part, { signal });
      state.contents = new Map(
        messages.map(({ id, body, encoding }) => [id, state.contents.get(id) ?? new BodyContent(body, encoding)]),
      );
    } catch (error) {
      // Without bodies the list is of use too.
      if (signal.aborted || error.isAway) {
        throw error;
      }
    }
  }

  async function go(starts) {
    Object.assign(state, { starts, messages: null });
    state.opened.clear();
    update();
    await load();
  }

  function toggle({ id }) {
    if (!state.opened.delete(id)) {
      state.opened.set(id, bodyState(state.contents.get(id)));
    }
    update();
  }

  async function decide({ id }, decision) {
    const content = state.contents.get(id);
    const isDone = await confirmAction({
      title: t(`half-messages.${decision}-title`, { id }),
      text: html`<p>${t(`half-messages.${decision}-text`)}</p>
        ${content ? html`<p class="soft">${t('half-messages.body-text')}</p><p>${previewOf(content)}</p>` : nothing}`,
      button: t(`half-messages.${decision}`),
      danger: decision === 'rollback',
      signal,
      action: () => api.post(`${path}/half-messages/decide`, { message_id: id, decision }),
    });
    if (isDone) {
      toast(t(decision === 'commit' ? 'half-messages.committed-toast' : 'half-messages.rolled-back-toast', { id }));
      await Promise.all([load(), onChange()]);
    }
  }

  function view() {
    const { info, messages, starts, next } = state;
    if (messages === null) {
      return html`${problem(state.error)} ${state.error ? nothing : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`}`;
    }
    const isEmpty = messages.length === 0 && starts.length === 1 && next === null;
    const { attributes } = info;
    const rules = {
      first: duration(attributes.first_check), most: count(attributes.max_checks), retention: duration(attributes.retention),
    };
    return card(
      t('half-messages.list', { queue: name }),
      html`<p class="soft hint">${t('half-messages.rules', rules)}</p>
        ${problem(state.error)}
        ${isEmpty ? emptyState({ title: t('half-messages.none'), text: t('half-messages.none-text') }) : listView(attributes)}
        ${chainPager({ starts, next, onPage: go })}`,
    );
  }

  function listView(attributes) {
    const columns = [
      { title: t('half-messages.message'), cell: messageCell },
      { title: t('half-messages.body'), cell: ({ id }) => (state.contents.has(id) ? previewOf(state.contents.get(id)) : nothing) },
      { title: t('half-messages.sent'), cell: ({ enqueue_time: sent }) => moment(sent) },
      {
        title: t('half-messages.checks'),
        align: 'end',
        cell: ({ checks }) => html`<span class="one-line">${t('half-messages.checks-of', { checks: count(checks), most: count(attributes.max_checks) })}</span>`,
      },
      { title: t('half-messages.answer'), cell: answer },
      { title: t('half-messages.next'), cell: nextCheck },
    ];
    if (can('send')) {
      columns.push({ title: t('half-messages.actions'), cell: decisionButtons, isActions: true });
    }
    return table({
      label: t('half-messages.list', { queue: name }),
      rows: state.messages,
      rowKey: ({ id }) => id,
      columns,
      detail: (message) => (state.opened.has(message.id) ? bodyOf(message) : nothing),
    });
  }

  function messageCell(message) {
    return state.contents.has(message.id)
      ? html`<button class="quiet small open-message" aria-expanded=${state.opened.has(message.id)} @click=${() => toggle(message)}>
          ${icon('right')}<code>${message.id}</code>
        </button>`
      : html`<code>${message.id}</code>`;
  }

  function bodyOf({ id }) {
    return html`<div class="message">
      ${bodyView({ state: state.opened.get(id), update, label: `${t('half-messages.body')} ${id}` })}
    </div>`;
  }

  function decisionButtons(message) {
    const hidden = html`<span class="visually-hidden"> ${message.id}</span>`;
    return html`<span class="row-actions">
      <button class="small" @click=${() => decide(message, 'commit')}>${t('half-messages.commit')}${hidden}</button>
      <button class="small" @click=${() => decide(message, 'rollback')}>${t('half-messages.rollback')}${hidden}</button>
    </span>`;
  }

  return { load, view };
}

function answer({ checks, last_answer: last, last_check_time: checked }) {
  if (checks === 0) {
    return html`<span class="soft">${t('half-messages.not-asked')}</span>`;
  }
  const key = `half-messages.answer.${last || 'none'}`;
  return html`<span>${hasText(key) ? t(key) : last} ${checked ? html`<span class="soft">${moment(checked)}</span>` : nothing}</span>`;
}

function nextCheck({ next_check_time: next }) {
  if (next === null) {
    return html`<span class="undecidable">${t('half-messages.no-next')}</span>`;
  }
  return Date.parse(next) < Date.now() ? html`<span class="soft">${t('half-messages.due')}</span>` : moment(next);
}
