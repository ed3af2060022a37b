/** Short messages about something that succeeded; screen readers announce them. */

const SHOWN_MS = 4_000;

function region() {
  let element = document.getElementById('toasts');
  if (!element) {
    element = document.createElement('div');
    element.id = 'toasts';
    element.setAttribute('role', 'status');
    element.popover = 'manual';
    document.body.append(element);
  }
  return element;
}

/** Show a text for some seconds, above dialogs too. */
export function toast(text) {
  const place = region();
  const item = document.createElement('p');
  item.textContent = text;
  place.append(item);
  // Shown anew: the last popover shown is in front of all dialogs.
  if (place.matches(':popover-open')) {
    place.hidePopover();
  }
  place.showPopover();
  setTimeout(() => {
    item.remove();
    if (place.childElementCount === 0 && place.matches(':popover-open')) {
      place.hidePopover();
    }
  }, SHOWN_MS);
}
