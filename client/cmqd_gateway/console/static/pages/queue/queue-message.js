/** The parts of a message in full, peeked or received: times, origin, headers. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { segment } from '../../app/api.js';
import { count, time, visible } from '../../app/format.js';
import { href } from '../../app/router.js';
import { hasText, t } from '../../app/text.js';
import { copyValue } from '../../ui/copy.js';
import { badge, factList } from '../../ui/parts.js';

/** Return the start of a body in one line. */
export function previewOf(content) {
  const preview = content.preview();
  return preview === ''
    ? html`<span class="soft">${t('queue.empty-body')}</span>`
    : html`<code class="excerpt">${visible(preview)}</code>`;
}

/** Return the facts of a message and its headers. */
export function messageFacts(message) {
  return html`${factList([
    [t('ui.message'), html`${copyValue(message.id)} <a href=${href('message-history', { message: message.id })}>${t('queue.history')}</a>`],
    [t('queue.sent'), time(message.enqueue_time)],
    message.visible_time ? [t('queue.visible'), time(message.visible_time)] : null,
    message.first_receive_time ? [t('queue.first-receive'), time(message.first_receive_time)] : null,
    [t('queue.receives'), count(message.receive_count)],
    message.origin ? [t('ui.origin'), originView(message.origin)] : null,
    message.origin?.rejection ? [t('queue.rejection'), visible(message.origin.rejection)] : null,
    message.copy_of ? [t('queue.copy-of'), copyView(message.copy_of)] : null,
    message.copy_of?.tags.length > 0 ? [t('ui.tags'), visible(message.copy_of.tags.join(', '))] : null,
    message.copy_of?.routing_key ? [t('ui.routing-key'), visible(message.copy_of.routing_key)] : null,
    Object.keys(message.headers).length === 0
      ? [t('ui.headers'), html`<span class="soft">${t('ui.none')}</span>`]
      : null,
  ])}
    ${headersView(message.headers)}`;
}

/** Return the headers of a message, or nothing if it has none. */
export function headersView(headers) {
  const entries = Object.entries(headers);
  return entries.length === 0
    ? nothing
    : html`<section class="headers" aria-label=${t('ui.headers')}>
        <h3>${t('ui.headers')}</h3>
        <dl>${entries.map(([name, value]) => html`<div><dt>${visible(name)}</dt><dd>${visible(value)}</dd></div>`)}</dl>
      </section>`;
}

function originView(origin) {
  const key = `queue.reason.${origin.reason}`;
  return html`<a href=${href(`queues/${segment(origin.queue)}`)}>${t('queue.origin-text', {
    queue: origin.queue,
    id: origin.id,
    time: time(origin.enqueue_time),
    receives: count(origin.receive_count),
    reason: hasText(key) ? t(key) : origin.reason,
  })}</a>`;
}

function copyView(copy) {
  const { topic, subscription, publish_time: published } = copy;
  return html`<a href=${href(`topics/${segment(topic)}`)}>${t('queue.copy-of-text', { topic, subscription, time: time(published) })}</a>`;
}

/** Return the badge of the state of a message. */
export function stateBadge(state) {
  return badge(t(`queue.state.${state}`), state === 'in_flight' ? 'in-flight' : state);
}
