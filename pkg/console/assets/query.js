// The query page: Ctrl+Enter, completion, saved queries, and an address with the query.
(function () {
  'use strict';
  var form = document.getElementById('ask'), sql = document.getElementById('sql');
  var shown = document.getElementById('completions'), names = [];
  if (form.dataset.link && location.pathname + location.search !== form.dataset.link) history.replaceState(null, '', form.dataset.link);

  var answer = document.getElementById('answer');
  if (answer) answer.scrollIntoView();

  // The page of views, beside the query.
  var place = document.getElementById('names');
  fetch(place.dataset.views, { headers: { Accept: 'text/html' } }).then(function (res) { return res.text(); }).then(function (text) {
    var views = new DOMParser().parseFromString(text, 'text/html').getElementById('views');
    if (!views) return;
    views.querySelectorAll('summary, dt').forEach(function (e) { names.push(e.firstChild.textContent.trim()); });
    names = Array.from(new Set(names)).sort();
    place.addEventListener('toggle', function () { place.querySelector('p').replaceWith(views); }, { once: true }); // long, so only on request
    place.dataset.ready = 'yes';
    views.querySelectorAll('dt').forEach(function (e) { e.addEventListener('click', function () { put(e.firstChild.textContent.trim(), 0); }); });
  }).catch(function () {}); // the link to that page stays

  // begun is the partial name before the cursor.
  function begun() { return (/[A-Za-z_][A-Za-z0-9_]*$/.exec(sql.value.slice(0, sql.selectionStart)) || [''])[0]; }
  function put(name, typed) {
    sql.focus();
    sql.setRangeText(name, sql.selectionStart - typed, sql.selectionEnd, 'end');
    offer([]);
  }
  function offer(some) {
    shown.hidden = !some.length;
    shown.replaceChildren.apply(shown, some.map(function (name) {
      var li = document.createElement('li'), button = document.createElement('button');
      button.type = 'button';
      button.className = 'id';
      button.tabIndex = -1; // Tab in the statement takes the first
      button.textContent = name;
      button.addEventListener('click', function () { put(name, begun().length); });
      li.append(button);
      return li;
    }));
  }
  sql.addEventListener('input', function () {
    var typed = begun().toLowerCase();
    offer(typed.length > 1 ? names.filter(function (n) { return n.startsWith(typed) && n !== typed; }).slice(0, 8) : []);
  });
  sql.addEventListener('blur', function () { setTimeout(offer, 200, []); });
  sql.addEventListener('keydown', function (e) {
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); form.requestSubmit(); }
    if (e.key === 'Escape') offer([]);
    if (e.key === 'Tab' && !e.shiftKey && !shown.hidden) { e.preventDefault(); shown.querySelector('button').click(); }
  });

  // Saved queries are links without times: they run over the default period.
  var saved = document.getElementById('saved'), list = saved.querySelector('ul'), kept;
  try { kept = JSON.parse(localStorage.getItem('queries')) || {}; } catch (e) { return; } // no storage
  function show() {
    list.replaceChildren.apply(list, Object.keys(kept).sort().map(function (name) {
      var li = document.createElement('li'), a = document.createElement('a'), drop = document.createElement('button');
      a.href = '/query?' + new URLSearchParams(kept[name]);
      a.className = 'name';
      a.textContent = name;
      drop.type = 'button';
      drop.className = 'drop';
      drop.textContent = '✕';
      drop.setAttribute('aria-label', 'Remove the query ' + name);
      drop.addEventListener('click', function () { delete kept[name]; keep(); });
      li.append(a, ' ', drop);
      return li;
    }));
  }
  function keep() {
    localStorage.setItem('queries', JSON.stringify(kept));
    show();
  }
  saved.hidden = false;
  saved.open = Object.keys(kept).length > 0;
  saved.querySelector('form').addEventListener('submit', function (e) {
    e.preventDefault();
    var all = Object.fromEntries(new FormData(form));
    delete all.csrf;
    form.querySelectorAll('[data-moment]').forEach(function (i) { delete all['param_' + i.id.slice(2)]; });
    kept[e.target.elements.name.value] = all;
    e.target.reset();
    keep();
  });
  show();
})();
