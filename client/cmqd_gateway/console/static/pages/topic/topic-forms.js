/** The dialogs that create, change and delete a topic; the list of topics and the page of a topic show them. */

import { html } from '../../vendor/lit-html-3.3.3/lit-html.js';
import { api, segment } from '../../app/api.js';
import { count } from '../../app/format.js';
import { limits } from '../../app/limits.js';
import { addTexts, t } from '../../app/text.js';
import { attributeField, defaultsOf } from '../../ui/attributes.js';
import { confirmAction, formDialog } from '../../ui/dialog.js';
import { nameField } from '../../ui/form.js';
import { toast } from '../../ui/toast.js';
import texts from './topics.text.js';

addTexts(texts);

/** Ask for the attributes of a new topic and create it; returns its name, or undefined. */
export async function createTopic(signal) {
  const declared = await limits('TopicAttributes');
  return formDialog({
    title: () => t('topics.create'),
    signal,
    values: { topic: '', ...defaultsOf(declared) },
    fields: (form) => [
      nameField({ form, name: 'topic', least: 3 }),
      ...Object.keys(declared).map((name) => attributeField(form, declared, name)),
    ],
    button: t('topics.create'),
    async submit({ topic, ...attributes }) {
      await api.post(`/topics/${segment(topic)}`, attributes);
      toast(t('topics.created', { name: topic }));
      return topic;
    },
  });
}

/** Ask for the attributes that can be changed, and change them; returns true after a change. */
export async function editTopic({ name, attributes }, signal) {
  const declared = await limits('TopicChanges');
  return formDialog({
    title: () => t('topics.edit-title', { name }),
    signal,
    values: Object.fromEntries(Object.keys(declared).map((each) => [each, attributes[each]])),
    fields: (form) => Object.keys(declared).map((each) => attributeField(form, declared, each)),
    button: t('ui.save'),
    async submit(values) {
      await api.patch(`/topics/${segment(name)}`, values);
      toast(t('topics.saved', { name }));
      return true;
    },
  });
}

/** Delete a topic after its name was typed; returns true after the deletion. */
export async function deleteTopic({ name }, signal) {
  const isDeleted = await confirmAction({
    title: t('topics.delete-title', { name }),
    text: html`<p>${t('topics.delete-text')}</p>`,
    button: t('ui.delete'),
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
