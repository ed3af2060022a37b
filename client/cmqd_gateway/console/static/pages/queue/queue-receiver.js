/** Messages received by hand: their leases, and what becomes of each message. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api } from '../../app/api.js';
import { duration } from '../../app/format.js';
import { limits, rangeOf } from '../../app/limits.js';
import { can } from '../../app/session.js';
import { t } from '../../app/text.js';
import { BodyContent } from '../../ui/body-content.js';
import { bodyState, bodyView } from '../../ui/body-view.js';
import { copyValue } from '../../ui/copy.js';
import { formDialog } from '../../ui/dialog.js';
import { durationField, numberField, textField } from '../../ui/form.js';
import { icon } from '../../ui/icon.js';
import { notice, problem } from '../../ui/notice.js';
import { card, factList } from '../../ui/parts.js';
import { table } from '../../ui/table.js';
import { toast } from '../../ui/toast.js';
import { messageFacts, previewOf } from './queue-message.js';

const LEASE_DRAWING_MS = 1_000;

export function createReceiver({ path, update, signal, onChange }) {
  const state = { held: [], error: null, wait: null };

  /** Draw the remaining leases each second, while a message is held. */
  const timer = setInterval(() => {
    if (state.held.length > 0 && !document.hidden) {
      update();
    }
  }, LEASE_DRAWING_MS);
  signal.addEventListener('abort', () => clearInterval(timer));

  /** Open the dialog of a receive. @throws ApiError: the limits could not be read. */
  async function open(attributes) {
    const ranges = await limits('ReceiveMessages');
    let isEmpty = false;
    const ending = new AbortController();
    const lengthField = (form, name, label, hint) => durationField({ form, name, label, hint, ...rangeOf(ranges[name]) });
    await formDialog({
      title: t('queue.receive'),
      signal,
      // A receive that waits ends with its request: a message that comes later stays for the consumers.
      onClosed: () => ending.abort(),
      values: { max_messages: 1, wait: 0, visibility_timeout: attributes.visibility_timeout },
      fields: (form) => html`${notice('info', t('queue.receive-text'))}
        <div class="fields">
          ${numberField({ form, name: 'max_messages', label: t('queue.max-messages'), ...rangeOf(ranges.max_messages) })}
          ${lengthField(form, 'wait', t('queue.wait'), t('queue.wait-text'))}
          ${lengthField(form, 'visibility_timeout', t('queue.visibility'), t('queue.visibility-text'))}
        </div>
        <p role="status">${form.isBusy ? t('queue.receiving') : isEmpty ? t('queue.received-none') : nothing}</p>`,
      button: t('queue.receive-button'),
      async submit(values) {
        isEmpty = false;
        const { messages } = await api.post(`${path}/receive`, values, { signal: ending.signal });
        isEmpty = messages.length === 0;
        if (!isEmpty) {
          hold(messages, values.visibility_timeout);
        }
        return isEmpty ? undefined : true;
      },
    });
  }

  /**
   * Keep received messages on the page.
   *
   * The answer comes when the lease begins, so the lease is counted from here: the clocks of the two machines may differ.
   */
  function hold(messages, timeout) {
    const ends = Date.now() + timeout * 1000;
    for (const message of messages) {
      const content = new BodyContent(message.body, message.encoding);
      const held = { message: { ...message, body: undefined }, content, ends, opened: null, isBusy: false };
      if (messages.length === 1) {
        held.opened = bodyState(content);
      }
      // A message received a second time has a new handle; the old one is void.
      state.held = [...state.held.filter((other) => other.message.id !== message.id), held];
    }
    state.error = null;
    update();
    onChange();
  }

  /** Run an action with a held message; the message leaves the page if `isLast`. */
  async function act(held, action, text, isLast = true) {
    held.isBusy = true;
    update();
    try {
      await action({ receipt_handle: held.message.receipt_handle });
      state.error = null;
      if (isLast) {
        forget(held);
      }
      toast(text);
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      state.error = error;
    }
    held.isBusy = false;
    update();
    onChange();
  }

  function forget(held) {
    state.held = state.held.filter((other) => other !== held);
    update();
  }

  const remove = (held) =>
    act(held, (handle) => api.post(`${path}/delete`, handle), t('queue.deleted-toast'));
  const handBack = (held) =>
    act(held, (handle) => api.post(`${path}/release`, handle), t('queue.handed-back-toast'));

  async function extend(held, attributes) {
    const { timeout: range } = await limits('ChangeVisibility');
    ask({
      title: t('queue.extend-title'),
      button: t('queue.extend'),
      values: { timeout: attributes.visibility_timeout },
      fields: (form) =>
        durationField({ form, name: 'timeout', label: t('queue.extend-time'), ...rangeOf(range) }),
      async submit({ timeout }) {
        await api.post(`${path}/visibility`, { receipt_handle: held.message.receipt_handle, timeout });
        held.ends = Date.now() + timeout * 1000;
        toast(t('queue.extended-toast'));
      },
    });
  }

  async function deadLetter(held, queue) {
    const { reason: limit } = await limits('Reject');
    ask({
      title: t('queue.dead-letter-title'),
      button: t('queue.dead-letter'),
      values: { reason: '' },
      fields: (form) =>
        textField({
          form,
          name: 'reason',
          label: t('ui.reason'),
          hint: t('queue.reason-text', { queue }),
          maxlength: limit.maxLength,
        }),
      async submit({ reason }) {
        await api.post(`${path}/reject`, { receipt_handle: held.message.receipt_handle, reason });
        forget(held);
        toast(t('queue.dead-lettered-toast', { queue }));
      },
    });
  }

  /** Ask for values before an action. */
  async function ask({ submit, ...options }) {
    if (await formDialog({ ...options, signal, submit: async (typed) => (await submit(typed)) ?? true })) {
      update();
      onChange();
    }
  }

  function toggle(held) {
    held.opened = held.opened === null ? bodyState(held.content) : null;
    update();
  }

  function view(attributes) {
    if (state.held.length === 0 || !can('consume')) {
      return problem(state.error);
    }
    return card(
      t('queue.received'),
      html`
      <div class="browse"><p class="soft hint">${t('queue.received-text')}</p>${problem(state.error)}</div>
      ${table({
        label: t('queue.received'),
        rows: state.held,
        rowKey: (held) => held.message.receipt_handle,
        columns: [
          {
            name: 'id',
            title: t('ui.message'),
            cell: (
              held,
            ) => html`<button class="quiet small open-message" aria-expanded=${held.opened !== null} @click=${() => toggle(held)}>
              ${icon('right')}<code>${held.message.id}</code>
            </button>`,
          },
          { name: 'body', title: t('ui.body'), cell: (held) => previewOf(held.content) },
          { name: 'lease', title: t('queue.lease'), cell: leaseView },
          { name: 'actions', title: '', cell: (held) => actions(held, attributes) },
        ],
        detail: (held) => (held.opened === null ? nothing : detailView(held)),
      })}
    `,
    );
  }

  function actions(held, attributes) {
    const { id } = held.message;
    const button = (text, action, kind = '') =>
      html`<button class=${`small ${kind}`} ?disabled=${held.isBusy} @click=${action}>${text}<span class="visually-hidden"> ${id}</span></button>`;
    if (held.ends <= Date.now()) {
      return html`<div class="actions">${button(t('queue.forget'), () => forget(held))}</div>`;
    }
    const target = attributes.dead_letter_queue;
    return html`<div class="actions">
      ${button(t('ui.delete'), () => remove(held))}
      ${button(t('queue.hand-back'), () => handBack(held))}
      ${button(t('queue.extend'), () => extend(held, attributes))}
      ${target ? button(t('queue.dead-letter'), () => deadLetter(held, target)) : nothing}
    </div>`;
  }

  function detailView(held) {
    return html`<div class="message-full">
      ${messageFacts(held.message)} ${factList([[t('queue.receipt-handle'), copyValue(held.message.receipt_handle)]])}
      ${bodyView({ state: held.opened, update, label: `${t('ui.body')} ${held.message.id}` })}
    </div>`;
  }

  return { open, view };
}

function leaseView(held) {
  const seconds = Math.ceil((held.ends - Date.now()) / 1000);
  return seconds > 0
    ? html`<span class="number lease">${t('queue.lease-left', { time: duration(seconds) })}</span>`
    : html`<span class="fault lease">${t('queue.lease-over')}</span>`;
}
