// Live pages, local times, forms. Without it pages work, but do not refresh.
(function () {
  'use strict';

  // localTimes shows times in the viewer's zone; the exact one stays in the title.
  var local = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' }); // 2026-01-31 12:00:00
  function localTimes(root) {
    root.querySelectorAll('time[datetime]').forEach(function (t) {
      var at = new Date(t.getAttribute('datetime'));
      if (!isNaN(at)) t.textContent = local.format(at);
    });
  }
  // timeOf is a moment as an element, shown as localTimes does.
  function timeOf(moment) {
    var t = document.createElement('time');
    t.dateTime = t.title = new Date(moment).toISOString();
    t.textContent = local.format(new Date(moment));
    return t;
  }

  // poll requests a path, every milliseconds after each response, while the page is visible.
  // An expired session leads to the sign-in.
  function poll(every, path, show, say) {
    var timer, asking = false;
    function ask() {
      clearTimeout(timer);
      if (document.hidden) { say('Not updated while the page is hidden.'); return; }
      if (asking) return;
      asking = true;
      fetch(path(), { headers: { Accept: 'text/html' }, signal: AbortSignal.timeout(10000) }).then(function (res) {
        if (res.redirected) { location.reload(); return null; }
        return res.text().then(function (text) { show(text); });
      }).catch(function (err) {
        say(err.name === 'TimeoutError' ? 'No update for 10 s; data may be stale.' : 'The connection to the console is lost. Retrying…', true);
      }).finally(function () {
        asking = false;
        timer = setTimeout(ask, every);
      });
    }
    document.addEventListener('visibilitychange', ask);
    timer = setTimeout(ask, every);
  }
  window.sluice = { poll: poll, timeOf: timeOf };

  // become updates a part of the page and keeps equal nodes, so that focus and selection
  // stay.
  function become(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.childNodes.length !== fresh.childNodes.length) {
      old.replaceWith(fresh);
      return;
    }
    Array.from(old.attributes).forEach(function (a) { if (!fresh.hasAttribute(a.name) && a.name !== 'open') old.removeAttribute(a.name); });
    Array.from(fresh.attributes).forEach(function (a) { if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value); });
    var nodes = Array.from(fresh.childNodes);
    Array.from(old.childNodes).forEach(function (node, i) { become(node, nodes[i]); });
  }

  // follow refreshes <div id="live" data-every="milliseconds">.
  function follow(every) {
    function say(text, lost) {
      var state = document.getElementById('pulse');
      if (state.textContent !== text) state.textContent = text; // a screen reader announces each change
      state.classList.toggle('lost', !!lost);
    }
    poll(every, function () { return location.href; }, function (text) {
      var fresh = new DOMParser().parseFromString(text, 'text/html').getElementById('live');
      if (!fresh) { location.reload(); return; }
      localTimes(fresh);
      become(document.getElementById('live'), document.adoptNode(fresh));
    }, say);
  }

  // signInOnce reads the secret of a sign-in link from behind the #, and removes it from the
  // address first.
  function signInOnce() {
    var form = document.getElementById('once');
    var found = /^#once=([A-Za-z0-9_-]+)$/.exec(location.hash);
    if (!form || !found) return;
    history.replaceState(null, '', location.pathname);
    form.elements.code.value = found[1];
    form.submit();
  }

  // The status of a slow form: <form data-busy="id of a status">.
  document.querySelectorAll('form[data-busy]').forEach(function (form) {
    form.addEventListener('submit', function (e) {
      if (e.submitter && e.submitter.formAction.endsWith('.csv')) return; // the page stays
      document.getElementById(form.dataset.busy).textContent = 'Running…';
    });
  });
  window.addEventListener('pageshow', function () {
    document.querySelectorAll('form[data-busy]').forEach(function (form) { document.getElementById(form.dataset.busy).textContent = ''; });
  });

  // A phone has room for two fields: the empty ones of the rest are under More filters.
  var narrow = window.matchMedia('(max-width: 40rem)').matches;
  document.querySelectorAll('form[role=search]').forEach(function (form) {
    var more = form.querySelector('details > .filters');
    if (narrow && more) more.prepend.apply(more, Array.from(form.querySelectorAll(':scope > p:has(label)')).slice(2).filter(function (p) { return !p.querySelector('input, select').value; }));
    form.addEventListener('submit', function () {
      form.querySelectorAll('input:not([type=hidden])').forEach(function (i) { i.value = i.value.trim(); });
    });
  });

  // Moments are typed in the viewer's zone, and sent in UTC.
  function localMoments() {
    var zone = new Intl.DateTimeFormat(undefined, { timeZoneName: 'short' }).formatToParts(new Date()).filter(function (p) { return p.type === 'timeZoneName'; })[0].value;
    var place = Intl.DateTimeFormat().resolvedOptions().timeZone;
    document.querySelectorAll('[data-zone]').forEach(function (e) { e.textContent = place === zone ? zone : place + ' (' + zone + ')'; });
    document.querySelectorAll('input[data-moment]').forEach(function (input) {
      var at = new Date(input.value), sent = document.createElement('input');
      sent.type = 'hidden';
      sent.name = input.name;
      input.removeAttribute('name');
      input.type = 'datetime-local';
      input.step = 1;
      if (!isNaN(at)) input.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
      input.form.append(sent);
      input.form.addEventListener('submit', function () {
        sent.disabled = !input.value;
        if (input.value) sent.value = new Date(input.value).toISOString().slice(0, 19) + 'Z';
      });
    });
  }

  document.addEventListener('DOMContentLoaded', function () { // all scripts are loaded
    localTimes(document);
    localMoments();
    signInOnce();
    var live = document.getElementById('live');
    if (live && live.dataset.every) follow(+live.dataset.every);
  });
})();
