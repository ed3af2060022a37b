/** Numbers, sizes, durations and times as text in the current language. */

import { language } from './text.js';

const formats = new Map();

function format(kind, options) {
  const key = language().locale + kind.name + JSON.stringify(options);
  if (!formats.has(key)) {
    formats.set(key, new kind(language().locale, options));
  }
  return formats.get(key);
}

/** Return a whole number with separators. */
export function count(value) {
  return format(Intl.NumberFormat, {}).format(value);
}

/** Return a number in few characters: 1.2K, 34M; in Chinese 1.2万. */
export function shortCount(value) {
  return value < 10_000
    ? count(value)
    : format(Intl.NumberFormat, { notation: 'compact', maximumFractionDigits: 1 }).format(value);
}

/** Return a rate per second, with a fraction below 10. */
export function rate(value) {
  const digits = value !== 0 && Math.abs(value) < 10 ? 1 : 0;
  return format(Intl.NumberFormat, { maximumFractionDigits: digits }).format(value) + '/s';
}

const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Return a number of bytes with a binary unit. */
export function bytes(value) {
  let power = 0;
  while (Math.abs(value) >= 1024 && power < SIZES.length - 1) {
    value /= 1024;
    power += 1;
  }
  const digits = power === 0 || Math.abs(value) >= 100 ? 0 : 1;
  return `${format(Intl.NumberFormat, { maximumFractionDigits: digits }).format(value)} ${SIZES[power]}`;
}

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
];
const CHINESE_UNITS = { d: '天', h: '小时', min: '分', s: '秒', ms: '毫秒' };

function withUnit(number, unit) {
  return language().code === 'zh' ? `${number} ${CHINESE_UNITS[unit]}` : `${number} ${unit}`;
}

/** Return a duration in seconds with its two largest units: `4 d`, `1 h 30 min`, `200 ms`. */
export function duration(seconds) {
  if (seconds < 0) {
    return `-${duration(-seconds)}`;
  }
  if (seconds > 0 && seconds < 1) {
    return withUnit(Math.round(seconds * 1000), 'ms');
  }
  if (seconds < 10 && !Number.isInteger(seconds)) {
    return withUnit(format(Intl.NumberFormat, { maximumFractionDigits: 1 }).format(seconds), 's');
  }
  let rest = Math.round(seconds);
  const shown = [];
  for (const [unit, size] of UNITS) {
    if (rest >= size && shown.length < 2) {
      shown.push(withUnit(Math.floor(rest / size), unit));
      rest %= size;
    } else if (shown.length === 1) {
      break;
    }
  }
  return shown.join(' ') || withUnit(0, 's');
}

const DURATION_UNITS = { ms: 0.001, s: 1, m: 60, min: 60, h: 3_600, d: 86_400 };

/** Return the seconds of a text like `90`, `30s`, `1h 30min`, `4d`; NaN for any other text. */
export function parseDuration(text) {
  const parts = text.trim().toLowerCase();
  if (/^\d+(\.\d+)?$/.test(parts)) {
    return Number(parts);
  }
  if (!/^(\d+(\.\d+)?\s*(ms|min|s|m|h|d)\s*)+$/.test(parts)) {
    return NaN;
  }
  let seconds = 0;
  for (const [, number, , unit] of parts.matchAll(/(\d+(\.\d+)?)\s*(ms|min|s|m|h|d)/g)) {
    seconds += Number(number) * DURATION_UNITS[unit];
  }
  return Math.round(seconds * 1000) / 1000;
}

/** Return seconds as a text that parseDuration reads, with the largest unit that divides them: `4d`, `90s`. */
export function durationInput(seconds) {
  for (const [unit, size] of [['d', 86_400], ['h', 3_600], ['min', 60]]) {
    if (seconds >= size && seconds % size === 0) {
      return `${seconds / size}${unit}`;
    }
  }
  return seconds !== 0 && seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${seconds}s`;
}

/** Return a date and time in the browser's zone, to the second. `moment` is RFC 3339 text, a Date or milliseconds. */
export function time(moment) {
  return format(Intl.DateTimeFormat, { dateStyle: 'medium', timeStyle: 'medium' }).format(new Date(moment));
}

/** Return the time of day; with the date if it is not today. */
export function shortTime(moment) {
  const date = new Date(moment);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? format(Intl.DateTimeFormat, { timeStyle: 'medium' }).format(date) : time(date);
}

/** Return the hour and minute of a Date. */
export function clock(date) {
  return format(Intl.DateTimeFormat, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' }).format(date);
}

/** Return the name of the day of the week of a Date. */
export function weekday(date) {
  return format(Intl.DateTimeFormat, { weekday: 'long' }).format(date);
}

/** Return day and month of a Date. */
export function calendarDay(date) {
  return format(Intl.DateTimeFormat, { day: 'numeric', month: 'long' }).format(date);
}

/** Return the time of day of `seconds` since 1970; with seconds where the times of an axis differ by less than a minute. */
export function dayTime(seconds, splits = null) {
  const date = new Date(seconds * 1000);
  if (splits !== null && (splits.length < 2 || splits[1] - splits[0] >= 60)) {
    return clock(date);
  }
  return format(Intl.DateTimeFormat, { timeStyle: 'medium', hourCycle: 'h23' }).format(date);
}

/** Return the time since, or until, a moment: `5 min ago`, `in 3 s`. */
export function relativeTime(moment, now = Date.now()) {
  const seconds = (new Date(moment).getTime() - now) / 1000;
  const [unit, size] = [['day', 86_400], ['hour', 3_600], ['minute', 60], ['second', 1]].find(
    ([, size]) => Math.abs(seconds) >= size || size === 1,
  );
  return format(Intl.RelativeTimeFormat, { numeric: 'auto' }).format(Math.trunc(seconds / size), unit);
}

const HIDDEN = /[\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

/**
 * Return a text of a message with escapes in place of characters that hide: bidirectional controls, which show text in
 * another order than a program reads it, and characters without width. The joiners U+200C and U+200D stay, because they
 * are parts of letters in Persian and of emoji.
 */
export function visible(text) {
  return text.replace(HIDDEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
