/** The connections of the broker, the receives that wait for messages, and the gateway's clients of CMQ's TCP protocol. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api } from '../../app/api.js';
import { bytes, count, duration, rate, shortCount, time } from '../../app/format.js';
import { href, replaceQuery } from '../../app/router.js';
import { isAdmin, session } from '../../app/session.js';
import { addTexts, t } from '../../app/text.js';
import { copyValue } from '../../ui/copy.js';
import { icon } from '../../ui/icon.js';
import { notice, problem } from '../../ui/notice.js';
import { badge, emptyState, factList, pageHead, queueLink } from '../../ui/parts.js';
import { createSearch } from '../../ui/search.js';
import { pager, table } from '../../ui/table.js';
import { tabs } from '../../ui/tabs.js';
import texts from './connections.text.js';

addTexts(texts);

const PAGE = 50;
const REFRESH_MS = 3_000;
const GATEWAY = 'cmqd-gateway';
/** Path and rows of each tab. */
const LISTS = {
  connections: ['/connections', 'connections'],
  waiting: ['/waiting-receives', 'receives'],
  consumers: ['/consumers', 'consumers'],
  'cmq-tcp': ['/cmq-tcp-clients', 'clients'],
};
/** Words of the server's sorts. */
const SORTS = ['since', 'account', 'secret_id', 'product', 'last_request', 'requests', 'bytes_in', 'bytes_out', 'waiting', 'unread_bytes'];

export function page({ query, update, signal, every }) {
  const sorted = SORTS.includes(query.get('sort'));
  const state = {
    tab: query.get('tab') in LISTS ? query.get('tab') : 'connections',
    search: query.get('search') ?? '',
    /** Queue whose consumers are listed, or null. */
    queue: query.get('queue'),
    /** Number of the connection whose receives are listed, or null. */
    connection: query.get('connection'),
    sort: { by: sorted ? query.get('sort') : 'since', descending: sorted && query.get('order') === 'down' },
    offset: Number(query.get('offset')) || 0,
    isLive: true,
    rows: null,
    total: 0,
    /** False if the gateway does not serve CMQ's TCP protocol. */
    isServed: true,
    /** Broker time of the rows, in milliseconds: ages must not depend on the clock of the browser. */
    now: 0,
    error: null,
    opened: null,
  };
  /** Requests of each connection at the last load, for rates: `{ now, requests }` by id. */
  let before = new Map();
  let latest = 0;

  async function load() {
    const number = (latest += 1);
    const isList = state.tab === 'connections';
    const selections = {
      connections: { sort: state.sort.by, descending: state.sort.descending },
      waiting: { connection: state.connection },
      consumers: { queue: state.queue },
    };
    const [path, field] = LISTS[state.tab];
    try {
      const reply = await api.get(
        path,
        { search: state.search, offset: state.offset, limit: PAGE, ...selections[state.tab] },
        { signal },
      );
      if (number !== latest) {
        return;
      }
      const rows = reply[field];
      if (rows.length === 0 && state.offset > 0) {
        // The entries of the last page are gone.
        state.offset = Math.max(0, state.offset - PAGE);
        return await load();
      }
      // A receive has no number of its own, and a connection may have several for a queue. A client has none either.
      const placed = isList ? withRates(rows, reply.time) : rows.map((row, place) => ({ ...row, place }));
      Object.assign(state, { rows: placed, total: reply.total, isServed: reply.is_served, error: null });
      state.now = Date.parse(reply.time);
    } catch (error) {
      if (signal.aborted || number !== latest) {
        return;
      }
      state.error = error.isAway && state.rows ? null : error;
    }
    update();
  }

  /** Add the requests per second since the last load; null for a connection that was not on the page then. */
  function withRates(rows, moment) {
    const now = Date.parse(moment);
    const known = before;
    before = new Map(rows.map((row) => [row.id, { now, requests: row.requests }]));
    return rows.map((row) => {
      const last = known.get(row.id);
      const seconds = last ? (now - last.now) / 1000 : 0;
      return { ...row, rate: seconds > 0 ? (row.requests - last.requests) / seconds : null };
    });
  }

  function seek(changes) {
    Object.assign(state, changes);
    const isList = state.tab === 'connections';
    const isFirst = !isList || (state.sort.by === 'since' && !state.sort.descending);
    replaceQuery({
      tab: isList ? '' : state.tab,
      search: state.search,
      connection: state.tab === 'waiting' ? state.connection : '',
      queue: state.tab === 'consumers' ? state.queue : '',
      sort: isFirst ? '' : state.sort.by,
      order: isList && state.sort.descending ? 'down' : '',
      offset: state.offset || '',
    });
    update();
    load();
  }

  function choose(tab) {
    if (tab !== state.tab) {
      seek({ tab, rows: null, total: 0, offset: 0, search: '', connection: null, queue: null, opened: null });
    }
  }

  const searchField = createSearch(signal, state, () => seek({ offset: 0 }));

  function toggle(row) {
    state.opened = state.opened === row.id ? null : row.id;
    update();
  }

  function setLive(event) {
    state.isLive = event.target.checked;
    update();
    if (state.isLive) {
      load();
    }
  }

  // ---------------------------------------------------------------- cells

  /** Return the software of a client: the gateway by its role, another by the name that it states. */
  const software = (product) =>
    product === GATEWAY
      ? html`${t('connections.gateway')} ${badge('HTTP')}`
      : product || html`<span class="soft">${t('connections.not-stated')}</span>`;

  const keyOf = (row) =>
    html`<span class="nowrap"
      ><code class="key-id" title=${row.secret_id}>${row.secret_id}</code>
      ${row.secret_id === session.key?.secret_id ? badge(t('connections.own-key')) : nothing}</span
    >`;

  const ago = (moment) =>
    html`<span class="nowrap" title=${time(moment)}>${t('connections.ago', { duration: seconds(state.now - Date.parse(moment)) })}</span>`;

  const number = (value, show = shortCount) =>
    value === 0 ? html`<span class="soft">0</span>` : html`<span class="nowrap" title=${count(value)}>${show(value)}</span>`;

  const accountColumn = () =>
    isAdmin() ? [{ title: t('ui.account'), sort: 'account', cell: (row) => row.account }] : [];

  const connectionColumns = () => [
    {
      title: t('connections.client'),
      sort: 'product',
      cell: (row) => html`<span class="client"
        ><button class="quiet small disclosure" aria-expanded=${state.opened === row.id} @click=${() => toggle(row)}>
          ${icon(state.opened === row.id ? 'down' : 'right')}<span>${software(row.product)}</span>
        </button>
        <code class="peer">${row.peer}</code></span
      >`,
    },
    ...accountColumn(),
    { title: t('ui.key'), sort: 'secret_id', cell: keyOf },
    { title: t('connections.since'), sort: 'since', cell: (row) => ago(row.since) },
    { title: t('connections.last-request'), sort: 'last_request', cell: (row) => ago(row.last_request) },
    {
      title: t('connections.requests'),
      sort: 'requests',
      align: 'end',
      cell: (row) => html`<span class="nowrap">${number(row.requests)}${row.rate ? html` <span class="soft rate">${rate(row.rate)}</span>` : nothing}</span>`,
    },
    { title: t('connections.in'), sort: 'bytes_in', align: 'end', cell: (row) => number(row.bytes_in, bytes) },
    { title: t('connections.out'), sort: 'bytes_out', align: 'end', cell: (row) => number(row.bytes_out, bytes) },
    {
      title: t('connections.waiting'),
      sort: 'waiting',
      align: 'end',
      cell: (row) =>
        row.waiting === 0
          ? number(0)
          : html`<a href=${href('connections', { tab: 'waiting', connection: row.id })} aria-label=${t('connections.show-waiting', { n: row.waiting, id: row.id })}
              >${count(row.waiting)}</a
            >`,
    },
    {
      title: t('connections.unread'),
      sort: 'unread_bytes',
      align: 'end',
      cell: (row) => (row.unread_bytes === 0 ? number(0) : badge(bytes(row.unread_bytes), 'warning')),
    },
  ];

  const facts = (row) => html`<div class="connection-detail">
    ${factList([
      [t('connections.id'), row.id],
      [t('ui.key'), copyValue(row.secret_id)],
      [t('ui.account'), row.account],
      [t('connections.name'), row.name || html`<span class="soft">${t('connections.not-stated')}</span>`],
      [t('ui.address'), html`<code>${row.peer}</code>`],
      [t('connections.encryption'), row.tls ? 'TLS' : t('connections.plain')],
      [t('connections.since'), time(row.since)],
      [t('connections.last-request'), time(row.last_request)],
      [t('connections.unanswered'), count(row.unanswered)],
      [t('connections.checked'), count(row.checked_queues)],
      [t('connections.in'), `${count(row.bytes_in)} B`],
      [t('connections.out'), `${count(row.bytes_out)} B`],
    ])}
    ${row.product === GATEWAY ? notice('info', t('connections.gateway-text')) : nothing}
    ${row.unread_bytes > 0 ? notice('warning', t('connections.unread-text')) : nothing}
  </div>`;

  const receiveColumns = () => [
    {
      title: t('ui.queue'),
      cell: (row) =>
        row.account === session.key?.account
          ? queueLink(row.queue)
          : row.queue,
    },
    ...(isAdmin() ? [{ title: t('ui.account'), cell: (row) => row.account }] : []),
    {
      title: t('connections.client'),
      cell: (row) => html`<span class="client"
        ><span>${software(row.product)}${row.name ? html` <span class="soft">${row.name}</span>` : nothing}</span> <code class="peer">${row.peer}</code></span
      >`,
    },
    { title: t('ui.key'), cell: keyOf },
    { title: t('connections.connection'), align: 'end', cell: (row) => row.connection },
    { title: t('connections.most'), align: 'end', cell: (row) => count(row.max_messages) },
    { title: t('connections.waits-for'), align: 'end', cell: (row) => seconds(state.now - Date.parse(row.since)) },
    { title: t('connections.ends-in'), align: 'end', cell: (row) => seconds(Date.parse(row.until) - state.now) },
  ];

  /** A count, or a dash if the broker has not counted. */
  const counted = (value) => (value === null ? html`<span class="soft" title=${t('connections.not-counted')}>–</span>` : number(value));

  const consumerColumns = () => [
    {
      title: t('ui.queue'),
      cell: (row) => (row.account === session.key?.account ? queueLink(row.queue) : row.queue),
    },
    ...(isAdmin() ? [{ title: t('ui.account'), cell: (row) => row.account }] : []),
    {
      title: t('connections.consumer'),
      cell: (row) => html`<span class="client"
        ><span>${row.name || html`<span class="soft">${t('connections.not-stated')}</span>`}</span>
        <code class="peer">${row.host}</code>
        ${row.stated_by ? html`<span class="soft">${t('connections.stated-by', { peer: row.stated_by })}</span>` : nothing}</span
      >`,
    },
    { title: t('ui.key'), cell: keyOf },
    { title: t('connections.in-flight'), align: 'end', cell: (row) => counted(row.in_flight) },
    { title: t('connections.waiting'), align: 'end', cell: (row) => counted(row.waiting) },
    {
      title: t('connections.last-receive'),
      cell: (row) => (row.last_receive === null ? html`<span class="soft">${t('connections.never')}</span>` : ago(row.last_receive)),
    },
    { title: t('connections.received'), align: 'end', cell: (row) => number(row.received) },
    {
      title: t('connections.failed'),
      align: 'end',
      cell: (row) => (row.failed === 0 ? number(0) : badge(count(row.failed), 'warning')),
    },
  ];

  const tcpColumns = () => [
    {
      title: t('connections.client-id'),
      cell: (row) => html`<span class="client"><span>${row.client_id}</span> <code class="peer">${row.peer}</code></span>`,
    },
    ...(isAdmin() ? [{ title: t('ui.account'), cell: (row) => row.account }] : []),
    { title: t('ui.key'), cell: keyOf },
    { title: t('connections.since'), cell: (row) => ago(row.since) },
    { title: t('connections.unanswered'), align: 'end', cell: (row) => number(row.requests) },
  ];

  const seconds = (milliseconds) => duration(Math.max(0, Math.round(milliseconds / 1000)));

  // ---------------------------------------------------------------- view

  const noneFound = () =>
    html`<div class="empty"><p>${state.search ? t('connections.none-found', { search: state.search }) : t('connections.none')}</p></div>`;

  const noTcpClient = () =>
    state.search
      ? noneFound()
      : emptyState({
          title: t('connections.no-tcp-client'),
          text: t(state.isServed ? 'connections.no-tcp-client-text' : 'connections.tcp-off'),
        });

  const noReceive = () =>
    state.search
      ? noneFound()
      : emptyState({
          title: t('connections.no-receive'),
          text: t('connections.no-receive-text'),
          command: 'cmq receive orders --wait 30s --delete',
          python: 'for message in await client.queue("orders").receive(10, wait=30):\n    ...\n    await message.delete()',
        });

  const toolbar = (placeholder) => html`<div class="toolbar" role="search">
    ${searchField(placeholder)}
    ${state.connection === null
      ? nothing
      : html`<button class="small" @click=${() => seek({ connection: null, offset: 0 })}>
          ${t('connections.of-connection', { id: state.connection })}${icon('close')}<span class="visually-hidden">${t('connections.of-all')}</span>
        </button>`}
    ${state.queue === null
      ? nothing
      : html`<button class="small" @click=${() => seek({ queue: null, offset: 0 })}>
          ${t('connections.of-queue', { queue: state.queue })}${icon('close')}<span class="visually-hidden">${t('connections.of-all-queues')}</span>
        </button>`}
    <label class="inline-check"><input type="checkbox" .checked=${live(state.isLive)} @change=${setLive} /> ${t('connections.live')}</label>
    <span class="soft number list-total" role="status">${state.rows === null ? '' : t(`connections.total.${state.tab}`, { n: count(state.total) })}</span>
  </div>`;

  const list = () => html`<section class="card">
    <header>${toolbar(t('connections.search'))}</header>
    ${table({
      label: t('connections.title'),
      columns: connectionColumns(),
      rows: state.rows,
      rowKey: (row) => row.id,
      sort: state.sort,
      onSort: (by, descending) => seek({ sort: { by, descending }, offset: 0 }),
      empty: noneFound(),
      detail: (row) => (row.id === state.opened ? facts(row) : nothing),
    })}
    ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
  </section>`;

  const receives = () => html`<section class="card">
    <header>${toolbar(t('connections.search-waiting'))}</header>
    ${table({
      label: t('connections.tab.waiting'),
      columns: receiveColumns(),
      rows: state.rows,
      rowKey: (row) => row.place,
      empty: noReceive(),
    })}
    ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
  </section>`;

  const noConsumer = () =>
    state.search
      ? noneFound()
      : emptyState({
          title: t('connections.no-consumer'),
          text: t('connections.no-consumer-text'),
          command: 'cmq receive orders --wait 30s --delete',
        });

  const consumers = () => html`<section class="card">
    <header>${toolbar(t('connections.search-consumers'))}</header>
    ${table({
      label: t('connections.tab.consumers'),
      columns: consumerColumns(),
      rows: state.rows,
      rowKey: (row) => row.place,
      empty: noConsumer(),
    })}
    ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
  </section>`;

  const tcpClients = () => html`<section class="card">
    <header>${toolbar(t('connections.search-tcp'))}</header>
    ${table({
      label: t('connections.tab.cmq-tcp'),
      columns: tcpColumns(),
      rows: state.rows,
      rowKey: (row) => row.place,
      empty: noTcpClient(),
    })}
    ${pager({ offset: state.offset, limit: PAGE, total: state.total, onPage: (offset) => seek({ offset }) })}
  </section>`;

  load();
  every(REFRESH_MS, () => (state.isLive ? load() : undefined));
  addEventListener('cmqd:back', load, { signal });

  return {
    title: () => t('connections.title'),
    view: () => html`<div class="page">
      ${pageHead({ title: t('connections.title') })}
      ${problem(state.error)}
      <div>
        ${tabs({
          id: 'connections',
          label: t('connections.title'),
          chosen: state.tab,
          onChoose: choose,
          tabs: [
            { name: 'connections', title: t('connections.tab.connections'), view: list },
            { name: 'waiting', title: t('connections.tab.waiting'), view: receives },
            { name: 'consumers', title: t('connections.tab.consumers'), view: consumers },
            { name: 'cmq-tcp', title: t('connections.tab.cmq-tcp'), view: tcpClients },
          ],
        })}
      </div>
      <p class="hint">${t('connections.note')}</p>
    </div>`,
  };
}
