/**
 * Attributes of queues, topics and subscriptions, drawn by their declarations in the OpenAPI document.
 *
 * `fields` is the result of `limits('QueueAttributes')` and the like. An attribute without a Chinese text, such as a new
 * one, is shown in English.
 */

import { bytes, count, duration } from '../app/format.js';
import { addTexts, hasText, t, translated } from '../app/text.js';
import texts, { CHINESE } from './attributes.text.js';
import { checkField, durationField, listField, numberField, selectField, textField } from './form.js';

addTexts(texts);

/** By unit: the field of a form, and the value for readers. */
const UNITS = {
  seconds: [durationField, duration],
  bytes: [numberField, bytes],
  count: [numberField, count],
  switch: [checkField, (value) => t(value ? 'ui.yes' : 'ui.no')],
  choice: [selectField, (value, name) => choiceText(name, value)],
  name: [textField, (value) => value || '–'],
  texts: [listField, (values) => values.join(', ') || '–'],
};

/** Return the attributes of a schema: a request to subscribe has other fields too. */
export const attributesIn = (fields) => Object.fromEntries(Object.entries(fields).filter(([, field]) => 'x-unit' in field));

/** Return the values of a new object. */
export const defaultsOf = (fields) => Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.default]));

/** Return the values that differ from those of before. */
export const changesOf = (values, before) => Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== before[name]));

/** Return the label of an attribute. */
export const labelOf = (fields, name) => translated(fields[name].title, CHINESE[name]?.[0]);

/** Return a value of a choice in words. */
export function choiceText(name, value) {
  const key = `attribute.${name}.${value}`;
  return hasText(key) ? t(key) : value;
}

/** Return the field of an attribute in a form; `own` replaces parts of it. */
export function attributeField(form, fields, name, own = {}) {
  const { 'x-unit': unit, 'x-hint': hint, minimum, maximum, default: initial, enum: values = [] } = fields[name];
  const { field, ...rest } = { field: UNITS[unit][0], ...own };
  return field({
    form,
    name,
    label: labelOf(fields, name),
    hint: translated(hint, CHINESE[name]?.[1]),
    minimum,
    maximum,
    initial,
    unit: unit === 'bytes' ? 'ui.bytes' : null,
    options: values.map((value) => ({ value, label: choiceText(name, value) })),
    ...rest,
  });
}

/** Return label and value of an attribute for a list of facts. */
export function attributeFact(fields, name, value) {
  const { 'x-unit': unit, 'x-zero': zero } = fields[name];
  const text = value === 0 && zero ? translated(zero, CHINESE[name]?.[2]) : UNITS[unit][1](value, name);
  return [labelOf(fields, name), text];
}
