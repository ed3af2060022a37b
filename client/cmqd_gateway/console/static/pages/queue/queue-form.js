/** The dialog that creates a queue or changes its attributes, with each limit explained where it is typed. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../../vendor/lit-html-3.3.3/directives/live.js';
import { api, segment } from '../../app/api.js';
import { durationInput } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { addTexts, hasText, t } from '../../app/text.js';
import { copyBlock } from '../../ui/copy.js';
import { openDialog } from '../../ui/dialog.js';
import { checkField, createForm, durationField, field, numberField, selectField, textField } from '../../ui/form.js';
import texts from './queue-form.text.js';

addTexts(texts);

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const SUGGESTED = 20;
const DAY_S = 86_400;
const [NONE, RECEIVES, AGE] = ['none', 'receives', 'age'];

/**
 * Open the dialog.
 *
 * @param info the queue of GET /queues/{queue}, to change it; null = create a queue.
 * @param signal the signal of the page; closes the dialog.
 * @returns promise of the name of the queue if it was created or changed, else null.
 * @throws ApiError: the limits could not be read.
 */
export async function openQueueDialog({ info = null, signal }) {
  const ranges = await limits('QueueAttributes');
  const defaults = { ...Object.fromEntries(Object.entries(ranges).map(([name, range]) => [name, range.default])), dead_letter_queue: '' };
  const before = info?.attributes ?? defaults;
  const names = [];
  let dialog = null;
  const form = createForm({
    values: firstValues(before),
    update: () => dialog?.update(),
    check: (values) => faults(values, info === null),
    async submit(values) {
      const attributes = changes(attributesOf(values), before);
      const path = `/queues/${segment(info?.name ?? values.queue)}`;
      if (info === null) {
        await create(path, attributes);
      } else if (Object.keys(attributes).length > 0) {
        await api.patch(path, attributes);
      }
      dialog.close(info?.name ?? values.queue);
    },
  });

  /** Offer names of queues for the dead-letter queue: some of up to 10,000. */
  async function suggest(text) {
    const page = await api.get('/queues', { search: text, limit: SUGGESTED }, { signal });
    names.splice(0, names.length, ...page.names.filter((name) => name !== (info?.name ?? form.values.queue)));
    dialog?.update();
  }

  dialog = openDialog({
    title: () => (info === null ? t('queue-form.create-title') : t('queue-form.edit-title', { queue: info.name })),
    signal,
    wide: true,
    body: ({ close }) => html`<form class="queue-form" @submit=${form.onSubmit} novalidate>
      ${form.failure()} ${info === null ? nameField(form) : nothing}
      ${deliveryFields(form, ranges)} ${storageFields(form, ranges)} ${deadLetterFields(form, ranges, names, suggest)}
      ${rewindFields(form, ranges)} ${transactionFields(form, ranges, info)} ${unusedFields(form, ranges)}
      <details>
        <summary>${t('queue-form.command')}</summary>
        ${copyBlock(command(form.values, before, info, ranges))}
      </details>
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(info === null ? t('queue-form.create') : t('queue-form.save'))}
      </div>
    </form>`,
  });
  document.getElementById(`${form.id}-${info === null ? 'queue' : 'visibility_timeout'}`)?.focus();
  return (await dialog.closed) ?? null;
}

/** Create the queue; a name that is taken is a fault of the field. */
async function create(path, attributes) {
  try {
    await api.post(path, attributes);
  } catch (error) {
    error.field ??= error.code === 'queue_exists' ? 'queue' : null;
    throw error;
  }
}

function firstValues(attributes) {
  const policy = attributes.dead_letter_queue === '' ? NONE : attributes.dead_letter_max_receives > 0 ? RECEIVES : AGE;
  return {
    ...attributes,
    queue: '',
    policy,
    // The fields of a choice that is off begin with a usual value, not with the 0 that stands for off.
    dead_letter_max_receives: attributes.dead_letter_max_receives || 5,
    dead_letter_after: attributes.dead_letter_after || 3_600,
    has_rewind: attributes.rewind > 0,
    rewind: attributes.rewind || null,
    is_deleted_unused: attributes.auto_delete_after > 0,
    auto_delete_after: attributes.auto_delete_after || 7 * DAY_S,
  };
}

/** Return the attributes that the values of the form stand for. */
function attributesOf(values) {
  const { queue: _, policy, has_rewind: hasRewind, is_deleted_unused: isDeletedUnused, ...attributes } = values;
  return {
    ...attributes,
    dead_letter_queue: policy === NONE ? '' : attributes.dead_letter_queue.trim(),
    dead_letter_max_receives: policy === RECEIVES ? attributes.dead_letter_max_receives : 0,
    dead_letter_after: policy === AGE ? attributes.dead_letter_after : 0,
    rewind: hasRewind ? attributes.rewind : 0,
    auto_delete_after: isDeletedUnused ? attributes.auto_delete_after : 0,
  };
}

function changes(attributes, before) {
  return Object.fromEntries(Object.entries(attributes).filter(([name, value]) => value !== before[name]));
}

/** Return the faults that concern several fields; each field checks its own range. */
function faults(values, isNew) {
  const found = {};
  if (isNew && !NAME.test(values.queue)) {
    found.queue = t('queue-form.name-fault');
  }
  if (values.policy !== NONE && values.dead_letter_queue.trim() === '') {
    found.dead_letter_queue = t('ui.required');
  }
  if (values.has_rewind && values.rewind > values.retention) {
    found.rewind = t('queue-form.rewind-fault');
  }
  if (values.delay >= values.retention) {
    found.delay = t('queue-form.delay-fault');
  }
  if (values.is_deleted_unused && (values.transactional || values.policy !== NONE)) {
    found.auto_delete_after = t('queue-form.unused-fault');
  }
  return found;
}

function time(form, ranges, name, own = {}) {
  const { minimum, maximum, default: initial } = { ...ranges[name], ...own };
  const texts = { label: t(`queue-form.${name}`), text: t(`queue-form.${name}-text`) };
  return durationField({ form, name, ...texts, minimum, maximum, initial });
}

function whole(form, ranges, name, own = {}) {
  const { minimum, maximum, default: initial } = { ...ranges[name], ...own };
  const texts = { label: t(`queue-form.${name}`), text: t(`queue-form.${name}-text`) };
  return numberField({ form, name, ...texts, minimum, maximum, initial });
}

function nameField(form) {
  const hint = t('queue-form.name-hint');
  return textField({ form, name: 'queue', label: t('queue-form.name'), hint, required: true, placeholder: 'orders', maxlength: 64 });
}

function deliveryFields(form, ranges) {
  return html`<fieldset>
    <legend>${t('queue-form.delivery')}</legend>
    <div class="fields">
      ${time(form, ranges, 'visibility_timeout')} ${time(form, ranges, 'polling_wait')} ${time(form, ranges, 'delay')}
    </div>
  </fieldset>`;
}

function storageFields(form, ranges) {
  return html`<fieldset>
    <legend>${t('queue-form.storage')}</legend>
    <div class="fields">
      ${time(form, ranges, 'retention')} ${whole(form, ranges, 'max_message_bytes')} ${whole(form, ranges, 'max_backlog')}
      ${whole(form, ranges, 'max_delayed')} ${otherFields(form, ranges)}
    </div>
  </fieldset>`;
}

function deadLetterFields(form, ranges, names, suggest) {
  const { policy } = form.values;
  const options = [NONE, RECEIVES, AGE].map((value) => ({ value, label: t(`queue-form.policy.${value}`) }));
  return html`<fieldset>
    <legend>${t('queue-form.dead-letters')}</legend>
    <div class="fields">
      ${selectField({ form, name: 'policy', label: t('queue-form.policy'), hint: t('queue-form.policy-text'), options })}
      ${policy === NONE
        ? nothing
        : field({
            form,
            name: 'dead_letter_queue',
            label: t('queue-form.dead_letter_queue'),
            hint: t('queue-form.dead_letter_queue-text'),
            input: ({ id, described, invalid }) => html`<input
                id=${id} name="dead_letter_queue" list=${`${id}-names`} autocomplete="off" spellcheck="false" maxlength="64"
                aria-describedby=${described} aria-invalid=${invalid} required .value=${live(form.values.dead_letter_queue)}
                @focus=${(event) => suggest(event.target.value)}
                @input=${(event) => {
                  form.set('dead_letter_queue', event.target.value);
                  suggest(event.target.value);
                }}
              />
              <datalist id=${`${id}-names`}>${names.map((name) => html`<option value=${name}></option>`)}</datalist>`,
          })}
      ${policy === RECEIVES ? whole(form, ranges, 'dead_letter_max_receives', { minimum: 1, default: null }) : nothing}
      ${policy === AGE ? time(form, ranges, 'dead_letter_after', { minimum: 300, default: null }) : nothing}
    </div>
  </fieldset>`;
}

function rewindFields(form, ranges) {
  return html`<fieldset>
    <legend>${t('queue-form.rewinds')}</legend>
    <div class="fields">
      ${checkField({
        form,
        name: 'has_rewind',
        label: t('queue-form.has_rewind'),
        hint: t('queue-form.has_rewind-text'),
        // The life of a message, as the console of CMQ proposes: a shorter window is a choice, and so is a typed one.
        onChange: (isOn) => isOn && form.values.rewind === null && form.set('rewind', form.values.retention),
      })}
      ${form.values.has_rewind ? time(form, ranges, 'rewind', { minimum: 1, default: null }) : nothing}
    </div>
  </fieldset>`;
}

/** A queue is transactional from its creation on, or never. */
function transactionFields(form, ranges, info) {
  if (info !== null && !info.attributes.transactional) {
    return nothing;
  }
  const choice = { form, name: 'transactional', label: t('queue-form.transactional'), hint: t('queue-form.transactional-text') };
  return html`<fieldset>
    <legend>${t('queue-form.transactions')}</legend>
    <div class="fields">
      ${info === null ? checkField(choice) : nothing}
      ${form.values.transactional ? [time(form, ranges, 'first_check'), whole(form, ranges, 'max_checks')] : nothing}
    </div>
  </fieldset>`;
}

function unusedFields(form, ranges) {
  const choice = { label: t('queue-form.is_deleted_unused'), hint: t('queue-form.is_deleted_unused-text') };
  const only = { label: t('queue-form.auto_delete_only_empty'), hint: t('queue-form.auto_delete_only_empty-text') };
  return html`<fieldset>
    <legend>${t('queue-form.unused')}</legend>
    <div class="fields">
      ${checkField({ form, name: 'is_deleted_unused', ...choice })}
      ${form.values.is_deleted_unused
        ? [time(form, ranges, 'auto_delete_after', { minimum: 60, default: null }), checkField({ form, name: 'auto_delete_only_empty', ...only })]
        : nothing}
    </div>
  </fieldset>`;
}

/** Return the fields of attributes without a place of their own, with the label and the hint of their declaration. */
function otherFields(form, ranges) {
  return Object.entries(ranges)
    .filter(([name]) => !hasText(`queue-form.${name}`))
    .map(([name, { type, title: label, 'x-hint': text, minimum, maximum, default: initial }]) => {
      const fields = {
        boolean: () => checkField({ form, name, label, hint: text }),
        number: () => durationField({ form, name, label, text, minimum, maximum, initial }),
        integer: () => numberField({ form, name, label, text, minimum, maximum, initial }),
      };
      return (fields[type] ?? (() => textField({ form, name, label, hint: text })))();
    });
}

/** Return the command that does the same as the form. */
function command(values, before, info, ranges) {
  const name = info?.name ?? (NAME.test(values.queue) ? values.queue : 'QUEUE');
  const options = Object.entries(changes(attributesOf(values), before)).map(([attribute, value]) => {
    const option = attribute.replaceAll('_', '-');
    if (typeof value === 'boolean') {
      return value ? `--${option}` : `--no-${option}`;
    }
    if (ranges[attribute].type === 'number') {
      return `--${option} ${Number.isFinite(value) ? durationInput(value).replace('min', 'm') : '…'}`;
    }
    return `--${option} ${value === '' ? '""' : (value ?? '…')}`;
  });
  return [`cmq queue ${info === null ? 'create' : 'set'} ${name}`, ...options].join(' ');
}

