// What the theme makes when a page has loaded: boxes that scroll can be reached with the keyboard, and the box of a copy button
// is no part of the page's navigation.

const mend = () => {
  document.querySelectorAll('.md-code__nav').forEach(box => box.setAttribute('role', 'none'));
  document.querySelectorAll('.md-typeset__scrollwrap, .md-typeset pre > code').forEach(box => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; else box.removeAttribute('tabindex');
  });
};
new MutationObserver(mend).observe(document.body, {childList: true, subtree: true});
addEventListener('resize', mend);
mend();
