/** The dialog that publishes a test message. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { request, segment } from '../../app/api.js';
import { bytes, count } from '../../app/format.js';
import { t } from '../../app/text.js';
import { copyValue } from '../../ui/copy.js';
import { openDialog } from '../../ui/dialog.js';
import { areaField, createForm, textField } from '../../ui/form.js';
import { notice } from '../../ui/notice.js';
import { newKey } from '../queue/queue-send.js';
import { listOf } from './topic-labels.js';

/** Return headers of lines `name: value`. @throws Error with the fault of a line. */
function headersOf(text) {
  const headers = {};
  for (const [index, line] of text.split('\n').entries()) {
    if (line.trim() === '') {
      continue;
    }
    const colon = line.indexOf(':');
    if (colon < 1) {
      throw new Error(t('topic.publish.headers-wrong', { number: index + 1 }));
    }
    headers[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
  }
  return headers;
}

/**
 * Open the dialog. It stays open after a publish, for the next message.
 *
 * @param topic the topic, as the JSON API describes it.
 * @param labels tags or routing key to begin with, as text.
 * @param onPublished called with the id of each message.
 * @param onReport called with the id of the message whose deliveries are wanted; the dialog is closed before.
 */
export function openPublishDialog({ topic, labels = '', signal, onPublished, onReport }) {
  const isRouting = topic.attributes.filter_type === 'routing';
  let result = null;
  let dialog = null;
  let attempt = { content: '', key: '' };
  const form = createForm({
    values: { body: '', labels, headers: '', dedup_id: '' },
    update: () => dialog?.update(),
    check({ headers }) {
      try {
        headersOf(headers);
        return {};
      } catch (fault) {
        return { headers: fault.message };
      }
    },
    async submit(values) {
      result = null;
      const message = { body: values.body, headers: headersOf(values.headers) };
      if (isRouting) {
        message.routing_key = values.labels;
      } else {
        message.tags = listOf(values.labels);
      }
      if (values.dedup_id.trim() !== '') {
        message.dedup_id = values.dedup_id.trim();
      }
      // An answer that was lost leaves the outcome open. A repeat of the same message has the same key, so the topic
      // takes the message once; a changed message is another message and has another key.
      const text = JSON.stringify(message);
      if (attempt.content !== text) {
        attempt = { content: text, key: newKey() };
      }
      const sent = { body: message };
      if (message.dedup_id === undefined) {
        sent.headers = { 'Idempotency-Key': attempt.key };
      }
      try {
        result = await request('POST', `/topics/${segment(topic.name)}/messages`, sent);
      } catch (error) {
        // The field of the page for both kinds of labels.
        if (/^(tags|routing_key)/.test(error.field ?? '')) {
          error.field = 'labels';
        }
        throw error;
      }
      // The next publish of the dialog is wanted, also of the same text.
      attempt = { content: '', key: '' };
      onPublished(result.id);
    },
  });
  const published = ({ close }) => html`<div role="status">
    ${result === null
      ? nothing
      : notice(
          result.matched === 0 ? 'warning' : 'good',
          html`<p>${outcome(result.matched)}</p>
            <p>${copyValue(result.id)}
              ${result.matched === 0
                ? nothing
                : html`<button
                    type="button"
                    class="quiet small"
                    @click=${() => {
                      close();
                      onReport(result.id);
                    }}
                  >${t('topic.message.report')}</button>`}
            </p>`,
        )}
  </div>`;
  dialog = openDialog({
    title: () => t('topic.publish.title', { topic: topic.name }),
    signal,
    wide: true,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()} ${published({ close })}
      ${areaField({
        form,
        name: 'body',
        label: t('topic.publish.body'),
        hint: t('topic.publish.body-hint', { limit: bytes(topic.attributes.max_message_bytes) }),
        required: true,
        code: true,
      })}
      ${isRouting
        ? textField({ form, name: 'labels', label: t('topic.publish.key'), hint: t('topic.tester.key-hint'), required: true })
        : textField({ form, name: 'labels', label: t('topic.publish.tags'), hint: t('topic.tester.tags-hint') })}
      ${areaField({ form, name: 'headers', label: t('topic.publish.headers'), hint: t('topic.publish.headers-hint'), rows: 2, code: true })}
      ${textField({ form, name: 'dedup_id', label: t('topic.publish.dedup'), hint: t('topic.publish.dedup-hint') })}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.close')}</button>
        ${form.submitButton(t('topic.publish.send'))}
      </div>
    </form>`,
  });
}

function outcome(matched) {
  if (matched === null) {
    return t('topic.publish.before');
  }
  return matched === 0 ? t('topic.publish.discarded') : t('topic.publish.done', { matched: count(matched) });
}
