/** Dead letters: the dead-letter queues with their sources, the messages with origin and reason, and redrives. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, rate, relativeTime, time, visible } from '../../app/format.js';
import { limits, rangeOf } from '../../app/limits.js';
import { href } from '../../app/router.js';
import { can } from '../../app/session.js';
import { addTexts, hasText, t } from '../../app/text.js';
import { BodyContent } from '../../ui/body-content.js';
import { bodyState, bodyView } from '../../ui/body-view.js';
import { confirmAction, formDialog } from '../../ui/dialog.js';
import { numberField, selectField, textField } from '../../ui/form.js';
import { icon } from '../../ui/icon.js';
import { notice, problem } from '../../ui/notice.js';
import { card, emptyState, moment, pageHead, queueLink } from '../../ui/parts.js';
import { chainPager, table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { createQueueChoice } from './queue-choice.js';
import { messageFacts, previewOf, stateBadge } from './queue-message.js';
import texts from './dead-letters.text.js';
import queueTexts from './queue.text.js';

addTexts(texts);
addTexts(queueTexts);

const LOAD_MS = 5_000;
const PROGRESS_MS = 1_000;
const PAGE_MESSAGES = 20;
const NO_ORIGIN = '(no origin)';
const TARGET_FULL = /^target full: (.*)$/;

export function page({ query, update, signal, every }) {
  const choice = createQueueChoice({
    query,
    update,
    signal,
    selection: 'dead_letter_queues',
    sort: 'active',
    keys: {
      label: 'ui.dead-letters', queue: 'dead-letters.queue', search: 'dead-letters.search', none: 'dead-letters.none-found',
    },
    columns: () => [
      { title: t('dead-letters.count'), align: 'end', cell: (queue) => count(waitingIn(queue.counts)) },
      { title: t('dead-letters.in-flight'), align: 'end', cell: (queue) => count(queue.counts.in_flight) },
      { title: t('ui.oldest'), cell: (queue) => moment(queue.oldest_message_time) },
    ],
    createDetail: (name) => createDetail({ name, update, signal, onChange: () => choice.load() }),
  });

  function loadAll() {
    choice.load();
    choice.detail?.load();
  }

  addEventListener('cmqd:back', loadAll, { signal });
  every(LOAD_MS, () => Promise.all([choice.load(), choice.detail?.refresh()]));
  every(PROGRESS_MS, async () => {
    if (choice.detail?.isRunning) {
      await choice.detail.loadRedrive();
      update();
    }
  });

  function view() {
    const actions = html`<button @click=${loadAll}>${icon('refresh')}${t('ui.refresh')}</button>`;
    return html`<div class="page listed">
      ${pageHead({ title: t('ui.dead-letters'), actions })} ${problem(choice.error)}
      ${choice.isEmpty ? emptyView() : choice.view()}
      ${choice.detail ? choice.detail.view() : nothing}
    </div>`;
  }

  return { title: () => t('ui.dead-letters'), view };
}

function waitingIn({ active, in_flight: inFlight, delayed }) {
  return active + inFlight + delayed;
}

function emptyView() {
  return html`<section class="card">
    ${emptyState({
      title: t('dead-letters.empty'),
      text: t('dead-letters.empty-text'),
      command: 'cmq queue create orders-dead\ncmq queue set orders --dead-letter-queue orders-dead --dead-letter-max-receives 5',
      python:
        'await client.ensure_queue("orders-dead")\n' +
        'await client.queue("orders").set_attributes(dead_letter_queue="orders-dead", dead_letter_max_receives=5)',
    })}
  </section>`;
}

/** The chosen dead-letter queue: sources, redrive and messages. */
function createDetail({ name, update, signal, onChange }) {
  const path = `/queues/${segment(name)}`;
  const state = { info: null, redrive: null, error: null, messages: null, starts: ['0'], next: null, opened: new Map() };

  async function load() {
    try {
      await Promise.all([loadInfo(), loadRedrive(), loadMessages()]);
      state.error = null;
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      state.error = error.isAway && state.info !== null ? null : error;
    }
    update();
  }

  /** Read counts and sources; the messages stay as they are, because they may have megabytes. */
  async function loadInfo() {
    state.info = await api.get(path, {}, { signal });
  }

  async function loadRedrive() {
    const wasRunning = isRunning();
    try {
      state.redrive = await api.get(`${path}/redrive`, {}, { signal });
    } catch (error) {
      // A queue that was never redriven; a broker older than redrive_not_found says invalid_argument.
      if (!['redrive_not_found', 'invalid_argument'].includes(error.code)) {
        throw error;
      }
      state.redrive = null;
    }
    if (wasRunning && !isRunning()) {
      load();
      onChange();
    }
  }

  async function loadMessages() {
    const { starts } = state;
    const found = await api.get(`${path}/messages`, { max_messages: PAGE_MESSAGES, start: starts.at(-1) }, { signal });
    // Another page was asked for meanwhile.
    if (starts !== state.starts) {
      return;
    }
    state.messages = found.messages.map((message) => {
      const known = state.messages?.find((one) => one.id === message.id);
      return { ...message, content: known?.content ?? new BodyContent(message.body, message.encoding), body: undefined };
    });
    state.next = found.next_start;
  }

  async function go(starts) {
    Object.assign(state, { starts, messages: null });
    update();
    await loadMessages();
    update();
  }

  const isRunning = () => state.redrive !== null && state.redrive.end_time === null;

  // ------------------------------------------------------------------ redrive

  async function start() {
    const { max_per_second: rates } = await limits('StartRedrive');
    const isStarted = await formDialog({
      title: `${t('dead-letters.start')}: ${name}`,
      signal,
      values: { to: 'origin', target: '', max_per_second: null },
      fields: (form) => html`<p>${t('dead-letters.start-text', { count: count(waitingIn(state.info.counts)) })}</p>
        ${selectField({
          form,
          name: 'to',
          label: t('dead-letters.to'),
          options: ['origin', 'target'].map((value) => ({ value, label: t(`dead-letters.to.${value}`) })),
        })}
        ${form.values.to === 'target' ? textField({ form, name: 'target', label: t('ui.queue'), required: true }) : nothing}
        ${numberField({
          form, name: 'max_per_second', label: t('dead-letters.rate'), hint: t('dead-letters.rate-text'), required: false, ...rangeOf(rates),
        })}`,
      button: t('dead-letters.start'),
      async submit({ to, target, ...asked }) {
        const body = { ...asked, target: to === 'target' ? target.trim() : null };
        state.redrive = await api.post(`${path}/redrive`, body);
        return true;
      },
    });
    if (isStarted) {
      toast(t('dead-letters.began-toast'));
      update();
      onChange();
    }
  }

  async function cancel() {
    const isDone = await confirmAction({
      title: t('dead-letters.cancel-title', { queue: name }),
      text: t('dead-letters.cancel-text'),
      button: t('dead-letters.cancel'),
      signal,
      async action() {
        state.redrive = await api.delete(`${path}/redrive`);
      },
    });
    if (isDone) {
      toast(t('dead-letters.cancelled-toast'));
      load();
      onChange();
    }
  }

  function redriveView() {
    const { redrive, info } = state;
    const ownTarget = info.attributes.dead_letter_queue;
    const canStart = can('manage') && !isRunning() && !ownTarget && waitingIn(info.counts) > 0;
    const actions = html`
      ${canStart ? html`<button class="primary" @click=${start}>${icon('rewind')}${t('dead-letters.start')}</button>` : nothing}
      ${can('manage') && isRunning() ? html`<button @click=${cancel}>${t('dead-letters.cancel')}</button>` : nothing}`;
    return card(
      t('dead-letters.redrive'),
      html`<div class="redrive">
        ${ownTarget ? html`<p class="soft">${t('dead-letters.own-target')}</p>` : nothing}
        ${redrive === null ? html`<p class="soft">${t('dead-letters.never')}</p>` : isRunning() ? running(redrive) : ended(redrive)}
        ${redrive === null ? nothing : missing(redrive)}
      </div>`,
      { actions },
    );
  }

  function running(redrive) {
    const { moved, remaining, reason, target, max_per_second: most } = redrive;
    const progress = t('dead-letters.progress', { moved: count(moved), all: count(moved + remaining) });
    const facts = [
      target === null ? t('dead-letters.to-origins') : t('dead-letters.to-text', { queue: target }),
      most === null ? null : t('dead-letters.progress-rate', { rate: rate(most) }),
      t('dead-letters.begun', { time: relativeTime(redrive.start_time) }),
    ].filter(Boolean);
    return html`<p><strong role="status">${t('dead-letters.running')}</strong> <span class="soft">${facts.join(' · ')}</span></p>
      <progress max=${Math.max(moved + remaining, 1)} .value=${moved} aria-label=${progress}></progress>
      <p class="number">${progress}</p>
      ${reason ? notice('warning', t('dead-letters.paused', { reason: pauseText(reason) })) : nothing}`;
  }

  function ended({ reason, moved, end_time: end }) {
    const key = `dead-letters.last.${reason}`;
    return html`<p role="status">${hasText(key) ? t(key, { moved: count(moved), time: relativeTime(end) }) : reason}</p>`;
  }

  function missing({ missing_origins: origins }) {
    const entries = Object.entries(origins);
    return entries.length === 0
      ? nothing
      : html`<p>${t('dead-letters.stayed')}</p>
          <ul class="plain-list">
            ${entries.map(
              ([queue, n]) => html`<li>
                ${queue === NO_ORIGIN ? t('dead-letters.missing-none', { n: count(n) }) : t('dead-letters.missing', { n: count(n), queue })}
              </li>`,
            )}
          </ul>`;
  }

  // ------------------------------------------------------------------ messages

  function toggle(message) {
    if (!state.opened.delete(message.id)) {
      state.opened.set(message.id, bodyState(message.content));
    }
    update();
  }

  function messagesView() {
    const { messages, starts, next } = state;
    const isEmpty = messages?.length === 0 && starts.length === 1 && next === null;
    return card(
      t('dead-letters.messages', { queue: name }),
      html`${isEmpty
          ? emptyState({ title: t('dead-letters.none'), text: t('dead-letters.none-text') })
          : table({
              label: t('dead-letters.messages', { queue: name }),
              rows: messages,
              rowKey: (message) => message.id,
              columns: [
                { title: t('ui.message'), cell: openButton },
                { title: t('dead-letters.origin'), cell: ({ origin }) => originView(origin) },
                { title: t('ui.reason'), cell: ({ origin }) => reasonView(origin) },
                { title: t('ui.body'), cell: (message) => previewOf(message.content) },
                { title: t('dead-letters.moved'), cell: (message) => moment(message.enqueue_time) },
                { title: t('ui.state'), cell: (message) => stateBadge(message.state) },
              ],
              detail: (message) => (state.opened.has(message.id) ? messageView(message) : nothing),
            })}
        ${chainPager({ starts, next, onPage: go })}`,
    );
  }

  function openButton(message) {
    return html`<button class="quiet small open-message" aria-expanded=${state.opened.has(message.id)} @click=${() => toggle(message)}>
      ${icon('right')}<code>${message.id}</code>
    </button>`;
  }

  function messageView(message) {
    return html`<div class="message">
      ${messageFacts(message)}
      ${bodyView({ state: state.opened.get(message.id), update, label: `${t('ui.body')} ${message.id}` })}
    </div>`;
  }

  function view() {
    return html`<section id="chosen-queue" class="dead-letter-queue" aria-label=${name}>
      <div class="dead-letter-head">
        <h2 tabindex="-1">${name}</h2>
        ${state.info === null ? nothing : sourcesView(state.info.dead_letter_sources)}
        <a href=${href(`queues/${segment(name)}`)}>${t('dead-letters.open-queue')}</a>
      </div>
      ${problem(state.error)}
      ${state.info !== null ? html`${redriveView()} ${messagesView()}` : state.error ? nothing : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`}
    </section>`;
  }

  return {
    get isRunning() {
      return isRunning();
    },
    load,
    async refresh() {
      await Promise.all([loadInfo(), loadRedrive()]);
      update();
    },
    loadRedrive,
    view,
  };
}

function sourcesView(sources) {
  return html`<p class="soft">
    ${t('dead-letters.sources')}:
    ${sources.length === 0
      ? t('dead-letters.no-sources')
      : sources.map((queue, index) => html`${index > 0 ? ', ' : nothing}${queueLink(queue)}`)}
  </p>`;
}

function pauseText(reason) {
  const [, queue] = TARGET_FULL.exec(reason) ?? [];
  return queue === undefined ? reason : t('dead-letters.target-full', { queue });
}

function originView(origin) {
  return origin === null
    ? html`<span class="soft">${t('dead-letters.no-origin')}</span>`
    : queueLink(origin.queue);
}

/** Why a message is a dead letter, in the words of its consumer where there are such words. */
function reasonView(origin) {
  if (origin === null) {
    return html`<span class="soft">–</span>`;
  }
  const key = `dead-letters.reason.${origin.reason}`;
  const reason = hasText(key) ? t(key, { n: count(origin.receive_count) }) : origin.reason;
  return origin.rejection ? html`<span>${reason}: <span class="rejection">${visible(origin.rejection)}</span></span>` : reason;
}
