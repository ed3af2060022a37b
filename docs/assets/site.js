// The theme gives each line of code an anchor without a name: it is for links, and not for the keyboard.
document.querySelectorAll('a[id^="__codelineno"]').forEach((anchor) => {
  anchor.setAttribute('tabindex', '-1');
  anchor.setAttribute('aria-hidden', 'true');
});

// The theme puts each table into a box that scrolls, after the page was loaded; a keyboard must reach the box.
const reachable = () =>
  document.querySelectorAll('.md-typeset__scrollwrap:not([tabindex])').forEach((box) => box.setAttribute('tabindex', '0'));
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
reachable();
