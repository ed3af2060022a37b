/** The overview: findings, figures of the moment, plots of the last hours, and the largest queues; live. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { api } from '../app/api.js';
import { onEvent } from '../app/events.js';
import { bytes, count, duration, rate, shortCount } from '../app/format.js';
import { href, replaceQuery } from '../app/router.js';
import { brokerUrl, can, session } from '../app/session.js';
import { addTexts, t } from '../app/text.js';
import { problem } from '../ui/notice.js';
import { card, emptyState, figure, pageHead, queueLink } from '../ui/parts.js';
import { Plot } from '../ui/pictures/plot.js';
import { table } from '../ui/table.js';
import { findingsCard, whenText } from './overview-findings.js';
import texts from './overview.text.js';

addTexts(texts);

const HISTORY = '/console/history';
const RANGES = ['15m', '1h', '6h', '24h'];
/** Short, because a broker that started minutes ago fills it. */
const FIRST_RANGE = '15m';
const STORED = 'cmqd.overview-range';
/** A coarse range gets its new buckets from the gateway; a fine range gets them with each reading. */
const COARSE_MS = 60_000;
/** Requests keep the session of a page that is looked at; the stream alone does not. */
const FINE_MS = 300_000;
const FINE_STEP = 5;

export function page({ query, update, signal, every }) {
  const state = {
    range: [query.get('range'), localStorage.getItem(STORED)].find((name) => RANGES.includes(name)) ?? FIRST_RANGE,
    hello: null,
    figures: null,
    top: null,
    findings: null,
    history: null,
    loadedAt: 0,
    error: null,
    isAway: false,
    /** The stream or the broker was lost after the figures: they are kept, and are not live. */
    isStale: false,
  };
  const plots = makePlots(update);
  signal.addEventListener('abort', () => plots.forEach((plot) => plot.close()));

  async function load() {
    try {
      state.history = await api.get(HISTORY, { range: state.range }, { signal });
      state.error = null;
      state.loadedAt = Date.now();
      showHistory();
    } catch (error) {
      if (error.name !== 'AbortError') {
        state.error = error.isAway ? null : error;
      }
    }
    update();
  }

  function showHistory() {
    const { begin, step, columns } = state.history;
    const length = Object.values(columns)[0]?.length ?? 0;
    const times = Array.from({ length }, (_, index) => begin + index * step);
    for (const plot of plots) {
      plot.show(times, plot.series.map((series) => columns[series.name] ?? times.map(() => null)));
    }
  }

  /** Put the newest bucket into the columns of a fine range; a bucket that was missed means a new load. */
  function addPoint({ time, values }) {
    const { begin, step, columns } = state.history;
    const names = state.hello.series;
    const length = columns[names[0]]?.length ?? 0;
    const index = Math.round((time - begin) / step);
    if (length === 0 || index > length || index < length - 1) {
      load();
      return;
    }
    names.forEach((name, number) => {
      const column = columns[name];
      if (index === length) {
        column.push(values[number]);
        column.shift();
      } else {
        column[index] = values[number];
      }
    });
    if (index === length) {
      state.history.begin += step;
    }
    showHistory();
  }

  function choose(range) {
    state.range = range;
    localStorage.setItem(STORED, range);
    replaceQuery({ range: range === FIRST_RANGE ? null : range });
    update();
    load();
  }

  for (const loss of ['cmqd:stream-lost', 'cmqd:away']) {
    addEventListener(loss, () => {
      state.isStale = true;
      update();
    }, { signal });
  }
  onEvent('hello', (hello) => {
    state.hello = hello;
    if (hello.reads_figures) {
      // Also after a loss of the stream: buckets are missing.
      load();
    }
    update();
  }, signal);
  onEvent('broker', ({ is_away: isAway }) => {
    if (state.isAway && !isAway) {
      load();
    }
    state.isAway = isAway;
    update();
  }, signal);
  onEvent('figures', (figures) => {
    Object.assign(state, { figures, isStale: false });
    if (state.history !== null && state.hello !== null && figures.point !== null && isFine()) {
      addPoint(figures.point);
    }
    update();
  }, signal);
  onEvent('top', (top) => {
    state.top = top.queues;
    update();
  }, signal);
  onEvent('findings', (findings) => {
    state.findings = findings;
    update();
  }, signal);
  every(COARSE_MS, () => {
    const isDue = Date.now() - state.loadedAt >= (isFine() ? FINE_MS : COARSE_MS / 2);
    return state.hello?.reads_figures && isDue ? load() : null;
  });

  const isFine = () => state.history !== null && state.history.step === FINE_STEP;

  return {
    title: () => t('overview.title'),
    view: () => {
      if (state.hello && !state.hello.reads_figures) {
        return html`<div class="page">
          ${pageHead({ title: t('overview.title') })}
          <div class="card">
            ${emptyState({
              title: t('overview.no-rights'),
              text: t('overview.no-rights-text', { account: state.hello.account }),
              command: `cmq key set ${session.key.secret_id} ${rolesWithRead()} --queues '*'`,
            })}
          </div>
        </div>`;
      }
      const { figures } = state;
      const isEmpty = figures !== null && figures.counts.queues === 0 && figures.counts.topics === 0;
      return html`<div class="page overview">
        ${pageHead({ title: t('overview.title'), badges: liveBadge(state), actions: ranges(state.range, choose) })}
        ${problem(state.error)} ${isEmpty ? firstSteps() : findingsCard(state.findings)} ${figureRow(figures)}
        ${plotGrid(plots, state)} ${isEmpty ? nothing : topQueues(state)} ${footNote(state)}
      </div>`;
    },
  };
}

// ------------------------------------------------------------------ parts

/** Return the options that keep the roles of the key and add `read`; the command replaces the roles. */
function rolesWithRead() {
  return [...new Set([...session.key.roles, 'read'])].map((role) => `--role ${role}`).join(' ');
}

function liveBadge({ figures, isAway, isStale }) {
  const isLive = figures !== null && !isAway && !isStale;
  return html`<span class="badge ${isLive ? 'good' : 'warning'}">${isLive ? t('overview.live') : t('overview.paused')}</span>`;
}

function ranges(chosen, onChoose) {
  return html`<div class="segmented" role="group" aria-label=${t('overview.range')}>
    ${RANGES.map(
      (name) => html`<button class="small" aria-pressed=${name === chosen} @click=${() => onChoose(name)}>
        ${t(`overview.range.${name}`)}
      </button>`,
    )}
  </div>`;
}

function firstSteps() {
  return html`<div class="card">
    ${emptyState({
      title: t('overview.empty'),
      text: t('overview.empty-text'),
      action: can('manage') ? html`<a class="button primary" href=${href('queues', { create: 1 })}>${t('overview.create')}</a>` : nothing,
      command: "cmq queue create orders\ncmq send orders 'hello'",
      python: `import cmqd_client.sync

with cmqd_client.sync.connect("${brokerUrl()}") as client:
    orders = client.create_queue("orders")
    orders.send(b"hello")`,
    })}
  </div>`;
}

/** Return a value as text, `–` without one. */
const shown = (value, format) => (value === null || value === undefined ? '–' : format(value));

function figureRow(figures) {
  const now = figures?.now ?? {};
  const server = figures?.server ?? null;
  const { counts } = figures ?? {};
  const notes = [
    now.in_flight ? t('overview.in-flight-note', { n: shortCount(now.in_flight) }) : null,
    now.delayed ? t('overview.delayed-note', { n: shortCount(now.delayed) }) : null,
    now.undelivered ? t('overview.undelivered-note', { n: shortCount(now.undelivered) }) : null,
  ].filter(Boolean);
  const oldest = Math.max(now.oldest_s ?? 0, now.oldest_undelivered_s ?? 0);
  return html`<section class="card" aria-label=${t('overview.moment')}>
    <div class="figures">
      ${figure(t('overview.sent'), shown(now.sent, rate), now.published ? `${t('overview.published')} ${rate(now.published)}` : nothing)}
      ${figure(t('overview.received'), shown(now.received, rate), `${t('overview.deleted')} ${shown(now.deleted, rate)}`)}
      ${figure(t('overview.backlog'), shown(now.active, shortCount), notes.join(' · ') || nothing)}
      ${figure(t('overview.oldest'), figures === null ? '–' : oldest === 0 ? t('overview.none') : duration(Math.round(oldest)))}
      ${server === null
        ? nothing
        : html`${commitFigure(now)} ${diskFigure(now, figures.forecast)}
          ${figure(t('overview.connections'), shown(now.connections, count), t('overview.waiting-note', { n: shown(now.waiting_receives, count) }))}`}
      ${server === null && figures !== null
        ? figure(t('overview.waiting'), shown(now.waiting_receives, count), t('overview.objects-note', { queues: count(counts.queues), topics: count(counts.topics) }))
        : nothing}
    </div>
  </section>`;
}

function commitFigure(now) {
  const p50 = now.commit_p50_ms;
  return figure(
    t('overview.commit'),
    shown(now.commit_p99_ms, milliseconds),
    p50 === null || p50 === undefined ? t('overview.no-commits') : t('overview.commit-note', { p50: milliseconds(p50) }),
  );
}

function diskFigure(now, forecast) {
  if (now.free_bytes === null || now.free_bytes === undefined) {
    return figure(t('overview.disk'), '–', t('overview.ephemeral'));
  }
  const note = forecast ? t('overview.forecast', { when: whenText(forecast.full_at) }) : t('overview.forecast-none');
  return figure(t('overview.disk'), bytes(now.free_bytes), note);
}

/** Return milliseconds with two digits that say something. */
function milliseconds(value) {
  return value >= 10 ? duration(value / 1000) : t('overview.ms', { n: Number(value.toPrecision(2)) });
}

function makePlots(update) {
  const common = { group: 'overview', onPoint: update };
  const series = (name, colour, title = () => t(`overview.${name}`), fill = false) => ({ name, colour, title, fill });
  return [
    new Plot({
      ...common,
      title: () => t('overview.rates'),
      format: rate,
      series: [
        series('sent', 'accent', undefined, true),
        series('received', 'state-in-flight'),
        series('deleted', 'good'),
        series('published', 'state-delayed'),
      ],
    }),
    new Plot({
      ...common,
      title: () => t('overview.states'),
      format: shortCount,
      series: [
        series('active', 'state-active', undefined, true),
        series('in_flight', 'state-in-flight'),
        series('delayed', 'state-delayed'),
        series('half', 'state-half'),
      ],
    }),
    new Plot({
      ...common,
      title: () => t('overview.oldest'),
      format: (seconds) => duration(Math.round(seconds)),
      unit: 'seconds',
      series: [
        series('oldest_s', 'state-active', () => t('overview.oldest-queue')),
        series('oldest_undelivered_s', 'state-delayed', () => t('overview.oldest-topic')),
      ],
    }),
    Object.assign(
      new Plot({
        ...common,
        title: () => t('overview.deliveries'),
        format: rate,
        series: [series('delivered', 'good'), series('failed', 'bad')],
      }),
      { isForTopics: true },
    ),
    Object.assign(
      new Plot({
        ...common,
        title: () => t('overview.commit'),
        format: milliseconds,
        series: [
          series('commit_p99_ms', 'accent', () => t('overview.commit-p99')),
          series('commit_p50_ms', 'good', () => t('overview.commit-p50')),
        ],
      }),
      { isOfServer: true },
    ),
    Object.assign(
      new Plot({
        ...common,
        title: () => t('overview.disk'),
        format: bytes,
        unit: 'bytes',
        fromZero: false,
        series: [series('free_bytes', 'accent', () => t('overview.free'))],
      }),
      { isOfServer: true, note: diskNote },
    ),
    Object.assign(
      new Plot({
        ...common,
        title: () => t('overview.connections'),
        format: shortCount,
        series: [
          series('connections', 'accent'),
          series('waiting_receives', 'state-in-flight', () => t('overview.waiting')),
        ],
      }),
      { isOfServer: true },
    ),
    Object.assign(
      new Plot({
        ...common,
        title: () => t('overview.load'),
        format: (value) => String(Number(value.toPrecision(2))),
        series: [series('cpu_cores', 'accent', () => t('overview.cores'), true)],
      }),
      { isOfServer: true },
    ),
  ];
}

function diskNote(figures) {
  const { now } = figures;
  return t('overview.log-note', { log: shown(now.log_bytes, bytes), history: shown(now.history_bytes, bytes) });
}

function plotGrid(plots, { figures }) {
  const hasServer = Boolean(figures?.server);
  const hasTopics = Boolean(figures?.counts.topics);
  const shownPlots = plots.filter((plot) => (!plot.isOfServer || hasServer) && (!plot.isForTopics || hasTopics));
  return html`<div class="plots">${shownPlots.map((plot) => plot.view(plot.note && figures ? plot.note(figures) : undefined))}</div>`;
}

function topQueues({ top, hello }) {
  const own = session.key?.account;
  const columns = [
    {
      title: t('overview.queue'),
      cell: (row) => (row.account === own ? queueLink(row.queue) : row.queue),
    },
    hello?.is_admin && top?.some((row) => row.account !== own) ? { title: t('overview.account'), cell: (row) => row.account } : null,
    { title: t('overview.active'), align: 'end', cell: (row) => count(row.active) },
    { title: t('overview.in_flight'), align: 'end', cell: (row) => count(row.in_flight) },
    { title: t('overview.delayed'), align: 'end', cell: (row) => count(row.delayed) },
    { title: t('overview.age'), align: 'end', cell: (row) => (row.oldest_s ? duration(Math.round(row.oldest_s)) : '–') },
    { title: t('overview.rate-in'), align: 'end', cell: (row) => shown(row.arrived, rate) },
    { title: t('overview.rate-out'), align: 'end', cell: (row) => shown(row.received, rate) },
    { title: t('overview.waiting'), align: 'end', cell: (row) => count(row.waiting_receives) },
  ].filter(Boolean);
  return card(
    t('overview.top'),
    table({ label: t('overview.top'), columns, rows: top, rowKey: (row) => `${row.account}/${row.queue}` }),
    { actions: html`<a href=${href('queues')}>${t('overview.all-queues')}</a>` },
  );
}

function footNote({ figures, hello }) {
  const server = figures?.server;
  const values = server && { version: server.version, uptime: duration(Math.round(server.uptime_s)), segments: count(server.segments) };
  return html`<div class="soft foot-note">
    ${values ? html`<p>${t('overview.version', values)}</p>` : nothing}
    ${hello?.is_admin && !hello.is_kept ? html`<p>${t('overview.not-kept')}</p>` : nothing}
  </div>`;
}
