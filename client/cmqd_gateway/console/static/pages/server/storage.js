/** Storage: the segments of the log on a time line, the reasons that keep them on disk, and the room of the disk. */

import { html, nothing, svg } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment as pathSegment } from '../../app/api.js';
import { bytes, count, duration, relativeTime, shortCount, shortTime, time } from '../../app/format.js';
import { href } from '../../app/router.js';
import { session } from '../../app/session.js';
import { addTexts, hasText, t } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { icon } from '../../ui/icon.js';
import { notice, problem } from '../../ui/notice.js';
import { badge, card, emptyState, figure, pageHead } from '../../ui/parts.js';
import { pager, table } from '../../ui/table.js';
import texts from './storage.text.js';

addTexts(texts);

const LOAD_MS = 10_000;
/** Segments of a request: their bars are drawn in about 50 ms. */
const PAGE_SEGMENTS = 500;
const SHOWN_SEGMENTS = 25;
const SHOWN_HOLDERS = 10;

/** Reasons, the strongest first: the first reason of a segment colours its bar. */
const REASONS = ['rows', 'messages', 'deliveries', 'rewind', 'checkpoint', 'backup', 'history', 'none'];
const COUNTS = { messages: 'live', rewind: 'rewindable', deliveries: 'undelivered' };

/** Size of the time line in units of its drawing. */
const LINE = { width: 1_000, height: 96, least: 4, gap: 0.6 };

export function page({ update, signal, every }) {
  const state = { list: null, error: null, isLoading: false, afters: ['0'], offset: 0, reason: 'all', scale: 'time' };

  async function load() {
    state.isLoading = true;
    update();
    try {
      state.list = await api.get('/segments', { after: state.afters.at(-1), limit: PAGE_SEGMENTS }, { signal });
      state.error = null;
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      // The shell says that the broker is away; the figures of before stay on the page.
      state.error = error.isAway && state.list ? null : error;
    }
    state.isLoading = false;
    update();
  }

  addEventListener('cmqd:back', load, { signal });
  every(LOAD_MS, load);
  load();

  function go(afters) {
    Object.assign(state, { afters, offset: 0, list: null });
    load();
  }

  function chooseReason(reason) {
    Object.assign(state, { reason, offset: 0 });
    update();
  }

  /** Show a segment of the time line in the table. */
  function showSegment(chosen) {
    const rows = newestFirst(state.list.segments);
    state.reason = 'all';
    state.offset = Math.floor(rows.indexOf(chosen) / SHOWN_SEGMENTS) * SHOWN_SEGMENTS;
    update();
    requestAnimationFrame(() =>
      requestAnimationFrame(() => document.getElementById(`segment-${chosen.number}`)?.closest('tr').scrollIntoView({ block: 'center' })),
    );
  }

  function view() {
    const actions = html`<button aria-busy=${state.isLoading} @click=${load}>${icon('refresh')}${t('ui.refresh')}</button>`;
    return html`<div class="page storage">
      ${pageHead({ title: t('storage.title'), actions })} ${problem(state.error)}
      ${state.list === null
        ? state.error ? nothing : html`<p class="loading" aria-busy="true">${t('ui.loading')}</p>`
        : content(state.list)}
    </div>`;
  }

  function content(list) {
    if (list.segments.length === 0 && state.afters.length === 1) {
      return emptyState({
        title: t('storage.empty'),
        text: t('storage.empty-text'),
        command: "cmq queue create orders\ncmq send orders 'hello'",
        python: 'await client.ensure_queue("orders")\nawait client.queue("orders").send(b"hello")',
      });
    }
    const groups = grouped(list.segments);
    return html`
      ${list.sends_refused_reason ? notice('error', t('storage.refused', { reason: list.sends_refused_reason })) : nothing}
      ${figures(list)}
      ${list.segments.length < list.total
        ? notice('info', t('storage.part', { shown: count(list.segments.length), total: count(list.total) }))
        : nothing}
      ${card(t('storage.line'), lineView(list), { actions: scaleChoice() })}
      ${card(t('storage.why'), reasonsView(groups))}
      ${card(t('storage.segments'), html`${segmentTable(list.segments)} ${pages(list)}`)}
      ${card(t('storage.holders'), holdersView(list.segments))}
      ${card(t('storage.history-card'), historyView(list, groups))}
    `;
  }

  // ------------------------------------------------------------------ the time line

  function scaleChoice() {
    return html`<div class="choice" role="group" aria-label=${t('storage.scale')}>
      ${['time', 'rows'].map(
        (scale) => html`<button
          class="small" aria-pressed=${scale === state.scale}
          @click=${() => {
            state.scale = scale;
            update();
          }}
        >${t(`storage.scale.${scale}`)}</button>`,
      )}
    </div>`;
  }

  function lineView(list) {
    const { segments } = list;
    // A page before the end of the list ends with its last segment.
    const isNewest = list.next === null;
    const end = Date.parse(isNewest ? list.time : segments.at(-1).last_time);
    const first = Date.parse(segments[0].first_time);
    const largest = Math.max(...segments.map((one) => one.bytes));
    const ticks = state.scale === 'time' ? [0, 0.25, 0.5, 0.75] : [];
    return html`<div class="segment-line">
      <svg
        viewBox=${`0 0 ${LINE.width} ${LINE.height}`} preserveAspectRatio="none" role="img"
        aria-label=${t('storage.line-label', { segments: count(segments.length), first: time(first) })}
      >
        ${places(segments, state.scale, first, end).map((place) => bar(place, largest, showSegment))}
      </svg>
      <p class="segment-ticks" aria-hidden="true">
        ${ticks.map((part) => html`<span>${shortTime(first + part * (end - first))}</span>`)}
        ${state.scale === 'time' ? nothing : html`<span>${shortTime(first)}</span>`}<span>${isNewest ? t('storage.now') : shortTime(end)}</span>
      </p>
      <p class="soft hint">${t('storage.line-text')}</p>
    </div>`;
  }

  // ------------------------------------------------------------------ reasons

  function reasonsView(groups) {
    return html`<ul class="reasons">
      ${REASONS.filter((reason) => groups.has(reason)).map((reason) => {
        const group = groups.get(reason);
        const values = { segments: count(group.segments), size: bytes(group.bytes) };
        return html`<li>
          <span class="reason-mark ${reason}" aria-hidden="true"></span>
          <div>
            <h3>${reasonName(reason)} <span class="soft number">${t('storage.share', values)}</span></h3>
            <p class="soft hint">${hasText(`storage.why.${reason}`) ? t(`storage.why.${reason}`) : nothing}</p>
          </div>
        </li>`;
      })}
    </ul>`;
  }

  // ------------------------------------------------------------------ the table

  function segmentTable(segments) {
    const present = REASONS.filter((reason) => segments.some((one) => reasonsOf(one).includes(reason)));
    const rows = newestFirst(segments).filter((one) => state.reason === 'all' || reasonsOf(one).includes(state.reason));
    return html`
      <div class="choice segment-choice" role="group" aria-label=${t('storage.kept')}>
        ${['all', ...present].map(
          (reason) => html`<button class="small" aria-pressed=${reason === state.reason} @click=${() => chooseReason(reason)}>
            ${reason === 'all' ? t('storage.all') : reasonName(reason)}
          </button>`,
        )}
      </div>
      ${table({
        label: t('storage.segments'),
        rows: rows.slice(state.offset, state.offset + SHOWN_SEGMENTS),
        rowKey: (one) => one.number,
        empty: html`<p class="soft">${t('storage.none-of-reason')}</p>`,
        columns: [
          {
            title: t('storage.segment'),
            cell: (one) => html`<span
              id=${`segment-${one.number}`} title=${t('storage.rows', { first: one.first_lsn, last: one.last_lsn })}
            >${one.number}</span>`,
          },
          { title: t('ui.state'), cell: (one) => badge(stateName(one.state), one.state === 'active' ? 'good' : 'neutral') },
          { title: t('storage.begin'), cell: (one) => moment(one.first_time) },
          { title: t('storage.to'), cell: (one) => moment(one.last_time) },
          { title: t('storage.size'), align: 'end', cell: (one) => bytes(one.bytes) },
          { title: t('storage.stored'), align: 'end', cell: (one) => count(one.messages) },
          { title: t('storage.kept'), cell: (one) => html`<span class="kept">${reasonsOf(one).map((reason) => reasonBadge(one, reason))}</span>` },
          { title: t('storage.needed-by'), cell: (one) => holderLinks(one) },
        ],
      })}
      ${pager({
        offset: state.offset,
        limit: SHOWN_SEGMENTS,
        total: rows.length,
        onPage: (offset) => {
          state.offset = offset;
          update();
        },
      })}
    `;
  }

  /** The way to further segments, if the log has more than a reply. */
  function pages(list) {
    if (state.afters.length === 1 && list.next === null) {
      return nothing;
    }
    return html`<div class="pager">
      <button ?disabled=${state.afters.length === 1} @click=${() => go(['0'])}>${t('storage.earlier')}</button>
      <button ?disabled=${list.next === null} @click=${() => go([...state.afters, list.next])}>${t('storage.later')}</button>
    </div>`;
  }

  return { title: () => t('storage.title'), view };
}

// -------------------------------------------------------------------- figures

function figures(list) {
  const needed = list.segments.filter((one) => one.holder_count > 0).length;
  const isKnown = list.log_bytes > 0;
  const since = t('storage.since', { time: shortTime(list.segments[0].first_time) });
  return html`<section class="card" aria-label=${t('storage.disk')}>
    <div class="storage-room">
      <div class="figures">
        ${figure(t('storage.log'), isKnown ? bytes(list.log_bytes) : t('storage.unknown'), isKnown ? since : t('storage.in-memory'))}
        ${figure(
          t('storage.segments'), count(list.total), list.segments.length < list.total ? nothing : t('storage.of-them', { needed: count(needed) }),
        )}
        ${figure(
          t('storage.history'),
          bytes(list.history_bytes),
          list.keep_history > 0 ? t('storage.history-for', { time: duration(list.keep_history) }) : t('storage.no-history'),
        )}
        ${figure(t('storage.free'), list.free_bytes > 0 ? bytes(list.free_bytes) : t('storage.unknown'))}
      </div>
      ${isKnown && list.free_bytes > 0 ? roomBar(list) : nothing}
    </div>
  </section>`;
}

/** The room of the log on its disk as a bar: needed, history, free. */
function roomBar({ log_bytes: log, history_bytes: history, free_bytes: free }) {
  const all = log + free;
  const kept = (Math.min(history, log) / all) * LINE.width;
  const needed = (Math.max(0, log - history) / all) * LINE.width;
  const label = t('storage.disk-text', { log: bytes(log), history: bytes(history), free: bytes(free) });
  return html`<svg class="room-bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="free" width="1000" height="10"></rect>
    <rect class="needed" width=${Math.max(needed, 2)} height="10"></rect>
    <rect class="history" x=${needed} width=${kept} height="10"></rect>
  </svg>`;
}

// -------------------------------------------------------------------- the time line

/**
 * Return `{ segment, x, width }` of each bar. By order all bars have the same width. By time a bar has at least the least
 * width, and bars that would cover each other are pushed aside.
 */
function places(segments, scale, first, end) {
  const slot = LINE.width / segments.length;
  if (scale === 'rows') {
    return segments.map((segment, index) => ({ segment, x: index * slot, width: Math.max(slot - LINE.gap, slot / 2) }));
  }
  const least = Math.min(LINE.least, slot);
  const at = (moment) => ((Date.parse(moment) - first) / Math.max(end - first, 1)) * LINE.width;
  const ends = segments.map(() => LINE.width);
  let free = LINE.width;
  for (let index = segments.length - 1; index >= 0; index -= 1) {
    ends[index] = free;
    // The bars before need their least width too.
    free = Math.max(index * least, Math.min(at(segments[index].first_time), free - least));
  }
  let begin = 0;
  return segments.map((segment, index) => {
    const x = Math.min(Math.max(at(segment.first_time), begin), ends[index] - least);
    const stop = Math.min(Math.max(at(segment.last_time), x + least), ends[index]);
    begin = stop;
    return { segment, x, width: Math.max(stop - x - LINE.gap, (stop - x) / 2) };
  });
}

function bar({ segment, x, width }, largest, onChoose) {
  const height = Math.max((segment.bytes / largest) * LINE.height, 6);
  // Deliveries are counted for each subscription, so they may be more than the messages.
  const share = segment.messages === 0 ? 0 : Math.min(1, (segment.live + segment.rewindable + segment.undelivered) / segment.messages);
  const filled = share === 0 ? 0 : Math.max(share * height, 3);
  // The text for the pointer is made when the pointer comes: the dates of a thousand bars take tens of milliseconds.
  return svg`<g
    class="segment-bar ${reasonsOf(segment)[0]}" @click=${() => onChoose(segment)}
    @pointerenter=${(event) => {
      event.currentTarget.firstElementChild.textContent = description(segment);
    }}
  >
    <title></title>
    <rect class="whole" x=${x} y=${LINE.height - height} width=${width} height=${height}></rect>
    <rect class="filled" x=${x} y=${LINE.height - filled} width=${width} height=${filled}></rect>
  </g>`;
}

function description(segment) {
  return [
    `${t('storage.segment')} ${segment.number}`,
    bytes(segment.bytes),
    `${time(segment.first_time)} – ${time(segment.last_time)}`,
    ...reasonsOf(segment).map((reason) => reasonText(segment, reason)),
  ].join(' · ');
}

// -------------------------------------------------------------------- reasons

/** The reasons of a segment, the strongest first; reasons of a newer broker come last. */
function reasonsOf({ kept_for: kept }) {
  if (kept.length === 0) {
    return ['none'];
  }
  return [...REASONS.filter((reason) => kept.includes(reason)), ...kept.filter((reason) => !REASONS.includes(reason))];
}

function reasonName(reason) {
  return hasText(`storage.reason.${reason}`) ? t(`storage.reason.${reason}`) : reason;
}

/** A reason with its count, if it has one. */
function reasonText(segment, reason) {
  return reason in COUNTS ? t(`storage.count.${reason}`, { n: count(segment[COUNTS[reason]]) }) : reasonName(reason);
}

function reasonBadge(segment, reason) {
  return html`<span class="badge reason ${reason}">${reasonText(segment, reason)}</span>`;
}

function stateName(state) {
  return hasText(`storage.state.${state}`) ? t(`storage.state.${state}`) : state;
}

/** Segments and bytes of each reason. A segment with several reasons counts for each. */
function grouped(segments) {
  const groups = new Map();
  for (const one of segments) {
    for (const reason of reasonsOf(one)) {
      const group = groups.get(reason) ?? { segments: 0, bytes: 0 };
      groups.set(reason, { segments: group.segments + 1, bytes: group.bytes + one.bytes });
    }
  }
  return groups;
}

function newestFirst(segments) {
  return [...segments].reverse();
}

function moment(text) {
  return html`<time class="number" datetime=${text} title=${time(text)}>${shortTime(text)}</time>`;
}

// -------------------------------------------------------------------- queues and topics

/** A queue or topic; a link if it belongs to the account of the session. */
function holderName({ account, name, is_topic: isTopic }) {
  if (account !== session.key.account) {
    return html`${account}/${name}`;
  }
  return html`<a href=${href(`${isTopic ? 'topics' : 'queues'}/${pathSegment(name)}`)}>${name}</a>`;
}

function holderLinks({ holders, holder_count: all }) {
  if (holders.length === 0) {
    return html`<span class="soft">–</span>`;
  }
  const more = all - holders.length;
  return html`<span class="holders">
    ${holders.map(
      (holder) => html`<span>${holderName(holder)} <span class="soft number">${shortCount(holder.live + holder.rewindable)}</span></span>`,
    )}
    ${more > 0 ? html`<span class="soft">${t('storage.more-holders', { count: count(more) })}</span>` : nothing}
  </span>`;
}

/** Sums over the segments of the page, of the queues and topics that each segment names. */
function largestHolders(segments) {
  const sums = new Map();
  for (const one of segments) {
    for (const holder of one.holders) {
      const key = JSON.stringify([holder.account, holder.name, holder.is_topic]);
      const sum = sums.get(key) ?? { ...holder, key, live: 0, rewindable: 0, segments: 0, oldest: one.first_time };
      sum.live += holder.live;
      sum.rewindable += holder.rewindable;
      sum.segments += 1;
      sums.set(key, sum);
    }
  }
  return [...sums.values()].sort((one, other) => other.segments - one.segments || other.live - one.live).slice(0, SHOWN_HOLDERS);
}

function holdersView(segments) {
  const rows = largestHolders(segments);
  return html`<p class="soft hint">${t('storage.holders-text')}</p>
    ${table({
      label: t('storage.holders'),
      rows,
      rowKey: (row) => row.key,
      empty: html`<p class="soft">–</p>`,
      columns: [
        { title: t('storage.holder'), cell: (row) => html`<span>${holderName(row)}${row.is_topic ? html` ${badge(t('storage.topic'))}` : nothing}</span>` },
        { title: t('ui.account'), cell: (row) => row.account },
        { title: t('storage.live'), align: 'end', cell: (row) => count(row.live) },
        { title: t('storage.rewindable'), align: 'end', cell: (row) => count(row.rewindable) },
        { title: t('storage.segments'), align: 'end', cell: (row) => count(row.segments) },
        { title: t('ui.oldest'), cell: (row) => html`<time datetime=${row.oldest} title=${time(row.oldest)}>${relativeTime(row.oldest)}</time>` },
      ],
    })}`;
}

// -------------------------------------------------------------------- history

function historyView(list, groups) {
  const history = groups.get('history') ?? { segments: 0, bytes: 0 };
  const text = list.keep_history > 0
    ? t('storage.history-on', {
        time: duration(list.keep_history), segments: count(history.segments), size: bytes(history.bytes),
      })
    : t('storage.history-off');
  return html`<div class="history-text">
    <p>${text}</p>
    ${list.keep_history > 0
      ? html`<p class="soft">${t('storage.read-history')}</p>
          ${copyBlock('cmq segment list --path DATA\ncmq replay --path DATA --queue orders --from 1h --into orders-again --create')}`
      : copyBlock('cmqd serve --keep-history-ms 7d')}
    <p class="soft">${t('storage.same-on-line')}</p>
    ${copyBlock('cmq segment list')}
  </div>`;
}
