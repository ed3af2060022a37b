/** The dialog that publishes a test message. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { segment } from '../../app/api.js';
import { bytes, count } from '../../app/format.js';
import { createSender } from '../../app/sending.js';
import { t } from '../../app/text.js';
import { copyValue } from '../../ui/copy.js';
import { formDialog } from '../../ui/dialog.js';
import { areaField, textField } from '../../ui/form.js';
import { dedupField, headersFault, headersField, headersOf } from '../../ui/message-fields.js';
import { notice } from '../../ui/notice.js';
import { listOf } from './topic-labels.js';

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
  const send = createSender();
  let result = null;
  const published = (close) => html`<div role="status">
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
  formDialog({
    title: () => t('topic.publish.title', { topic: topic.name }),
    signal,
    wide: true,
    values: { body: '', labels, headers: '', dedup_id: '' },
    check: ({ headers }) => headersFault(headers),
    fields: (form, close) => html`${published(close)}
      ${areaField({
        form,
        name: 'body',
        label: t('ui.body'),
        hint: t('topic.publish.body-hint', { limit: bytes(topic.attributes.max_message_bytes) }),
        required: true,
        code: true,
      })}
      ${isRouting
        ? textField({ form, name: 'labels', label: t('ui.routing-key'), hint: t('topic.tester.key-hint'), required: true })
        : textField({ form, name: 'labels', label: t('ui.tags'), hint: t('topic.tester.tags-hint') })}
      ${headersField(form)} ${dedupField(form)}`,
    button: t('topic.publish.send'),
    cancel: t('ui.close'),
    async submit({ body, headers, dedup_id: dedupId, ...typed }) {
      result = null;
      try {
        result = await send(`/topics/${segment(topic.name)}/messages`, {
          body,
          headers: headersOf(headers),
          dedup_id: dedupId.trim() || null,
          ...(isRouting ? { routing_key: typed.labels } : { tags: listOf(typed.labels) }),
        });
      } catch (error) {
        // The field of the page for both kinds of labels.
        if (/^(tags|routing_key)/.test(error.field ?? '')) {
          error.field = 'labels';
        }
        throw error;
      }
      onPublished(result.id);
    },
  });
}

function outcome(matched) {
  if (matched === null) {
    return t('topic.publish.before');
  }
  return matched === 0 ? t('topic.publish.discarded') : t('topic.publish.done', { matched: count(matched) });
}
