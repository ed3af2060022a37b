/** Sends of messages that are stored once, also if an answer is lost and the reader sends again. */

import { request } from './api.js';

/** Return a random key; `crypto.randomUUID` is missing on pages without HTTPS. */
function newKey() {
  return `console-${[...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join('')}`;
}

/**
 * Return a function that posts a message.
 *
 * An answer that was lost leaves the outcome open. A repeat of the same message has the same key, so the broker stores
 * the message once; a changed message is another message and has another key, and so has a message behind a success.
 */
export function createSender(signal) {
  let attempt = { content: '', key: '' };
  return async (path, message) => {
    const content = JSON.stringify(message);
    if (attempt.content !== content) {
      attempt = { content, key: newKey() };
    }
    const headers = message.dedup_id ? {} : { 'Idempotency-Key': attempt.key };
    const reply = await request('POST', path, { body: message, headers, signal });
    attempt = { content: '', key: '' };
    return reply;
  };
}
