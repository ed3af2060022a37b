/** The dialog that creates a queue or changes its attributes, with each limit explained where it is typed. */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { durationInput } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { addTexts, t } from '../../app/text.js';
import { attributeField, changesOf, defaultsOf } from '../../ui/attributes.js';
import { copyBlock } from '../../ui/copy.js';
import { formDialog } from '../../ui/dialog.js';
import { checkField, isName, nameField, selectField } from '../../ui/form.js';
import { createQueueField } from '../../ui/queue-field.js';
import texts from './queue-form.text.js';

addTexts(texts);

const DAY_S = 86_400;
const [NONE, RECEIVES, AGE] = ['none', 'receives', 'age'];
const DELIVERY = ['visibility_timeout', 'polling_wait', 'delay'];
/** Attributes whose fields depend on a choice. All others stand among the limits. */
const OF_CHOICES = [
  'dead_letter_queue', 'dead_letter_max_receives', 'dead_letter_after', 'rewind', 'transactional', 'first_check', 'max_checks',
  'auto_delete_after', 'auto_delete_only_empty',
];

/**
 * Open the dialog.
 *
 * @param info the queue of GET /queues/{queue}, to change it; null = create a queue.
 * @param signal the signal of the page; closes the dialog.
 * @returns promise of the name of the queue if it was created or changed, else null.
 * @throws ApiError: the declarations could not be read.
 */
export async function openQueueDialog({ info = null, signal }) {
  const isNew = info === null;
  const declared = await limits('QueueAttributes');
  const before = info?.attributes ?? defaultsOf(declared);
  const queueField = createQueueField(signal);
  const outcome = formDialog({
    title: () => (isNew ? t('queue-form.create-title') : t('queue-form.edit-title', { queue: info.name })),
    signal,
    wide: true,
    values: firstValues(before),
    check: faults,
    async submit(values) {
      const attributes = changesOf(attributesOf(values), before);
      const name = info?.name ?? values.queue;
      if (isNew) {
        await create(`/queues/${segment(name)}`, attributes);
      } else if (Object.keys(attributes).length > 0) {
        await api.patch(`/queues/${segment(name)}`, attributes);
      }
      return name;
    },
    fields: (form) => html`${isNew ? nameField({ form, name: 'queue', placeholder: 'orders' }) : nothing}
      ${groups(form, declared, info, queueField)}
      <details>
        <summary>${t('queue-form.command')}</summary>
        ${copyBlock(command(form.values, before, info, declared))}
      </details>`,
    button: isNew ? t('queue-form.create') : t('ui.save'),
  });
  document.querySelector('dialog input')?.focus();
  return (await outcome) ?? null;
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

/** Return the faults that concern several fields; each field checks its own range. */
function faults(values) {
  const found = {};
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

/** Return the fields of all attributes in groups. */
function groups(form, declared, info, queueField) {
  const { policy, has_rewind: hasRewind, transactional, is_deleted_unused: isDeletedUnused } = form.values;
  const of = (name, own) => attributeField(form, declared, name, own);
  /** A field whose choice excludes 0, and begins with another value than the default. */
  const ofChoice = (name) => of(name, { minimum: declared[name]['x-least'] || 1, initial: null });
  const choice = (name, own = {}) =>
    checkField({ form, name, label: t(`queue-form.${name}`), hint: t(`queue-form.${name}-text`), ...own });
  const limited = Object.keys(declared).filter(
    (name) => ![...DELIVERY, ...OF_CHOICES].includes(name) && (info === null || !declared[name]['x-fixed']),
  );
  const group = (name, ...fields) => html`<fieldset>
    <legend>${t(`queue-form.${name}`)}</legend>
    <div class="fields">${fields}</div>
  </fieldset>`;
  return [
    group('delivery', DELIVERY.map((name) => of(name))),
    group('storage', limited.map((name) => of(name))),
    group(
      'dead-letters',
      selectField({
        form,
        name: 'policy',
        label: t('queue-form.policy'),
        hint: t('queue-form.policy-text'),
        options: [NONE, RECEIVES, AGE].map((value) => ({ value, label: t(`queue-form.policy.${value}`) })),
      }),
      policy === NONE ? nothing : of('dead_letter_queue', { field: queueField, except: info?.name ?? form.values.queue }),
      policy === RECEIVES ? ofChoice('dead_letter_max_receives') : nothing,
      policy === AGE ? ofChoice('dead_letter_after') : nothing,
    ),
    group(
      'rewinds',
      choice('has_rewind', {
        // The life of a message, as the console of CMQ proposes: a shorter window is a choice, and so is a typed one.
        onChange: (isOn) => isOn && form.values.rewind === null && form.set('rewind', form.values.retention),
      }),
      hasRewind ? ofChoice('rewind') : nothing,
    ),
    // A queue is transactional from its creation on, or never.
    info === null || transactional
      ? group(
          'transactions',
          info === null ? of('transactional') : nothing,
          transactional ? [of('first_check'), of('max_checks')] : nothing,
        )
      : nothing,
    group('unused', choice('is_deleted_unused'), isDeletedUnused ? [ofChoice('auto_delete_after'), of('auto_delete_only_empty')] : nothing),
  ];
}

/** Return the command that does the same as the form. */
function command(values, before, info, declared) {
  const name = info?.name ?? (isName(values.queue) ? values.queue : 'QUEUE');
  const options = Object.entries(changesOf(attributesOf(values), before)).map(([attribute, value]) => {
    const option = attribute.replaceAll('_', '-');
    if (typeof value === 'boolean') {
      return value ? `--${option}` : `--no-${option}`;
    }
    if (declared[attribute]['x-unit'] === 'seconds') {
      return `--${option} ${Number.isFinite(value) ? durationInput(value).replace('min', 'm') : '…'}`;
    }
    return `--${option} ${value === '' ? '""' : (value ?? '…')}`;
  });
  return [`cmq queue ${info === null ? 'create' : 'set'} ${name}`, ...options].join(' ');
}

