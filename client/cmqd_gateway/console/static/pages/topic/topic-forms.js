/** The dialogs that create, change and delete a topic; the list of topics and the page of a topic show them. */

import { html } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { addTexts, t } from '../../app/text.js';
import { confirmAction, openDialog } from '../../ui/dialog.js';
import { createForm, numberField, selectField, textField } from '../../ui/form.js';
import { toast } from '../../ui/toast.js';
import texts from './topics.text.js';

addTexts(texts);

const NAME = /^[A-Za-z0-9_-]{3,64}$/;

/** Return the fields of `max_message_bytes`, with the range that the JSON API declares. */
function sizeField(form, ranges) {
  const { minimum, maximum, default: initial } = ranges.max_message_bytes;
  return numberField({
    form, name: 'max_message_bytes', label: t('topics.form.limit'), text: t('topics.form.limit-hint'), minimum, maximum, initial,
  });
}

/** Ask for the attributes of a new topic and create it; returns its name, or undefined. */
export async function createTopic(signal) {
  const ranges = await limits('TopicAttributes');
  let dialog = null;
  const form = createForm({
    values: { topic: '', filter_type: 'tag', max_message_bytes: ranges.max_message_bytes.default },
    update: () => dialog?.update(),
    check: ({ topic }) => (NAME.test(topic) ? {} : { topic: t('topics.form.name-wrong') }),
    async submit({ topic, ...attributes }) {
      await api.post(`/topics/${segment(topic)}`, attributes);
      toast(t('topics.created', { name: topic }));
      dialog.close(topic);
    },
  });
  dialog = openDialog({
    title: () => t('topics.create'),
    signal,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()}
      ${textField({ form, name: 'topic', label: t('topics.form.name'), hint: t('topics.form.name-hint'), required: true })}
      ${selectField({
        form,
        name: 'filter_type',
        label: t('topics.form.filter'),
        hint: t('topics.form.filter-hint'),
        options: ['tag', 'routing'].map((value) => ({ value, label: t(`topics.form.filter.${value}`) })),
      })}
      ${sizeField(form, ranges)}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('topics.create'))}
      </div>
    </form>`,
  });
  return dialog.closed;
}

/** Ask for the limit of bodies and change it; returns true after a change. */
export async function editTopic({ name, attributes }, signal) {
  const ranges = await limits('TopicAttributes');
  let dialog = null;
  const form = createForm({
    values: { max_message_bytes: attributes.max_message_bytes },
    update: () => dialog?.update(),
    async submit(values) {
      await api.patch(`/topics/${segment(name)}`, values);
      toast(t('topics.saved', { name }));
      dialog.close(true);
    },
  });
  dialog = openDialog({
    title: () => t('topics.edit-title', { name }),
    signal,
    body: ({ close }) => html`<form @submit=${form.onSubmit} novalidate>
      ${form.failure()} ${sizeField(form, ranges)}
      <div class="actions">
        <button type="button" @click=${() => close()}>${t('ui.cancel')}</button>
        ${form.submitButton(t('topics.form.save'))}
      </div>
    </form>`,
  });
  return dialog.closed;
}

/** Delete a topic after its name was typed; returns true after the deletion. */
export async function deleteTopic({ name }, signal) {
  const isDeleted = await confirmAction({
    title: t('topics.delete-title', { name }),
    text: html`<p>${t('topics.delete-text')}</p>`,
    button: t('topics.delete'),
    name,
    signal,
    action: () => api.delete(`/topics/${segment(name)}`),
  });
  if (isDeleted) {
    toast(t('topics.deleted', { name }));
  }
  return isDeleted;
}

/** Return a number for a cell, in soft type if it is 0. */
export function cellCount(value) {
  return html`<span class=${value ? '' : 'soft'}>${count(value)}</span>`;
}
