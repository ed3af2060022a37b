/** The dialog that sends a test message: body from text or a file, delay, headers, dedup id, half messages. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { bytes, duration } from '../../app/format.js';
import { limits, rangeOf } from '../../app/limits.js';
import { createSender } from '../../app/sending.js';
import { t } from '../../app/text.js';
import { bodyOfBytes } from '../../ui/body-content.js';
import { formDialog } from '../../ui/dialog.js';
import { areaField, checkField, durationField, field } from '../../ui/form.js';
import { dedupField, headersFault, headersField, headersOf } from '../../ui/message-fields.js';
import { toast } from '../../ui/toast.js';

/** Open the dialog. Returns a promise of true if a message was sent. @throws ApiError: the limits could not be read. */
export async function openSendDialog({ name, path, attributes, signal }) {
  const ranges = await limits('SendHalfMessage');
  const send = createSender(signal);
  let file = null;

  return formDialog({
    title: `${t('queue.send')}: ${name}`,
    signal,
    wide: true,
    values: { kind: 'text', body: '', headers: '', delay: null, dedup_id: '', half: false, first_check: null },
    isTyped: (values) => values.body !== '' || values.headers !== '' || file !== null,
    check: (values) => ({ ...bodyFault(values, file, attributes), ...headersFault(values.headers) }),
    fields: (form) => html`<div class="choice" role="group" aria-label=${t('ui.body')}>
        ${['text', 'file'].map(
          (kind) => html`<button type="button" class="small" aria-pressed=${form.values.kind === kind} @click=${() => form.set('kind', kind)}>
            ${t(`queue.kind.${kind}`)}
          </button>`,
        )}
      </div>
      ${form.values.kind === 'text' ? bodyField(form) : fileField(form)} ${headersField(form)}
      <div class="fields">${form.values.half ? nothing : delayField(form)} ${dedupField(form, ranges.dedup_id)}</div>
      ${attributes.transactional ? halfFields(form) : nothing}`,
    button: t('queue.send-button'),
    async submit(values) {
      const isHalf = attributes.transactional && values.half;
      const content =
        values.kind === 'file' ? bodyOfBytes(new Uint8Array(await file.content)) : { body: values.body, encoding: 'utf-8' };
      const sent = await send(`${path}/${isHalf ? 'half-messages' : 'messages'}`, {
        ...content,
        headers: headersOf(values.headers),
        dedup_id: values.dedup_id.trim() || null,
        ...(isHalf ? { first_check: values.first_check } : { delay: values.delay }),
      });
      toast(t('queue.sent-toast', { id: sent.id }));
      return true;
    },
  });

  function bodyField(form) {
    const size = bytes(new TextEncoder().encode(form.values.body).length);
    const hint = t('queue.size-of', { size, limit: bytes(attributes.max_message_bytes) });
    return areaField({ form, name: 'body', label: t('ui.body'), hint, rows: 7, code: true });
  }

  function fileField(form) {
    const limit = bytes(attributes.max_message_bytes);
    const hint = file === null ? limit : t('queue.size-of', { size: bytes(file.size), limit });
    return field({
      form,
      name: 'body',
      label: t('queue.file'),
      hint,
      input: ({ id, described, invalid }) =>
        html`<input id=${id} type="file" aria-describedby=${described} aria-invalid=${invalid} @change=${(event) => chooseFile(form, event)} />`,
    });
  }

  function chooseFile(form, event) {
    const [chosen] = event.target.files;
    // A file above the limit is not read: it may have gigabytes. A send waits for the end of the reading.
    const isRead = chosen && chosen.size <= attributes.max_message_bytes;
    file = chosen ? { size: chosen.size, content: isRead ? chosen.arrayBuffer() : null } : null;
    form.setError('body', bodyFault(form.values, file, attributes).body ?? null);
  }

  function delayField(form) {
    return durationField({
      form,
      name: 'delay',
      label: t('queue.delay'),
      required: false,
      hint: t('queue.delay-text', { delay: duration(attributes.delay) }),
    });
  }

  function halfFields(form) {
    return html`${checkField({ form, name: 'half', label: t('queue.as-half'), hint: t('queue.as-half-text') })}
      ${form.values.half ? html`<div class="fields">${firstCheckField(form)}</div>` : nothing}`;
  }

  function firstCheckField(form) {
    return durationField({
      form,
      name: 'first_check',
      label: t('queue.first-check'),
      required: false,
      ...rangeOf(ranges.first_check),
      hint: t('queue.first-check-text', { time: duration(attributes.first_check) }),
    });
  }

}

function bodyFault(values, file, attributes) {
  if (values.kind === 'file' && file === null) {
    return { body: t('queue.no-file') };
  }
  const size = values.kind === 'file' ? file.size : new TextEncoder().encode(values.body).length;
  const limit = attributes.max_message_bytes;
  return size > limit ? { body: t('queue.too-large', { size: bytes(size), limit: bytes(limit) }) } : {};
}
