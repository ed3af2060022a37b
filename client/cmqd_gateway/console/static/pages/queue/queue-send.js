/** The dialog that sends a test message: body from text or a file, delay, headers, dedup id, half messages. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { request } from '../../app/api.js';
import { bytes, duration } from '../../app/format.js';
import { limits, rangeOf } from '../../app/limits.js';
import { t } from '../../app/text.js';
import { bodyOfBytes } from '../../ui/body-content.js';
import { openDialog } from '../../ui/dialog.js';
import { areaField, checkField, createForm, durationField, field, textField } from '../../ui/form.js';
import { toast } from '../../ui/toast.js';

/** Open the dialog. Returns a promise of true if a message was sent. @throws ApiError: the limits could not be read. */
export async function openSendDialog({ name, path, attributes, signal }) {
  const ranges = await limits('SendHalfMessage');
  let dialog = null;
  let file = null;
  let attempt = { content: '', key: '' };

  const form = createForm({
    values: {
      kind: 'text',
      body: '',
      headers: '',
      delay: null,
      dedup_id: '',
      half: false,
      first_check: null,
    },
    update: () => dialog?.update(),
    check: (values) => ({ ...bodyFault(values, file, attributes), ...headersFault(values.headers) }),
    async submit(values) {
      const isHalf = attributes.transactional && values.half;
      const content =
        values.kind === 'file' ? bodyOfBytes(new Uint8Array(await file.content)) : { body: values.body, encoding: 'utf-8' };
      const message = {
        ...content,
        headers: Object.fromEntries(headerLines(values.headers).map(({ header, value }) => [header, value])),
        dedup_id: values.dedup_id === '' ? null : values.dedup_id,
        ...(isHalf ? { first_check: values.first_check } : { delay: values.delay }),
      };
      // An answer that was lost leaves the outcome open. A repeat of the same message has the same key, so the queue
      // stores the message once; a changed message is another message and has another key.
      const text = JSON.stringify(message);
      if (attempt.content !== text) {
        attempt = { content: text, key: newKey() };
      }
      const headers = message.dedup_id === null ? { 'Idempotency-Key': attempt.key } : {};
      const sent = await request('POST', `${path}/${isHalf ? 'half-messages' : 'messages'}`, {
        body: message,
        headers,
        signal,
      });
      toast(t('queue.sent-toast', { id: sent.id }));
      dialog.close(true);
    },
  });

  dialog = openDialog({
    title: `${t('queue.send')}: ${name}`,
    signal,
    wide: true,
    isTyped: () => form.values.body !== '' || form.values.headers !== '' || file !== null,
    body: () => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()}
      <div class="choice" role="group" aria-label=${t('queue.body-kind')}>
        ${['text', 'file'].map(
          (
            kind,
          ) => html`<button type="button" class="small" aria-pressed=${form.values.kind === kind} @click=${() => form.set('kind', kind)}>
            ${t(`queue.kind.${kind}`)}
          </button>`,
        )}
      </div>
      ${form.values.kind === 'text' ? bodyField() : fileField()}
      ${areaField({ form, name: 'headers', label: t('queue.headers'), hint: t('queue.headers-text'), rows: 2, code: true })}
      <div class="fields">
        ${form.values.half ? nothing : delayField()}
        ${textField({
          form,
          name: 'dedup_id',
          label: t('queue.dedup'),
          hint: t('queue.dedup-text'),
          maxlength: ranges.dedup_id.maxLength,
        })}
      </div>
      ${attributes.transactional ? halfFields() : nothing}
      <div class="actions">
        <button type="button" @click=${() => dialog.close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('queue.send-button'))}
      </div>
    </form>`,
  });

  function bodyField() {
    const size = bytes(new TextEncoder().encode(form.values.body).length);
    const hint = t('queue.size-of', { size, limit: bytes(attributes.max_message_bytes) });
    return areaField({ form, name: 'body', label: t('queue.body'), hint, rows: 7, code: true });
  }

  function fileField() {
    const limit = bytes(attributes.max_message_bytes);
    const hint = file === null ? limit : t('queue.size-of', { size: bytes(file.size), limit });
    return field({
      form,
      name: 'body',
      label: t('queue.file'),
      hint,
      input: ({ id, described, invalid }) =>
        html`<input id=${id} type="file" aria-describedby=${described} aria-invalid=${invalid} @change=${chooseFile} />`,
    });
  }

  function chooseFile(event) {
    const [chosen] = event.target.files;
    // A file above the limit is not read: it may have gigabytes. A send waits for the end of the reading.
    const isRead = chosen && chosen.size <= attributes.max_message_bytes;
    file = chosen ? { size: chosen.size, content: isRead ? chosen.arrayBuffer() : null } : null;
    form.setError('body', bodyFault(form.values, file, attributes).body ?? null);
  }

  function delayField() {
    return durationField({
      form,
      name: 'delay',
      label: t('queue.delay'),
      required: false,
      text: t('queue.delay-text', { delay: duration(attributes.delay) }),
    });
  }

  function halfFields() {
    return html`${checkField({ form, name: 'half', label: t('queue.as-half'), hint: t('queue.as-half-text') })}
      ${form.values.half ? html`<div class="fields">${firstCheckField()}</div>` : nothing}`;
  }

  function firstCheckField() {
    return durationField({
      form,
      name: 'first_check',
      label: t('queue.first-check'),
      required: false,
      ...rangeOf(ranges.first_check),
      text: t('queue.first-check-text', { time: duration(attributes.first_check) }),
    });
  }

  return (await dialog.closed) === true;
}

/** Return headers as typed: `[{ line, header, value }]`; `header` is null for a line without a colon. */
export function headerLines(text) {
  return text
    .split('\n')
    .map((typed, index) => ({ typed: typed.trim(), line: index + 1 }))
    .filter(({ typed }) => typed !== '')
    .map(({ typed, line }) => {
      const colon = typed.indexOf(':');
      return colon < 1
        ? { line, header: null, value: '' }
        : { line, header: typed.slice(0, colon).trim(), value: typed.slice(colon + 1).trim() };
    });
}

function headersFault(text) {
  const names = new Set();
  for (const { line, header } of headerLines(text)) {
    if (header === null) {
      return { headers: t('queue.bad-header', { line }) };
    }
    if (names.has(header)) {
      return { headers: t('queue.double-header', { line, name: header }) };
    }
    names.add(header);
  }
  return {};
}

function bodyFault(values, file, attributes) {
  if (values.kind === 'file' && file === null) {
    return { body: t('queue.no-file') };
  }
  const size = values.kind === 'file' ? file.size : new TextEncoder().encode(values.body).length;
  const limit = attributes.max_message_bytes;
  return size > limit ? { body: t('queue.too-large', { size: bytes(size), limit: bytes(limit) }) } : {};
}

/** Return a random key; `crypto.randomUUID` is missing on pages without HTTPS. */
export function newKey() {
  return `console-${[...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join('')}`;
}
