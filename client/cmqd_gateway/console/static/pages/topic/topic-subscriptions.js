/** The subscriptions of a topic: list, details, and the messages in delivery of each. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count, time, visible } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { replaceQuery } from '../../app/router.js';
import { can } from '../../app/session.js';
import { t } from '../../app/text.js';
import { attributeFact, attributesIn } from '../../ui/attributes.js';
import { BodyContent } from '../../ui/body-content.js';
import { bodyState, bodyView } from '../../ui/body-view.js';
import { confirmAction } from '../../ui/dialog.js';
import { icon } from '../../ui/icon.js';
import { notice, problem } from '../../ui/notice.js';
import { badge, emptyState, factList, moment, queueLink } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { pager, table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { createSubscription, dropWaiting, editSubscription, endSubscription, rotateSecret } from './subscription-forms.js';
import { cellCount } from './topic-forms.js';
import { chips, deliveryState, labelsOf } from './topic-labels.js';

const PAGE = 25;
const MESSAGES = 10;

/** Return true for an attribute of the details: filters and state have columns, and only a URL has a format. */
function isInDetails(name, info) {
  const others = ['filter_tags', 'binding_keys', 'paused', info.protocol === 'queue' ? 'content_format' : null];
  return !others.includes(name) && info[name] !== undefined;
}

/**
 * Make the list of subscriptions of a topic.
 *
 * @param onChange called after a change of a subscription.
 * @param onReport called with the id of a message whose deliveries are wanted.
 * @returns `{ view(topic), refresh() }`
 */
export function createSubscriptions({ topicName, path, query, update, signal, onChange, onReport }) {
  const state = {
    search: query.get('search') ?? '',
    offset: Number(query.get('offset')) || 0,
    total: 0,
    rows: null,
    declared: null,
    error: null,
    /** Details by name: filters, state and errors, which the list does not have. */
    infos: new Map(),
    open: query.get('subscription'),
    /** Bodies and headers of the open messages, by id. */
    bodies: new Map(),
    /** Page of messages of the open subscription. */
    messages: null,
    messagesError: null,
    start: '0',
  };
  let latest = 0;
  const pathOf = (name) => `${path}/subscriptions/${segment(name)}`;

  async function load() {
    const number = (latest += 1);
    try {
      state.declared ??= attributesIn(await limits('SubscriptionChanges'));
      const listing = { search: state.search, offset: state.offset, limit: PAGE };
      const page = await api.get(`${path}/subscriptions`, listing, { signal });
      // Filters change by hand alone; the open subscription and the ones with failures are read anew each time.
      const names = page.subscriptions
        .filter((row) => row.name === state.open || row.in_retry > 0 || !state.infos.has(row.name))
        .map((row) => row.name);
      await Promise.all(names.map(loadInfo));
      if (number !== latest) {
        return;
      }
      Object.assign(state, { total: page.total, rows: page.subscriptions, error: null });
    } catch (error) {
      if (signal.aborted || number !== latest) {
        return;
      }
      if (!error.isAway || state.rows === null) {
        state.error = error;
      }
    }
    update();
  }

  async function loadInfo(name) {
    try {
      state.infos.set(name, await api.get(pathOf(name), {}, { signal }));
    } catch (error) {
      if (error.code !== 'subscription_not_found') {
        throw error;
      }
      state.infos.delete(name);
    }
  }

  async function loadMessages() {
    const { open: name, start } = state;
    if (!name) {
      return;
    }
    try {
      const listing = { max_messages: MESSAGES, start, bodies: false };
      const messages = await api.get(`${pathOf(name)}/messages`, listing, { signal });
      // The messages of another subscription, or of another page, were asked for meanwhile.
      if (name === state.open && start === state.start) {
        Object.assign(state, { messages, messagesError: null });
      }
    } catch (error) {
      if (signal.aborted || name !== state.open || error.isAway) {
        return;
      }
      state.messagesError = error;
    }
    update();
  }

  /** Show or hide the body of a message. Pages that are read again and again are without bodies. */
  async function toggleBody(id) {
    if (state.bodies.delete(id)) {
      update();
      return;
    }
    const listing = { max_messages: MESSAGES, start: state.start, bodies: true };
    const page = await api.get(`${pathOf(state.open)}/messages`, listing, { signal });
    const message = page.messages.find((each) => each.id === id);
    if (message) {
      state.bodies.set(id, { body: bodyState(new BodyContent(message.body, message.encoding)), headers: message.headers });
    }
    update();
  }

  async function changed(name) {
    state.infos.delete(name);
    await Promise.all([load(), loadMessages()]);
    onChange();
    if (!document.activeElement || document.activeElement === document.body) {
      // The button of the action is gone with its row.
      document.querySelector('h1')?.focus({ preventScroll: true });
    }
  }

  function seek(changes) {
    Object.assign(state, changes);
    replaceQuery({ search: state.search, offset: state.offset || '' });
    load();
  }

  const searchField = createSearch(signal, state, () => seek({ offset: 0 }));

  function toggle(name) {
    Object.assign(state, { open: state.open === name ? null : name, messages: null, messagesError: null, start: '0' });
    state.bodies.clear();
    replaceQuery({ subscription: state.open });
    update();
    if (state.open) {
      load();
      loadMessages();
    }
  }

  async function create(topic) {
    const name = await createSubscription(topic, signal);
    if (name) {
      await changed(name);
    }
  }

  /** Carry out an action of a subscription; a failure is shown as a toast by the console. */
  async function act(name, action) {
    if (await action()) {
      await changed(name);
    }
  }

  const setPaused = (name, paused) =>
    act(name, async () => {
      await api.patch(pathOf(name), { paused });
      toast(t(paused ? 'topic.sub.paused' : 'topic.sub.resumed', { name }));
      return true;
    });

  const retryNow = (name) =>
    act(name, async () => {
      const { messages } = await api.post(`${pathOf(name)}/retry`);
      toast(t('topic.sub.retried', { count: count(messages) }));
      return true;
    });

  const retryMessage = (name, id) =>
    act(name, async () => {
      const { messages } = await api.post(`${pathOf(name)}/messages/${segment(id)}/retry`);
      toast(t(messages ? 'topic.message.retried' : 'topic.message.not-retried'));
      return true;
    });

  const dropMessage = (name, id) =>
    act(name, async () => {
      const isDropped = await confirmAction({
        title: t('topic.message.drop-title', { id, name }),
        text: html`<p>${t('topic.message.drop-text')}</p>`,
        button: t('topic.message.drop'),
        signal,
        action: () => api.post(`${pathOf(name)}/messages/${segment(id)}/drop`),
      });
      if (isDropped) {
        toast(t('topic.message.dropped'));
      }
      return isDropped;
    });

  // ---------------------------------------------------------------- views

  function stateBadge(row) {
    const info = state.infos.get(row.name);
    if (row.paused) {
      return badge(t('topic.sub.state.paused'), 'delayed');
    }
    if (info?.blocked) {
      return badge(t('topic.sub.state.blocked'), 'bad');
    }
    return row.in_retry > 0 ? badge(t('topic.sub.state.retrying'), 'warning') : badge(t('topic.sub.state.active'), 'good');
  }

  function endpoint(row) {
    const isLink = row.protocol === 'queue' && !row.endpoint.startsWith('(');
    return isLink ? queueLink(row.endpoint) : html`<span>${row.endpoint}</span>`;
  }

  const filtersOf = (info) => (info ? chips([...info.filter_tags, ...info.binding_keys], t('topic.sub.all')) : '…');

  const columns = () => [
    {
      title: t('ui.name'),
      cell: (row) => html`<button
        class="quiet small disclosure" aria-expanded=${row.name === state.open}
        title=${t(row.name === state.open ? 'topic.sub.hide' : 'topic.sub.show')} @click=${() => toggle(row.name)}
      >${icon(row.name === state.open ? 'down' : 'right')}<span>${row.name}</span></button>`,
    },
    { title: t('topic.sub.endpoint'), cell: endpoint },
    { title: t('topic.sub.filters'), cell: (row) => filtersOf(state.infos.get(row.name)) },
    { title: t('ui.state'), cell: stateBadge },
    { title: t('topic.sub.waiting'), align: 'end', cell: (row) => cellCount(row.waiting) },
    { title: t('topic.sub.retry'), align: 'end', cell: (row) => cellCount(row.in_retry) },
  ];

  function detail(row) {
    const info = state.infos.get(row.name);
    if (row.name !== state.open || !info) {
      return nothing;
    }
    return html`<div class="stack sub-detail">
      ${info.blocked && !info.paused ? notice('warning', html`<p>${t('topic.sub.blocked-text')}</p>`) : nothing}
      ${info.paused ? notice('info', html`<p>${t('topic.sub.paused-text')}</p>`) : nothing}
      ${factList([
        [t('topic.sub.last-error'), info.last_error ? html`${visible(info.last_error)} <span class="soft">${moment(info.last_error_time, '')}</span>` : html`<span class="soft">${t('ui.none')}</span>`],
        [t('topic.sub.next-attempt'), moment(info.next_attempt_time, t('topic.sub.no-attempt'))],
        ...Object.keys(state.declared)
          .filter((name) => isInDetails(name, info))
          .map((name) => attributeFact(state.declared, name, info[name])),
        info.delivered === null ? null : [t('topic.sub.delivered'), count(info.delivered)],
        [t('topic.sub.dropped'), count(info.dropped)],
        [t('ui.created'), time(info.create_time)],
      ])}
      ${can('manage') ? actions(info) : nothing} ${messages(info)}
    </div>`;
  }

  function actions(info) {
    const pending = info.waiting + info.in_retry;
    return html`<div class="actions">
      <button @click=${() => setPaused(info.name, !info.paused)}>
        ${icon(info.paused ? 'play' : 'pause')}${t(info.paused ? 'ui.resume' : 'ui.pause')}
      </button>
      <button ?disabled=${info.in_retry === 0} @click=${() => retryNow(info.name)}>
        ${icon('refresh')}${t('topic.sub.retry-now')}
      </button>
      <button ?disabled=${pending === 0} @click=${() => act(info.name, () => dropWaiting(info, signal))}>${t('topic.sub.drop')}</button>
      ${info.protocol === 'queue'
        ? nothing
        : html`<button @click=${() => rotateSecret(info, signal)}>${icon('key')}${t('topic.sub.rotate')}</button>`}
      <button @click=${() => act(info.name, () => editSubscription(info, signal))}>${icon('edit')}${t('ui.edit')}</button>
      <button @click=${() => act(info.name, () => endSubscription(info, signal))}>${icon('trash')}${t('topic.sub.end')}</button>
    </div>`;
  }

  function messages(info) {
    const page = state.messages;
    return html`<section aria-label=${t('topic.sub.messages')}>
      <h2>${t('topic.sub.messages')}</h2>
      ${problem(state.messagesError)}
      ${table({
        label: t('topic.sub.messages'),
        rows: page?.messages ?? null,
        rowKey: (message) => message.id,
        empty: html`<p class="soft">${t('topic.sub.no-messages')}</p>`,
        columns: [
          {
            title: t('ui.message'),
            cell: (message) => html`<span class="message"><code class="message-id">${message.id}</code> ${labelsOf(message)}</span>`,
          },
          { title: t('ui.state'), cell: (message) => deliveryState(message.state) },
          { title: t('topic.message.attempts'), align: 'end', cell: (message) => cellCount(message.attempts) },
          { title: t('topic.message.published'), cell: (message) => moment(message.publish_time) },
          { title: t('topic.sub.next-attempt'), cell: (message) => moment(message.next_attempt_time) },
          { title: t('topic.sub.last-error'), cell: (message) => (message.last_error === null ? html`<span class="soft">–</span>` : visible(message.last_error)) },
          { title: t('ui.actions'), align: 'end', cell: (message) => messageActions(info.name, message.id) },
        ],
        detail: bodyOf,
      })}
      ${page && (page.next_start !== null || state.start !== '0')
        ? html`<div class="actions">
            ${state.start === '0' ? nothing : html`<button class="small" @click=${() => turn('0')}>${t('topic.sub.first')}</button>`}
            ${page.next_start === null
              ? nothing
              : html`<button class="small" @click=${() => turn(page.next_start)}>${t('topic.sub.more')}</button>`}
          </div>`
        : nothing}
    </section>`;
  }

  function bodyOf({ id }) {
    const opened = state.bodies.get(id);
    if (!opened) {
      return nothing;
    }
    const headers = Object.entries(opened.headers ?? {});
    return html`<div class="stack">
      ${headers.length === 0 ? nothing : factList(headers)}
      ${bodyView({ state: opened.body, update, label: `${t('ui.body')} ${id}` })}
    </div>`;
  }

  function turn(start) {
    state.start = start;
    state.bodies.clear();
    loadMessages();
  }

  function messageActions(name, id) {
    const named = html`<span class="visually-hidden"> ${id}</span>`;
    return html`<span class="row-buttons">
      <button class="quiet small" aria-expanded=${state.bodies.has(id)} @click=${() => toggleBody(id)}>
        ${t('ui.body')}${named}
      </button>
      <button class="quiet small" @click=${() => onReport(id)}>${t('topic.message.report')}${named}</button>
      ${can('manage')
        ? html`<button class="quiet small" @click=${() => retryMessage(name, id)}>${t('topic.message.retry')}${named}</button>
            <button class="quiet small" @click=${() => dropMessage(name, id)}>${t('topic.message.drop')}${named}</button>`
        : nothing}
    </span>`;
  }

  load();
  loadMessages();

  return {
    async refresh() {
      await Promise.all([load(), loadMessages()]);
    },
    view(topic) {
      const isRouting = topic.attributes.filter_type === 'routing';
      const subscribe = can('manage')
        ? html`<button class="primary" @click=${() => create(topic)}>${icon('plus')}${t('topic.sub.create')}</button>`
        : nothing;
      const isEmpty = state.rows?.length === 0 && state.search === '';
      const filter = isRouting ? `--binding-key 'eu.#'` : '--filter-tag paid';
      const filters = isRouting ? 'binding_keys=["eu.#"]' : 'filter_tags=["paid"]';
      const empty = state.search
        ? html`<div class="empty"><p>${t('topic.sub.none-found', { search: state.search })}</p></div>`
        : emptyState({
            title: t('topic.sub.empty'),
            text: t('topic.sub.empty-text'),
            action: subscribe,
            command: `cmq queue create orders\ncmq sub create ${topicName} billing --queue orders ${filter}`,
            python: `topic = client.topic("${topicName}")\nawait topic.subscribe("billing", queue="orders", ${filters}, ensure=True)`,
          });
      return html`${problem(state.error)}
        <section class="card">
          ${isEmpty
            ? nothing
            : html`<header>
                <div class="toolbar" role="search">${searchField(t('ui.search-by-name'))}</div>
                <div class="actions">${subscribe}</div>
              </header>`}
          ${table({ label: t('topic.subscriptions'), columns: columns(), rows: state.rows, rowKey: (row) => row.name, empty, detail })}
          ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
        </section>`;
    },
  };
}
