/** The findings of the overview in words: a sentence for each code, with the figures of the finding. */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { bytes, duration, shortTime, weekday, clock, calendarDay } from '../app/format.js';
import { href } from '../app/router.js';
import { segment } from '../app/api.js';
import { can, isAdmin, session } from '../app/session.js';
import { hasText, t } from '../app/text.js';
import { card } from '../ui/parts.js';
import { icon } from '../ui/icon.js';

const DAY_S = 86_400;
const QUEUE_CODES = new Set(['dead_letters_grow', 'dead_letters_wait', 'half_used_up']);

/** Return a moment as people say it: `today about 14:00`, `on Thursday about 14:00`, `about 24 December`. */
export function whenText(seconds, now = Date.now() / 1000) {
  const moment = new Date(seconds * 1000);
  // An hour is more exact than a forecast.
  const rounded = new Date(moment);
  rounded.setMinutes(moment.getMinutes() < 30 ? 0 : 60, 0, 0);
  const midnight = new Date(now * 1000).setHours(0, 0, 0, 0);
  const days = Math.floor((rounded.getTime() - midnight) / 1000 / DAY_S);
  const values = { time: clock(rounded), day: days < 7 ? weekday(rounded) : calendarDay(rounded) };
  if (days <= 0) {
    return t('overview.today', values);
  }
  if (days === 1) {
    return t('overview.tomorrow', values);
  }
  return t(days < 7 ? 'overview.weekday' : 'overview.date', values);
}

/** Return the sentence of a finding. */
export function findingText({ code, figures = {} }) {
  const key = `overview.finding.${code}`;
  if (!hasText(key)) {
    // A gateway that is newer than the page, for the moment of a release.
    return code.replaceAll('_', ' ');
  }
  return t(key, valuesOf(figures, code));
}

function valuesOf(figures, code) {
  const values = {
    n: figures.count ?? figures.active ?? figures.in_retry ?? figures.waiting ?? 0,
    more: figures.count,
    grown: figures.grown,
    span: figures.seconds === undefined ? '' : duration(roundSpan(figures.seconds)),
    age: figures.age_seconds === undefined ? '' : duration(figures.age_seconds),
    retention: figures.retention_seconds === undefined ? '' : duration(figures.retention_seconds),
    p99: figures.p99_ms === undefined ? '' : duration(figures.p99_ms / 1000),
    free: figures.free_bytes === undefined ? '' : bytes(figures.free_bytes),
    loss: figures.bytes_per_second === undefined ? '' : bytes(figures.bytes_per_second * 3_600),
    bytes: figures.bytes === undefined ? '' : bytes(figures.bytes),
    budget: figures.budget_bytes === undefined ? '' : bytes(figures.budget_bytes),
    when: figures.at === undefined ? '' : whenText(figures.at),
    backup: figures.backup ?? '',
    url: figures.endpoint?.includes('://') ? t('overview.to-url', { url: figures.endpoint }) : '',
    error: figures.last_error ? t('overview.with-error', { error: figures.last_error }) : '',
  };
  if (code === 'dead_letters_grow') {
    values.n = figures.active;
  }
  return values;
}

/** A span of about five minutes reads better without its seconds. */
function roundSpan(seconds) {
  return seconds < 90 ? Math.round(seconds) : Math.round(seconds / 60) * 60;
}

/** Return where the object of a finding can be seen: `[text, address]`; the address is null without a page for it. */
function subject({ code, names = {} }) {
  const isOwn = !names.account || names.account === session.key?.account;
  const prefix = isOwn ? '' : `${names.account}: `;
  if (names.queue) {
    const page = QUEUE_CODES.has(code) ? (code === 'half_used_up' ? 'half-messages' : 'dead-letters') : null;
    const ofQueue = page ? href(page, { queue: names.queue }) : href(`queues/${segment(names.queue)}`);
    // The last consumers tell which program is missing.
    const address =
      code === 'no_consumers' && can('manage') ? href('connections', { tab: 'consumers', queue: names.queue }) : ofQueue;
    return [prefix + names.queue, isOwn ? address : null];
  }
  if (names.topic) {
    return [`${prefix}${names.topic} → ${names.subscription}`, isOwn ? href(`topics/${segment(names.topic)}`) : null];
  }
  const pages = {
    disk_full_at: isAdmin() ? 'storage' : null,
    sends_refused: isAdmin() ? 'storage' : null,
    damaged_messages: isAdmin() ? 'storage' : null,
    schedules_missed: 'schedules',
    connections_refused: can('manage') ? 'connections' : null,
  };
  const page = pages[code];
  return page ? [t(`shell.page.${page}`), href(page)] : ['', null];
}

function row(finding) {
  const [text, address] = subject(finding);
  const isOfServer = !finding.names?.queue && !finding.names?.topic;
  const link = address ? html`<a href=${address}>${text}</a>` : html`<strong>${text}</strong>`;
  return html`<li class="finding ${finding.severity}">
    ${icon(finding.severity === 'notice' ? 'right' : 'warning')}
    <p>
      <span class="visually-hidden">${t(`overview.${finding.severity}`)}: </span>
      ${isOfServer ? nothing : html`${link} `}${findingText(finding)}
      ${isOfServer && address ? html` <a href=${address}>${text}</a>` : nothing}
      ${finding.more ? html`<span class="soft">${t('overview.more', { n: finding.more })}</span>` : nothing}
      <span class="soft finding-since">${t('overview.since', { time: shortTime(finding.since * 1000) })}</span>
    </p>
  </li>`;
}

/** Return the card with the findings; `findings` null = not known yet. */
export function findingsCard(findings) {
  const number = findings?.length ?? 0;
  const status = html`<p class="soft" role="status">
    ${findings === null ? t('overview.looking') : number === 0 ? nothing : t('overview.found', { n: number })}
  </p>`;
  const content =
    number === 0
      ? html`<p class="finding well">${findings === null ? nothing : html`${icon('good')} ${t('overview.all-well')}`}</p>`
      : html`<ul class="findings">${findings.map(row)}</ul>`;
  return card(t('overview.findings'), content, { actions: status });
}
