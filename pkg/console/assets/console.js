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
    var pulse = function (text, lost) {
      var p = document.getElementById('pulse');
      if (!p) return;
      if (p.textContent !== text) p.textContent = text;
      p.classList.toggle('lost', !!lost);
    };
    var events, late, fetching = false;
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
      pulse('Live: looked at ' + local.format(new Date(told.v.at)));
      clearTimeout(late);
      late = setTimeout(function () { pulse('Nothing was heard for a while. What you see may be old.', true); }, 10000);
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
    function open() {
      events = new EventSource(root.dataset.events);
      events.addEventListener('now', function (e) { show(JSON.parse(e.data)); });
      events.addEventListener('end', function () { events.close(); location.reload(); });
      events.onerror = function () {
        pulse('The connection to the console is lost. Trying again…', true);
        if (events.readyState === EventSource.CLOSED) setTimeout(open, 2000);
      };
    }
    open();
    window.addEventListener('pagehide', function () { events.close(); });
  }

  localTimes(document);
  signInOnce();
  document.querySelectorAll('figure[data-chart]').forEach(drawChart);
  var live = document.getElementById('live');
  if (live) follow(live);
})();
