/**
 * Forms: values, their check beside each field, and one submission at a time.
 *
 *     const form = createForm({ values: { delay: 0 }, update, submit: async (values) => { ... } });
 *     html`<form @submit=${form.onSubmit} novalidate>
 *       ${form.failure()} ${durationField({ form, name: 'delay', label, hint, minimum: 0, maximum: 3600 })}
 *       ${form.submitButton(t('...'))}
 *     </form>`
 */

import { html, nothing } from '../vendor/lit-html-3.3.3/lit-html.js';
import { live } from '../vendor/lit-html-3.3.3/directives/live.js';
import { duration, durationInput, parseDuration, count } from '../app/format.js';
import { addTexts, t } from '../app/text.js';
import { problem } from './notice.js';
import texts from './ui.text.js';

addTexts(texts);
let forms = 0;

/**
 * Make the state of a form.
 *
 * @param values first values by name of the field.
 * @param submit async function of the values. An error with a `field` of the form is shown beside that field.
 * @param check function of the values that returns texts of faults by name of the field.
 * @param update draws the form again.
 */
export function createForm({ values, submit, check = () => ({}), update }) {
  const id = `form-${(forms += 1)}`;
  const checks = new Map();
  const form = {
    id,
    values: { ...values },
    errors: {},
    error: null,
    isBusy: false,
    update,
    set(name, value) {
      form.values[name] = value;
      delete form.errors[name];
      update();
    },
    /** Set the fault of a field, or remove it with null. */
    setError(name, text) {
      if (text === null) {
        delete form.errors[name];
      } else {
        form.errors[name] = text;
      }
      update();
    },
    /** A field registers its own check while it is drawn: a function of the value that returns a text or null. */
    addCheck(name, test) {
      checks.set(name, test);
    },
    async onSubmit(event) {
      event.preventDefault();
      if (form.isBusy) {
        return;
      }
      form.error = null;
      form.errors = {};
      const element = event.currentTarget;
      for (const [name, test] of checks) {
        // A field that is no longer drawn, after another choice, must not refuse the form: its fault would be invisible.
        const fault = element.elements.namedItem(name) === null ? null : test(form.values[name]);
        if (fault) {
          form.errors[name] = fault;
        }
      }
      form.errors = { ...check(form.values), ...form.errors };
      if (Object.keys(form.errors).length === 0) {
        form.isBusy = true;
        update();
        try {
          const submitted = submit({ ...form.values });
          // A dialog that is closed meanwhile waits for the outcome.
          element.dispatchEvent(new CustomEvent('cmqd:submitted', { bubbles: true, detail: submitted }));
          await submitted;
        } catch (error) {
          if (error.field && error.field in form.values) {
            form.errors[error.field] = error.message;
          } else {
            form.error = error;
          }
        }
        form.isBusy = false;
      }
      update();
      if (Object.keys(form.errors).length > 0) {
        requestAnimationFrame(() => requestAnimationFrame(() => element.querySelector('[aria-invalid="true"]')?.focus()));
      }
    },
    /** The notice of an error that belongs to no field. */
    failure: () => problem(form.error),
    submitButton: (text, kind = 'primary') =>
      html`<button type="submit" class=${kind} ?disabled=${form.isBusy} aria-busy=${form.isBusy}>${text}</button>`,
  };
  return form;
}

/**
 * Return a field around an input: label, hint, fault. `input` is a function of the attributes `{ id, described, invalid }`.
 */
export function field({ form, name, label, hint = nothing, input }) {
  const id = `${form.id}-${name}`;
  const fault = form.errors[name];
  const described = [hint === nothing || hint === '' ? '' : `${id}-hint`, fault ? `${id}-fault` : ''].filter(Boolean).join(' ');
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${input({ id, described: described || nothing, invalid: fault ? 'true' : nothing })}
    ${hint === nothing || hint === '' ? nothing : html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    ${fault ? html`<p class="fault" id=${`${id}-fault`}>${fault}</p>` : nothing}
  </div>`;
}

function checkRequired(form, name, required) {
  form.addCheck(name, (value) => (required && String(value ?? '').trim() === '' ? t('ui.required') : null));
}

/** A line of text. */
export function textField({
  form, name, label, hint, required = false, autocomplete = 'off', placeholder = '', type = 'text', onInput = null, maxlength = nothing,
}) {
  checkRequired(form, name, required);
  return field({
    form, name, label, hint,
    input: ({ id, described, invalid }) => html`<input
      id=${id} name=${name} type=${type} spellcheck="false" autocomplete=${autocomplete} placeholder=${placeholder}
      maxlength=${maxlength} aria-describedby=${described} aria-invalid=${invalid} ?required=${required}
      .value=${live(form.values[name] ?? '')}
      @input=${(event) => {
        form.set(name, event.target.value);
        onInput?.(event.target.value);
      }}
    />`,
  });
}

/** Return true for a name of `least` to 64 characters. */
export const isName = (text, least = 1) => text.length >= least && /^[A-Za-z0-9_-]{1,64}$/.test(text);

/** The name of a new object, of `least` to 64 characters. */
export function nameField({ form, name = 'name', least = 1, label = t('ui.name'), hint = t('ui.name-hint', { least }), ...own }) {
  const view = textField({ form, name, label, hint, required: true, maxlength: 64, ...own });
  form.addCheck(name, (value) => (isName(value, least) ? null : t('ui.name-fault', { least })));
  return view;
}

/** A secret, not shown. */
export function secretField(options) {
  return textField({ ...options, type: 'password', autocomplete: 'current-password' });
}

/** Several lines of text. */
export function areaField({ form, name, label, hint, required = false, rows = 6, code = false, shown = null, onInput = null }) {
  checkRequired(form, name, required);
  return field({
    form, name, label, hint,
    input: ({ id, described, invalid }) => html`<textarea
      id=${id} name=${name} rows=${rows} spellcheck="false" class=${code ? 'code-input' : ''}
      aria-describedby=${described} aria-invalid=${invalid} ?required=${required}
      .value=${live(shown ?? form.values[name] ?? '')}
      @input=${(event) => (onInput ?? ((text) => form.set(name, text)))(event.target.value)}
    ></textarea>`,
  });
}

/** Return the lines of a text that are not empty, without repetitions. */
export function linesOf(text) {
  return [...new Set(text.split('\n').map((line) => line.trim()).filter(Boolean))];
}

/** A list of texts, one per line; `parse` makes the list of the text. */
export function listField({ form, name, label, hint, required = false, parse = linesOf }) {
  const typed = `${name} as typed`;
  return areaField({
    form, name, label, hint: `${hint} ${t('ui.per-line')}`, required, rows: 3, code: true,
    shown: form[typed] ?? form.values[name].join('\n'),
    onInput(text) {
      form[typed] = text;
      form.set(name, parse(text));
    },
  });
}

/** Return a hint with the range behind its sentence: `1 s to 12 h · default 30 s`. */
function rangeHint(text, { minimum, maximum, initial }, show) {
  const range = minimum === undefined ? '' : t('ui.range', { minimum: show(minimum), maximum: show(maximum) });
  const preset = initial === undefined || initial === null ? '' : t('ui.default', { value: show(initial) });
  const limits = [range, preset].filter(Boolean).join(' · ');
  return html`${text} ${limits ? html`<span class="range">${limits}</span>` : nothing}`;
}

/**
 * A whole number with its range. The value is a number, or null if the field is empty and not required.
 *
 * @param unit key of the text of a number with its unit, or null.
 */
export function numberField({ form, name, label, hint = '', minimum, maximum, initial, required = true, unit = null }) {
  form.addCheck(name, (value) => {
    if (value === null || value === '') {
      return required ? t('ui.required') : null;
    }
    if (!Number.isInteger(Number(value))) {
      return t('ui.not-a-number');
    }
    return Number(value) < minimum || Number(value) > maximum
      ? t('ui.out-of-range', { minimum: count(minimum), maximum: count(maximum) })
      : null;
  });
  return field({
    form, name, label,
    hint: rangeHint(hint, { minimum, maximum, initial }, (value) => (unit ? t(unit, { n: count(value) }) : count(value))),
    input: ({ id, described, invalid }) => html`<input
      id=${id} name=${name} inputmode="numeric" autocomplete="off" class="number-input"
      aria-describedby=${described} aria-invalid=${invalid} ?required=${required}
      .value=${live(String(form.values[name] ?? ''))}
      @input=${(event) => {
        const text = event.target.value.trim();
        form.set(name, text === '' ? null : Number.isNaN(Number(text)) ? text : Number(text));
      }}
    />`,
  });
}

/**
 * A duration with its range, typed as `30s`, `5min`, `2h`, `4d` or plain seconds.
 *
 * The value is a number of seconds, or null if the field is empty and not required; while it cannot be read, it is NaN.
 */
export function durationField({ form, name, label, hint = '', minimum, maximum, initial, required = true }) {
  const typed = `${name} as typed`;
  form.addCheck(name, (value) => {
    if (value === null || value === undefined) {
      return required ? t('ui.required') : null;
    }
    if (Number.isNaN(value)) {
      return t('ui.not-a-duration');
    }
    return value < minimum || value > maximum
      ? t('ui.out-of-range', { minimum: duration(minimum), maximum: duration(maximum) })
      : null;
  });
  const value = form.values[name];
  const shown = typed in form ? form[typed] : value === null || value === undefined ? '' : durationInput(value);
  return field({
    form, name, label,
    hint: rangeHint(hint, { minimum, maximum, initial }, duration),
    input: ({ id, described, invalid }) => html`<input
      id=${id} name=${name} autocomplete="off" spellcheck="false" class="number-input" placeholder=${t('ui.duration-hint')}
      aria-describedby=${described} aria-invalid=${invalid} ?required=${required}
      .value=${live(shown)}
      @input=${(event) => {
        form[typed] = event.target.value;
        form.set(name, event.target.value.trim() === '' ? null : parseDuration(event.target.value));
      }}
    />`,
  });
}

/** A choice of `options`, `[{ value, label }]`. */
export function selectField({ form, name, label, hint, options, onChange = null }) {
  return field({
    form, name, label, hint,
    input: ({ id, described, invalid }) => html`<select
      id=${id} name=${name} aria-describedby=${described} aria-invalid=${invalid}
      @change=${(event) => {
        form.set(name, event.target.value);
        onChange?.(event.target.value);
      }}
    >
      ${options.map(
        (option) => html`<option value=${option.value} ?selected=${option.value === String(form.values[name] ?? '')}>${option.label}</option>`,
      )}
    </select>`,
  });
}

/** A yes or no. */
export function checkField({ form, name, label, hint = '', onChange = null }) {
  const id = `${form.id}-${name}`;
  return html`<div class="field check">
    <input
      id=${id} name=${name} type="checkbox" .checked=${live(Boolean(form.values[name]))}
      aria-describedby=${hint ? `${id}-hint` : nothing}
      @change=${(event) => {
        form.set(name, event.target.checked);
        onChange?.(event.target.checked);
      }}
    />
    <label for=${id}>${label}</label>
    ${hint ? html`<p class="hint" id=${`${id}-hint`}>${hint}</p>` : nothing}
  </div>`;
}
