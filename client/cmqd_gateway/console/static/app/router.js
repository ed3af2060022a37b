/** Paths of the console, below /console/, in the history of the browser. */

const BASE = '/console/';
const listeners = new Set();

/** Return the path of the current address below /console/, without slashes at its ends. */
export function currentPath() {
  return location.pathname.slice(BASE.length).replace(/\/+$/, '');
}

/** Return the address of a path, such as `queues/orders`, with a query. Names in it need encodeURIComponent. */
export function href(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '') {
      search.set(name, value);
    }
  }
  const text = search.toString();
  return BASE + path + (text ? `?${text}` : '');
}

/** Go to an address of this console. */
export function navigate(address, { replace = false } = {}) {
  history[replace ? 'replaceState' : 'pushState'](null, '', address);
  listeners.forEach((listener) => listener());
}

/** Change the query of the current page without a new entry in the history; empty values are removed. */
export function replaceQuery(changes) {
  const search = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === '') {
      search.delete(name);
    } else {
      search.set(name, value);
    }
  }
  const text = search.toString();
  history.replaceState(null, '', location.pathname + (text ? `?${text}` : ''));
}

/** Call `listener` at each change of the address, and let links of the console change the address without a load. */
export function listen(listener) {
  listeners.add(listener);
  addEventListener('popstate', listener);
  document.addEventListener('click', (event) => {
    const link = event.target.closest?.('a[href]');
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !isPlain || event.defaultPrevented || link.target || link.hasAttribute('download')) {
      return;
    }
    if (link.origin === location.origin && link.pathname.startsWith(BASE) && !link.pathname.startsWith(`${BASE}static/`)) {
      if (link.hash && link.pathname === location.pathname && link.search === location.search) {
        return;
      }
      event.preventDefault();
      navigate(link.pathname + link.search);
    }
  });
}

/** Return the parameters of a path that matches a pattern like `queues/:queue`, or null. */
export function match(pattern, path) {
  const [names, values] = [pattern.split('/'), path.split('/')];
  if (names.length !== values.length) {
    return null;
  }
  const params = {};
  for (const [index, name] of names.entries()) {
    if (name.startsWith(':')) {
      try {
        params[name.slice(1)] = decodeURIComponent(values[index]);
      } catch {
        return null;
      }
    } else if (name !== values[index]) {
      return null;
    }
  }
  return params;
}
