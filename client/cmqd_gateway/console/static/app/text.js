/**
 * Texts of the console in English and Chinese.
 *
 * A file of texts exports `{'ui.queues': ['Queues', '队列'], ...}`: each entry has both languages, so no text can lack
 * its translation. An entry with numbers may be a function of the values: `({ n }) => ...`.
 */

export const LANGUAGES = [
  { code: 'en', name: 'English', locale: 'en' },
  { code: 'zh', name: '中文', locale: 'zh-CN' },
];

const STORED = 'cmqd.language';
const entries = new Map();
let index = languageIndex(localStorage.getItem(STORED) ?? navigator.language);

function languageIndex(code) {
  return code.toLowerCase().startsWith('zh') ? 1 : 0;
}

/** Add the texts of a module; a key that exists is a fault of the console. */
export function addTexts(texts) {
  for (const [key, entry] of Object.entries(texts)) {
    if (entries.has(key) && entries.get(key) !== entry) {
      throw new Error(`the text ${key} is declared twice`);
    }
    entries.set(key, entry);
  }
}

/** Return the text of a key in the current language, with `{name}` replaced by `values.name`. */
export function t(key, values = {}) {
  const entry = entries.get(key);
  if (entry === undefined) {
    console.error(`the text ${key} is missing`);
    return key;
  }
  const text = entry[index];
  if (typeof text === 'function') {
    return text(values);
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Return a text of the broker in the current language; without a Chinese twin it is shown in English. */
export function translated(english, chinese) {
  return index === 1 && chinese ? chinese : english;
}

/** Return true if a key has a text. */
export function hasText(key) {
  return entries.has(key);
}

/** Return the current language: an element of LANGUAGES. */
export function language() {
  return LANGUAGES[index];
}

/** Use a language from now on, also at the next visit; the caller draws the page again. */
export function setLanguage(code) {
  index = languageIndex(code);
  localStorage.setItem(STORED, code);
  document.documentElement.lang = language().locale;
}

document.documentElement.lang = language().locale;
