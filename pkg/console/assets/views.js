// Diagrams and charts of the pages of processes, instances and statements.
(function () {
  'use strict';

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function say(figure, text) {
    var p = document.createElement('p');
    p.className = 'missing text';
    p.textContent = text;
    figure.replaceChildren(p);
  }
  // span formats a duration like the pages.
  function span(ms) {
    var of = [[172800000, 86400000, 'days'], [7200000, 3600000, 'h'], [120000, 60000, 'min'], [1000, 1000, 's'], [0, 1, 'ms']].find(function (u) { return ms >= u[0]; });
    return +(ms / of[1]).toFixed(ms >= 1000 && ms < 10000 ? 1 : 0) + ' ' + of[2];
  }
  // badge is a number on a diagram: a link to the list it counts.
  function badge(kind, text, title, list, more, is, value) {
    var b = document.createElement('a');
    b.className = 'fig badge ' + kind;
    b.textContent = text;
    b.title = title;
    b.tabIndex = -1; // Tab skips the diagram: the tables have the same numbers
    b.dataset.is = is || 'count';
    b.dataset.value = value === undefined ? text : value;
    b.href = list + '&' + new URLSearchParams(more);
    return b;
  }

  // A diagram: <figure class="diagram" data-xml="/path" data-heat="{element: numbers}">
  // of a process, or data-marks="{element: state}" of an instance.
  function diagram(figure) {
    fetch(figure.dataset.xml).then(function (res) {
      if (!res.ok) throw new Error('the console answers ' + res.status);
      return res.text();
    }).then(function (xml) {
      figure.replaceChildren();
      var viewer = new window.BpmnJS({
        container: figure,
        bpmnRenderer: { defaultFillColor: colour('--page'), defaultStrokeColor: colour('--ink'), defaultLabelColor: colour('--ink') }
      });
      return viewer.importXML(xml).then(function () {
        var canvas = viewer.get('canvas');
        var known = function (id) { return viewer.get('elementRegistry').get(id); };
        var fit = function () {
          if (!figure.clientWidth || !figure.clientHeight) return; // hidden
          canvas.resized();
          canvas.zoom('fit-viewport', 'auto');
          canvas.zoom(canvas.zoom() * 0.94, 'auto'); // labels do not touch the frame
          if (figure.clientWidth < 600 && canvas.zoom() < 0.6) canvas.zoom(0.6, { x: 0, y: figure.clientHeight / 2 }); // labels stay readable, and dragging moves it
        };
        fit();
        figure.named = function (root) { name(root, known); };
        figure.named(document);
        if (figure.dataset.heat) showHeat(figure, viewer, known);
        if (figure.dataset.marks) showMarks(figure, viewer, known);
        figure.dataset.drawn = 'yes';
        window.addEventListener('resize', fit);
      });
    }).catch(function (err) { say(figure, 'The diagram is not available: ' + err.message + '. The tables have the same numbers.'); });
  }

  // name shows elements by their names on the diagram, and their ids in the tooltip.
  function name(root, known) {
    root.querySelectorAll('[data-element]').forEach(function (e) {
      var shape = known(e.dataset.element), text = shape && shape.businessObject.name;
      if (!text) return;
      e.firstChild.textContent = text.length > 40 ? text.slice(0, 39) + '…' : text;
      if (!e.querySelector('title')) e.title = e.dataset.element;
    });
  }

  // The measures of a diagram, with the list behind each number.
  var measures = {
    count: { list: 'count' }, terminated: { list: 'count', more: { state: 'TERMINATED' } }, incidents: { list: 'incidents', untyped: true }, active: { list: 'now', untyped: true },
    time: { list: 'count', is: 'total' }, p50: { list: 'count', is: 'p50', more: { state: 'COMPLETED' } }, p95: { list: 'count', is: 'p95', more: { state: 'COMPLETED' } }
  };

  // showHeat colours each element by the chosen measure, shown on its badge, and shows active
  // instances and open incidents. later adds executions and times, and calls figure.heated.
  function showHeat(figure, viewer, known) {
    var canvas = viewer.get('canvas'), overlays = viewer.get('overlays'), steps = 5, heat = {};
    var mode = document.getElementById('mode'), scale = document.getElementById('scale');
    function paint() {
      var by = mode.value, m = measures[by], text = m.is ? span : function (n) { return String(n); }, most = 0;
      var shapes = Object.keys(heat).filter(function (id) { return known(id) && !known(id).waypoints; });
      shapes.forEach(function (id) { most = Math.max(most, heat[id][by] || 0); });
      overlays.clear();
      shapes.forEach(function (id) {
        var h = heat[id], value = h[by], holds = (known(id).children || []).length > 0; // a coloured sub-process would hide its elements
        for (var i = 1; i <= steps; i++) canvas.removeMarker(id, 'heat-' + i);
        if (value > 0 && !holds) canvas.addMarker(id, 'heat-' + Math.max(1, Math.ceil(steps * Math.sqrt(value / most))));
        if (h.active && by !== 'active') overlays.add(id, { position: { bottom: 12, left: -6 }, html: badge('tokens', h.active, h.active + ' active now', figure.dataset.now, { element: id }) });
        if (h.open) overlays.add(id, { position: { top: -10, right: 14 }, html: badge('open', h.open, h.open + ' open incidents', figure.dataset.open, { element: id }) });
        var more = Object.assign(m.untyped ? { element: id } : { element: id, type: h.type }, m.more);
        if (value) overlays.add(id, { position: { top: -10, left: -6 }, html: badge('count', text(value), mode.selectedOptions[0].textContent + ': ' + text(value), figure.dataset[m.list], more, m.is, value) });
      });
      scale.replaceChildren.apply(scale, !most ? [] : [1, 2, 3, 4, 5].map(function (i) {
        var s = document.createElement('span');
        s.className = 'step-' + i;
        s.textContent = '≤ ' + text(Math.floor(most * i * i / steps / steps) || (i < steps ? 0 : most));
        return s;
      }));
    }
    figure.heated = function () {
      heat = JSON.parse(figure.dataset.heat);
      paint();
    };
    mode.addEventListener('change', paint);
    figure.heated();
  }

  // <div class="later" data-later="/path"> is loaded after its page: it gets the content of
  // this div on the page at the path, and the diagram gets its data-heat. Without this script
  // a link leads to that page.
  function later(place) {
    var status = document.getElementById('reading'), above = document.getElementById('heat'), figure = document.querySelector('figure[data-heat]');
    function tell(ofTable, ofHeat) {
      status.textContent = ofTable;
      if (above) above.textContent = ofHeat; // there is a diagram
    }
    function put(nodes) {
      var held = place.contains(document.activeElement); // Try again keeps the focus
      place.replaceChildren.apply(place, nodes);
      place.setAttribute('aria-busy', 'false');
      if (held) place.focus({ preventScroll: true });
    }
    function missing() { tell('Elements not loaded.', 'Executions and time are not available.'); }
    function failed(why) {
      var reason = document.createElement('p'), again = document.createElement('p'), link = document.createElement('a');
      reason.className = 'missing text';
      reason.textContent = 'Not available: ' + why;
      link.href = place.dataset.later;
      link.dataset.again = '';
      link.textContent = 'Try again';
      again.append(link);
      put([reason, again]);
      missing();
    }
    function show(text, code) {
      var page = new DOMParser().parseFromString(text, 'text/html'), fresh = page.querySelector('.later'), refused = page.querySelector('[role=alert]');
      if (!fresh) { failed(refused ? refused.textContent : 'the console answers ' + code); return; }
      put(fresh.childNodes);
      if (place.querySelector('[data-again]')) { missing(); return; }
      tell('Elements loaded.', '');
      if (!figure) return;
      var heat = JSON.parse(figure.dataset.heat), happened = JSON.parse(fresh.dataset.heat);
      Object.keys(happened).forEach(function (id) { heat[id] = Object.assign(heat[id] || {}, happened[id]); });
      figure.dataset.heat = JSON.stringify(heat);
      figure.dataset.count = fresh.dataset.count;
      if (figure.named) figure.named(place);
      if (figure.heated) figure.heated(); // else when the diagram is drawn
    }
    function read() {
      tell('Loading elements…', 'Loading executions and time…');
      place.setAttribute('aria-busy', 'true');
      fetch(place.dataset.later, { headers: { Accept: 'text/html' } }).then(function (res) {
        if (res.redirected) { location.reload(); return null; } // the session has expired
        return res.text().then(function (text) { return { text: text, code: res.status }; });
      }).catch(function () { failed('the console cannot be reached.'); }).then(function (got) {
        if (got) show(got.text, got.code);
      });
    }
    place.tabIndex = -1;
    place.addEventListener('click', function (e) {
      if (!e.target.closest('[data-again]')) return;
      e.preventDefault();
      read();
    });
    read();
  }

  // showMarks shows the path of one instance.
  function showMarks(figure, viewer, known) {
    var canvas = viewer.get('canvas'), overlays = viewer.get('overlays'), marks = JSON.parse(figure.dataset.marks);
    Object.keys(marks).forEach(function (id) {
      var shape = known(id);
      if (!shape) return;
      canvas.addMarker(id, 'at-' + marks[id].state);
      if (!shape.waypoints && marks[id].count > 1) overlays.add(id, { position: { top: -10, left: -6 }, html: badge('count', marks[id].count, marks[id].count + ' times', figure.dataset.count, { element: id }) });
      if (marks[id].open) overlays.add(id, { position: { top: -10, right: 14 }, html: badge('open', marks[id].open, marks[id].open + ' open incidents', figure.dataset.open, { element: id }) });
    });
  }

  // uPlot's formats of times on axes: minimum step in seconds, text, text at a new year, month,
  // day, hour, minute, and second, and 1: that text is appended.
  var day = '\n{YYYY}-{MM}-{DD}';
  var ticks = [[86400, '{MM}-{DD}', '\n{YYYY}', null, null, null, null, null, 1], [60, '{HH}:{mm}', day, null, day, null, null, null, 1], [0.001, '{HH}:{mm}:{ss}', day, null, day, null, null, null, 1]];

  // A chart of an answer: <div class="plot" data-plot="{x, series}">.
  function plot(figure) {
    var chart = JSON.parse(figure.dataset.plot);
    var axis = { stroke: colour('--soft'), grid: { stroke: colour('--rule'), width: 1 }, ticks: { stroke: colour('--rule') } };
    var drawn = new window.uPlot({
      width: figure.clientWidth, height: 240,
      axes: [Object.assign({ values: ticks }, axis), Object.assign({ size: 64 }, axis)],
      series: [{ label: 'time', value: '{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}' }].concat(chart.series.map(function (s, i) {
        return { label: s.label, stroke: colour('--line' + (i + 1)), width: 2 };
      }))
    }, [chart.x].concat(chart.series.map(function (s) { return s.values; })), figure);
    window.addEventListener('resize', function () { drawn.setSize({ width: figure.clientWidth, height: 240 }); });
  }

  // The tail: records as they are stored, the newest on top.
  function tail(table) {
    var body = table.tBodies[0], paused = false, count = 0;
    var pulse = document.getElementById('tailing'), shown = document.getElementById('tailed'), button = document.getElementById('pause');
    function status(text, lost) { if (pulse.textContent !== text) pulse.textContent = text; pulse.classList.toggle('lost', !!lost); }
    button.addEventListener('click', function () {
      paused = !paused;
      button.setAttribute('aria-pressed', paused);
      button.textContent = paused ? 'Resume' : 'Pause';
      if (paused) status('Paused. Records stored meanwhile are not shown.');
    });
    function cell(row, text, path) {
      var td = row.insertCell();
      if (!path) { td.textContent = text; return td; }
      var a = document.createElement('a');
      a.href = path;
      a.textContent = text;
      td.appendChild(a);
      return td;
    }
    function show(r) {
      var row = document.createElement('tr');
      row.insertCell().appendChild(window.sluice.timeOf(r.at));
      cell(row, r.kind === 'EVENT' ? r.type : r.type + ' ' + r.kind);
      cell(row, r.intent);
      cell(row, r.process, r.process && '/process?' + new URLSearchParams({ source: r.source, id: r.process }));
      cell(row, r.instance, /^[1-9]/.test(r.instance) && '/instance?' + new URLSearchParams({ source: r.source, key: r.instance }));
      cell(row, r.element);
      cell(row, r.source);
      cell(row, r.note).className = 'why';
      cell(row, r.id, r.path);
      [3, 4, 5, 6, 8].forEach(function (i) { row.cells[i].classList.add('id'); });
      return row;
    }
    var place = '';
    function path() { return table.dataset.tail + (table.dataset.tail.includes('?') ? '&' : '?') + new URLSearchParams({ place: place }); }
    function told(text) {
      var news = JSON.parse(text);
      if (news.error) { status('Not available: ' + news.error, true); return; }
      place = news.place;
      if (paused) return;
      var rows = (news.rows || []).map(show);
      body.prepend.apply(body, rows);
      while (body.rows.length > 200) body.deleteRow(-1);
      count += rows.length;
      status(count ? 'Live' : 'Live: no new records yet');
      shown.textContent = count + ' shown' + (news.more ? '; more are stored than shown' : '');
    }
    window.sluice.poll(+table.dataset.every, path, told, function (text, lost) { if (!paused || lost) status(text, lost); });
  }

  document.querySelectorAll('table[data-tail]').forEach(tail);
  document.querySelectorAll('figure.diagram[data-xml]').forEach(diagram);
  document.querySelectorAll('[data-later]').forEach(later);
  document.querySelectorAll('.plot[data-plot]').forEach(plot);
})();
