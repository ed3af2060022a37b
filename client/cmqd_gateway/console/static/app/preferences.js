/** Theme of the console: the system's, light or dark. Kept in the browser; it is no secret. */

const STORED = 'cmqd.theme';
export const THEMES = ['system', 'light', 'dark'];

/** Return the chosen theme, an element of THEMES. */
export function theme() {
  const stored = localStorage.getItem(STORED);
  return THEMES.includes(stored) ? stored : 'system';
}

/** Use a theme from now on, also at the next visit. */
export function setTheme(name) {
  localStorage.setItem(STORED, name);
  applyTheme();
}

/** Set the attribute from which the styles take the theme. */
export function applyTheme() {
  if (theme() === 'system') {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme();
  }
}
