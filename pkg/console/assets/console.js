// What is live on the pages of the console. Pages work without it, and stand
// still then.
(function () {
  'use strict';

  // localTimes shows times in the viewer's zone; the exact one stays in the title.
  var local = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
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

  // listen follows server-sent events: told[name] gets what each one holds, and say
  // what is wrong with the connection. A hidden page lets go of it: a
  // browser has six to a server, and all its tabs share them. Where the server does
  // not take it up again, the session may be over: the page then asks who one is.
  function listen(path, told, say) {
    var events, again;
    function close() {
      clearTimeout(again);
      if (events) events.close();
      events = null;
    }
    function open() {
      close();
      events = new EventSource(path);
      Object.keys(told).forEach(function (name) {
        events.addEventListener(name, function (e) { told[name](JSON.parse(e.data)); });
      });
      events.addEventListener('end', function () { close(); location.reload(); });
      events.onerror = function () {
        say('The connection to the console is lost. Trying again…', true);
        if (events && events.readyState === EventSource.CLOSED) again = setTimeout(look, 2000);
      };
    }
    function look() {
      fetch(location.href, { method: 'HEAD', headers: { Accept: 'text/html' } }).then(function (res) {
        if (res.redirected) location.reload(); else open();
      }).catch(function () { again = setTimeout(look, 2000); });
    }
    document.addEventListener('visibilitychange', function () {
      if (!document.hidden) { if (!events) open(); return; }
      close();
      say('Not followed while the page is hidden.');
    });
    window.addEventListener('pagehide', close);
    window.addEventListener('pageshow', function (e) { if (e.persisted) open(); });
    if (!document.hidden) open();
  }
  window.sluice = { listen: listen, timeOf: timeOf };

  // A link that signs in once: its secret stands behind the #, and leaves the
  // address before anything else happens.
  function signInOnce() {
    var form = document.getElementById('once');
    var found = /^#once=([A-Za-z0-9_-]+)$/.exec(location.hash);
    if (!form || !found) return;
    history.replaceState(null, '', location.pathname);
    form.elements.code.value = found[1];
    form.submit();
  }

  // Charts: <figure class="chart" data-chart="/path"> is drawn of what the path
  // answers: {"x": [seconds], "series": [{"label": "...", "values": [...]}]}.
  var charts = [];
  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function drawChart(figure) {
    if (figure.plot || !window.uPlot) return;
    fetch(figure.dataset.chart, { headers: { Accept: 'application/json' } }).then(function (res) {
      if (!res.ok) throw new Error(res.status);
      return res.json();
    }).then(function (chart) {
      var lines = chart.series.map(function (s, i) {
        return { label: s.label, stroke: colour('--line' + (i + 1)), width: 2, scale: /\/s$/.test(s.label) ? 'rate' : 'n', points: { show: false } };
      });
      var rates = lines.some(function (l) { return l.scale === 'rate'; }), counts = lines.some(function (l) { return l.scale === 'n'; });
      var axis = { stroke: colour('--soft'), grid: { stroke: colour('--rule'), width: 1 }, ticks: { stroke: colour('--rule'), width: 1 } };
      var axes = [axis];
      if (rates) axes.push(Object.assign({ scale: 'rate', size: 70 }, axis));
      if (counts) axes.push(Object.assign({ scale: 'n', size: 70, side: rates ? 1 : 3 }, axis, rates ? { grid: { show: false } } : {}));
      var range = function (u, low, high) { return [0, Math.max(1, (high || 0) * 1.1)]; };
      figure.data = [chart.x || []].concat(chart.series.map(function (s) { return s.values || []; }));
      figure.textContent = '';
      figure.plot = new window.uPlot({
        width: figure.clientWidth, height: 220, series: [{}].concat(lines), axes: axes, scales: { rate: { range: range }, n: { range: range } }
      }, figure.data, figure);
      charts.push(figure);
    }).catch(function () {
      figure.textContent = 'The chart is not available.';
    });
  }
  window.addEventListener('resize', function () {
    charts.forEach(function (figure) { figure.plot.setSize({ width: figure.clientWidth, height: 220 }); });
  });
  function addPoint(p) {
    charts.forEach(function (figure) {
      if (figure.dataset.live !== 'p' || !figure.isConnected) return;
      var xs = figure.data[0];
      if (xs.length && p[0] <= xs[xs.length - 1]) return;
      figure.data.forEach(function (values, i) {
        values.push(p[i]);
        if (values.length > 300) values.shift();
      });
      figure.plot.setData(figure.data);
    });
  }

  // Live pages: <div id="live" data-events="/path" data-shape="..."> is told by
  // server-sent events what its numbers are. When it needs other rows, and not
  // only other numbers, the page is fetched again and the part replaced.
  function follow(root) {
    var pulse = function (text, lost, moment) {
      var state = document.getElementById('pulse'), at = document.getElementById('looked');
      if (state.textContent !== text) state.textContent = text; // who listens hears what is new, not every second
      state.classList.toggle('lost', !!lost);
      at.replaceChildren();
      if (moment) at.append(timeOf(moment));
    };
    var late, fetching = false;
    function show(told) {
      Object.keys(told.v).forEach(function (key) {
        root.querySelectorAll('[data-live="' + CSS.escape(key) + '"]').forEach(function (place) {
          if (place.textContent !== told.v[key]) place.textContent = told.v[key];
        });
        root.querySelectorAll('[data-live-value="' + CSS.escape(key) + '"]').forEach(function (place) {
          place.value = parseFloat(told.v[key]) || 0;
        });
      });
      if (told.p) addPoint(told.p);
      if (told.shape !== root.dataset.shape && !fetching) reshape();
      pulse('Live: looked at', false, told.v.at);
      clearTimeout(late);
      late = setTimeout(function () { if (!document.hidden) pulse('Nothing was heard for a while. What you see may be old.', true); }, 10000);
    }
    function reshape() {
      fetching = true;
      fetch(location.href, { headers: { Accept: 'text/html' } }).then(function (res) { return res.text(); }).then(function (text) {
        var fresh = new DOMParser().parseFromString(text, 'text/html').getElementById('live');
        if (!fresh) { location.reload(); return; }
        root.dataset.shape = fresh.dataset.shape;
        replaceParts(root, fresh);
        localTimes(root);
      }).catch(function () {}).finally(function () { fetching = false; });
    }
    // replaceParts replaces the sections that differ, and leaves charts alone.
    function replaceParts(old, fresh) {
      var olds = old.querySelectorAll(':scope > section'), news = fresh.querySelectorAll(':scope > section');
      news.forEach(function (section, i) {
        if (olds[i] && !olds[i].querySelector('figure') && olds[i].innerHTML !== section.innerHTML) olds[i].replaceWith(section);
      });
    }
    window.sluice.listen(root.dataset.events, { now: show }, pulse);
  }

  // A form that takes a while says so: <form data-busy="id of a status">.
  document.querySelectorAll('form[data-busy]').forEach(function (form) {
    form.addEventListener('submit', function (e) {
      if (e.submitter && e.submitter.formAction.endsWith('.csv')) return; // the page stays
      document.getElementById(form.dataset.busy).textContent = 'Running…';
    });
  });
  window.addEventListener('pageshow', function () {
    document.querySelectorAll('form[data-busy]').forEach(function (form) { document.getElementById(form.dataset.busy).textContent = ''; });
  });

  document.addEventListener('DOMContentLoaded', function () { // all scripts of the page are there
    localTimes(document);
    signInOnce();
    document.querySelectorAll('figure[data-chart]').forEach(drawChart);
    var live = document.getElementById('live');
    if (live) follow(live);
  });
})();
