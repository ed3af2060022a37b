/** Tags and routing keys of messages, and the filters of subscriptions, as text that people type and read. */

import { html } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { visible } from '../../app/format.js';
import { t } from '../../app/text.js';

/** Return the parts of a text between commas and line breaks, without spaces around them and without repetitions. */
export function listOf(text) {
  return [...new Set(text.split(/[,，\n]/).map((part) => part.trim()).filter(Boolean))];
}

/** Return short texts side by side; `none` stands for an empty list. */
export function chips(values, none) {
  return values.length === 0
    ? html`<span class="soft">${none}</span>`
    : html`<span class="chips">${values.map((value) => html`<code class="chip">${visible(value)}</code>`)}</span>`;
}

/** Return the tags or the routing key of a message. */
export function labelsOf(message) {
  return chips(message.routing_key === null ? message.tags : [message.routing_key], '–');
}

/** Return the badge of the state of a message for a subscription. */
export function deliveryState(state) {
  const kinds = {
    delivered: 'good', under_way: 'in-flight', waiting: 'active', in_retry: 'warning', out_of_retries: 'bad', dropped: 'bad',
  };
  return html`<span class=${`badge ${kinds[state] ?? 'neutral'}`}>${t(`topic.message.state.${state}`)}</span>`;
}
